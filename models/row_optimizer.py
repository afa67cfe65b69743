"""RowOptimizer: a torch optimizer whose parameters are the rows pulled for the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

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
        self._set_parameters()

    def expect(self, pulled: PulledRows, deliver: PushGradients | None = None) -> None:
        """Wait for the gradients of one more pulled batch; `deliver` sends them in place of the collection's push."""
        self._waiting.append((pulled, deliver or self._push))
        self._set_parameters()

    def forget(self, pulled: PulledRows) -> None:
        """Stop waiting for a batch: its push is skipped."""
        self._waiting = [(rows, deliver) for rows, deliver in self._waiting if rows is not pulled]
        self._set_parameters()

    @property
    def lr_scale(self) -> float:
        """Factor on each block's own learning rate."""
        return float(self.param_groups[0]["lr"]) / self._start_lr

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Push every waiting batch that backward has reached, each under its own token; gives the closure's loss.

        The leaves give their gradients away (`grad` becomes None). A batch without gradients is given up."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        waiting, self._waiting = self._waiting, []
        self._set_parameters()
        for pulled, deliver in waiting:
            if pulled.has_gradients:
                self.steps += 1
                deliver(pulled, step=self.steps, lr_scale=self.lr_scale)
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
        return {"steps": self.steps, "lr": float(self.param_groups[0]["lr"]), "start_lr": self._start_lr}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a `state_dict`. Raises: KeyError naming a missing entry."""
        self.steps = int(state_dict["steps"])
        self.param_groups[0]["lr"] = state_dict["lr"] / state_dict["start_lr"] * self._start_lr

    def parameters(self) -> list[torch.Tensor]:
        """The leaf tensors that wait for a step, for `clip_grad_norm_`."""
        return parameters_of([pulled for pulled, _ in self._waiting])

    def _set_parameters(self) -> None:
        self.param_groups[0]["params"] = self.parameters()
