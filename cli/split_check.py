"""Looks for a row on each side of a run's split, before anything is trained."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..datasets import ClickLog
from ..datasets.work_unit import WorkUnit
from ..feature_map import FeatureMap
from .data_config import DataConfig, FromTime, RandomShare, evaluation_log, train_log
from .errors import UsageError

LOOK_ROWS = 1024


def check_split(config: DataConfig, features: FeatureMap, source: Path) -> None:
    """Raises: UsageError where every row evaluates, or none does; as reading does.

    Cost: reading from the log's first unit up to a row that trains, and from its last one back to one that evaluates:
    a cut in time leaves those at the end."""
    evaluation = evaluation_log(config, features.columns)
    if config.evaluate is None or evaluation is None:
        return
    log = train_log(config, features.columns, run=0)
    where = f"{source}: $.data.evaluate"
    if not _any_row(log, log.units(0), features):
        raise UsageError(f"{where}: expected rows to train on, got none: all rows of {list(config.path)} evaluate")
    if _any_row(evaluation, reversed(evaluation.units(0)), features):
        return
    match config.evaluate:
        case FromTime(column=column, cut=cut):
            reason = f"no row of {list(config.path)} has {column!r} at or after {cut!r}"
        case RandomShare(share=share):
            reason = f"no row of {list(config.path)} falls into the share {share}"
        case others:
            reason = f"{list(others.path)} hold none"
    raise UsageError(f"{where}: expected rows to evaluate, got none: {reason}; `data.evaluate: null` measures nothing")


def _any_row(log: ClickLog, units: Iterable[WorkUnit], features: FeatureMap) -> bool:
    return any(part.num_rows for unit in units for part in log.records(unit, features.columns, LOOK_ROWS))
