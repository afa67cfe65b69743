"""What training shows while it goes: the bar, a line an evaluation, the metrics log."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TextIO

from ..models.train_result import Evaluation, TrainObserver
from .console import format_value
from .metrics_log import MetricsLog
from .progress import Progress, open_progress

SMOOTHING = 0.98
"""Weight of the past in the running loss that is shown."""


class TrainingDisplay(TrainObserver):
    """Shows training on `stream` and writes the metrics log.

    open_log: called once, when the first batch has been trained: until then nothing is written anywhere.
    """

    def __init__(self, open_log: Callable[[], MetricsLog], log_every: int, stream: TextIO | None = None) -> None:
        self._open_log, self._log_every = open_log, log_every
        self._stream = sys.stdout if stream is None else stream
        self._log: MetricsLog | None = None
        self._bar: Progress | None = None
        self._loss: float | None = None
        self._evaluation: Evaluation | None = None

    def on_progress(self, *, step: int, epoch: int, examples: int, total: int | None, loss: float) -> None:
        """Move the bar; write a line of the log every `log_every` steps."""
        if self._log is None:
            self._log = self._open_log()
        if self._bar is None:
            self._bar = open_progress("train", "examples", total, self._stream).__enter__()
        self._loss = loss if self._loss is None else SMOOTHING * self._loss + (1 - SMOOTHING) * loss
        auc = None if self._evaluation is None else self._evaluation.auc
        self._bar.update(examples, {"epoch": epoch + 1, "loss": self._loss, "auc": auc})
        if step % self._log_every == 0:
            self._log.add("train", step, {"epoch": epoch, "loss": loss, "running_loss": self._loss})

    def on_evaluation(self, evaluation: Evaluation, *, is_best: bool) -> None:
        """Show and log the metrics."""
        self._evaluation = evaluation
        if self._log is not None:
            scalars = {"epoch": evaluation.epoch, "auc": evaluation.auc, "logloss": evaluation.logloss}
            self._log.add("evaluate", evaluation.step, scalars)
        if not self._stream.isatty():
            self._stream.write(f"step {evaluation.step:,}: {_in_words(evaluation)}{' (best so far)' * is_best}\n")
            self._stream.flush()

    def close(self) -> None:
        """End the bar and the log; idempotent."""
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
            self._bar = None
        if self._log is not None:
            self._log.close()
            self._log = None


def _in_words(evaluation: Evaluation) -> str:
    if evaluation.examples == 0:
        return "nothing measured: the evaluation rows are none"
    undefined = f" ({evaluation.note})" if evaluation.note else ""
    return f"AUC {format_value(evaluation.auc)}{undefined}, log loss {format_value(evaluation.logloss)}"
