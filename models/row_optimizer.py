"""RowOptimizer: a torch optimizer whose parameters are the rows pulled for the step."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch

from .errors import StaleRowsError
from .pulled_rows import PulledRows, parameters_of


class PushGradients(Protocol):
    """Sends the gradients of one pulled batch."""

    def __call__(self, pulled: PulledRows, *, step: int, lr_scale: float) -> None: ...


class RowOptimizer(torch.optim.Optimizer):
    """Pushes the gradients of pulled rows; the row optimizers themselves run in the store.

    Its one parameter group holds the leaf tensors of the batches that wait for a step, so GradScaler, gradient clipping
    and schedulers see the rows as they see any parameter. `lr` starts at the blocks' learning rate (1.0 where they have
    several) and scales it: lr_scale = lr / start.

    Thread safety: the training thread.
    Invariant: a pulled batch is pushed by the first `step` after its backward, or never.
    """

    def __init__(self, push: PushGradients, lr: float) -> None:
        super().__init__([torch.zeros(0, requires_grad=True)], {"lr": lr})
        self.steps = 0
        self._push = push
        self._start_lr = lr
        self._waiting: list[tuple[PulledRows, PushGradients]] = []
        self._has_warned = False
        self._set_parameters()

    def expect(self, pulled: PulledRows, deliver: PushGradients | None = None) -> None:
        """Wait for the gradients of one more pulled batch; `deliver` sends them in place of the collection's push."""
        self._waiting.append((pulled, deliver or self._push))
        self._set_parameters()

    def forget(self, pulled: PulledRows) -> None:
        """Stop waiting for a batch: its push is skipped."""
        self._waiting = [(rows, deliver) for rows, deliver in self._waiting if rows is not pulled]
        self._set_parameters()

    def give_up(self, pulled: PulledRows) -> None:
        """Stop waiting for a batch, since the next one is asked for. Warns, once, where it has gradients, all finite
        (GradScaler skips others by design)."""
        waits = any(rows is pulled for rows, _ in self._waiting)
        if waits and not self._has_warned and pulled.has_finite_gradients:
            self._has_warned = True
            warnings.warn(
                "gradients of a batch were given up: backward reached its rows, and the next batch was asked for "
                "before step() of embeddings.optimizer(); to accumulate, make batches larger",
                stacklevel=3,
            )
        self.forget(pulled)

    @property
    def lr_scale(self) -> float:
        """Factor on each block's own learning rate."""
        return float(self.param_groups[0]["lr"]) / self._start_lr

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Push every waiting batch that backward has reached, each under its own token; gives the closure's loss.

        Gradients of several pulls of one batch are summed, as they are for a parameter used several times.
        The leaves give their gradients away (`grad` becomes None). A batch without gradients is given up."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        waiting, self._waiting = self._waiting, []
        self._set_parameters()
        stale: StaleRowsError | None = None
        for pulled, deliver in _of_one_push(waiting):
            if pulled.has_gradients:
                self.steps += 1
                try:
                    deliver(pulled, step=self.steps, lr_scale=self.lr_scale)
                except StaleRowsError as error:  # the other batches are none the worse for it
                    stale = stale or error
        if stale is not None:
            raise stale
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients there are: batches that have some are given up, others still wait for theirs."""
        kept = []
        for pulled, deliver in self._waiting:
            if pulled.has_gradients:
                pulled.drop_gradients()
            else:
                kept.append((pulled, deliver))
        self._waiting = kept
        self._set_parameters()

    def state_dict(self) -> dict[str, Any]:
        """Steps and learning rate; the rows' own optimizer state is in the store."""
        group = self.param_groups[0]
        state = {"steps": self.steps, "lr": float(group["lr"]), "start_lr": self._start_lr}
        return {**state, "initial_lr": float(group["initial_lr"])} if "initial_lr" in group else state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a `state_dict`. Raises: KeyError naming a missing entry."""
        self.steps = int(state_dict["steps"])
        for rate in ("lr", "initial_lr"):  # the second is a scheduler's
            if rate == "lr" or rate in state_dict:
                self.param_groups[0][rate] = state_dict[rate] / state_dict["start_lr"] * self._start_lr

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Only the rows' own group. Raises: ValueError for another, which would never be stepped."""
        if self.param_groups:
            raise ValueError("expected no parameters beside the rows, got a group: give it to an optimizer of its own")
        super().add_param_group(param_group)

    def parameters(self) -> list[torch.Tensor]:
        """The leaf tensors that wait for a step, for `clip_grad_norm_`."""
        return parameters_of([pulled for pulled, _ in self._waiting])

    def _set_parameters(self) -> None:
        self.param_groups[0]["params"] = self.parameters()


def _of_one_push(waiting: list[tuple[PulledRows, PushGradients]]) -> list[tuple[PulledRows, PushGradients]]:
    """Those with gradients, the first of each batch with the gradients of all pulls of that batch."""
    merged: list[tuple[PulledRows, PushGradients]] = []
    for pulled, deliver in waiting:
        first = next((rows for rows, _ in merged if _is_same_batch(rows, pulled)), None)
        if first is None:
            merged.append((pulled, deliver))
        else:
            first.add_gradients(pulled)
    return merged


def _is_same_batch(first: PulledRows, second: PulledRows) -> bool:
    if first.batch.id is None or first.batch.id != second.batch.id:
        return False
    return np.array_equal(first.unique.keys.keys, second.unique.keys.keys)
