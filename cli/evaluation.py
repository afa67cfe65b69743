"""Passes over a click log with a trained model: metrics, and predictions written to a file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from ..datasets import ClickLog
from ..models.evaluation import evaluate
from .assembly import Assembly, assembled_checkpoint
from .data_config import evaluation_log, other_log
from .errors import UsageError
from .run_config import load_run_config
from .run_folder import last_run


def open_trained(source: Path) -> AbstractContextManager[Assembly]:
    """The model of a checkpoint, a run's folder, or the last run of a configuration file."""
    if source.is_dir() or not source.exists():
        return assembled_checkpoint(source)
    config = load_run_config(source)
    run = last_run(runs_folder(config.output.folder, source), config.output.name)
    return assembled_checkpoint(run.path)


def runs_folder(folder: str | None, config: Path) -> Path:
    """Where the runs of a configuration file are."""
    return Path("runs") / config.stem if folder is None else Path(folder)


def evaluate_source(source: Path, data: Sequence[str]) -> dict[str, object]:
    """AUC, log loss and examples of a trained model on `data`, or on the rows its configuration evaluates.

    Raises: UsageError where neither names rows; whatever reading and restoring raise."""
    with open_trained(source) as assembly:
        if data:
            log: ClickLog | None = other_log(assembly.config.data, data)
        else:
            log = evaluation_log(assembly.config.data, assembly.features.columns)
        if log is None:
            raise UsageError(f"expected DATA, since {source} names no evaluation rows ($.data.evaluate)")
        batches = log.batches(assembly.features, assembly.config.train.batch_size)
        metrics = evaluate(assembly.model, assembly.embeddings, batches)
        return {
            "auc": None if math.isnan(metrics.auc) else metrics.auc,
            "logloss": None if math.isnan(metrics.logloss) else metrics.logloss,
            "examples": metrics.examples,
            "note": metrics.note,
            "checkpoint": assembly.embeddings.checkpoint,
        }
