"""What a training run tells: evaluations, the result, and who listens and saves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from .kept_back import KeptBack
from .trainer_state import TrainerState


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Metrics of one evaluation during training."""

    step: int
    epoch: int
    auc: float
    logloss: float
    examples: int
    note: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain values; NaN is None."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {
            name: None if isinstance(value, float) and math.isnan(value) else value for name, value in values.items()
        }

    @classmethod
    def of_json(cls, entry: Mapping[str, Any]) -> Evaluation:
        """The evaluation that `as_json` gave."""
        undefined = {name: float("nan") for name in ("auc", "logloss") if entry[name] is None}
        return cls(**{**entry, **undefined})


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a training run came to.

    auc, logloss:        of the last evaluation, or of the best one where early stop went back to it; NaN without any.
    seconds:             of training, without evaluations and checkpoints; examples_per_second is over these.
    rows:                rows of all tables at the end.   rows_by_table: the same, by table.
    stopped:             finished, early_stop or max_steps.
    checkpoint:          the last one saved, or the best one where early stop went back to it.
    evicted:             rows by table that left by an eviction policy, of the whole run.
    kept_back:           gradient rows that were not applied since they would have harmed a table.
    """

    auc: float
    logloss: float
    examples: int
    examples_per_second: float
    seconds: float
    steps: int
    rows: int
    rows_by_table: dict[str, int]
    stopped: str
    history: tuple[Evaluation, ...] = ()
    checkpoint: str | None = None
    best_step: int | None = None
    evicted: Counter[str] = field(default_factory=Counter)
    kept_back: KeptBack = field(default_factory=KeptBack)


class TrainObserver:
    """Told what happens during training; override what you need. All calls come from the training thread."""

    def on_progress(self, *, step: int, epoch: int, examples: int, total: int | None, loss: float) -> None:
        """After a batch. examples: trained in this call of `fit`.   total: of all epochs, where it is known."""

    def on_evaluation(self, evaluation: Evaluation, *, is_best: bool) -> None:
        """After an evaluation."""

    def on_checkpoint(self, step: int, name: str) -> None:
        """After a checkpoint."""


class Checkpoints(Protocol):
    """Where a trainer saves its state, with the rows of its store."""

    def save(self, state: TrainerState, *, is_best: bool) -> str:
        """Name of the checkpoint written of `state` and the store's rows. No push is on its way during the call."""

    def restore(self, name: str) -> TrainerState:
        """State of a checkpoint, whose rows are put back into the store."""
