"""One training run from its configuration to its report."""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TextIO

from ..benchmarks.measurement import machine
from ..datasets import ClickLog
from ..embedding.checkpoint import Checkpoint, latest_checkpoint
from ..embedding.errors import CheckpointMismatchError
from ..feature_map import FeatureMap
from ..feature_map.yaml_file import write_yaml
from ..models.train_result import TrainResult
from ..models.trainer import Trainer
from ..models.trainer_state import TrainerState
from .assembly import Assembly, assembled
from .data_config import RandomShare, evaluation_log, train_log
from .errors import UsageError
from .evaluation import runs_folder
from .metrics_log import MetricsLog
from .report import RunReport, TableSize, write_report
from .run_checkpoints import RunCheckpoints
from .run_config import RunConfig
from .run_folder import RunFolder, check_new_run, last_run, new_run
from .training_display import TrainingDisplay

REPORTED_VERSIONS = ("embershard", "torch", "numpy", "pyarrow")


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run that has ended: its folder and what was measured."""

    folder: RunFolder
    report: RunReport


def train_run(config: RunConfig, source: Path, *, resume: bool, stream: TextIO) -> FinishedRun:
    """Train as configured; progress goes to `stream`.

    source: the configuration file; the runs are named after it.
    A run's folder is made when its first batch has been trained: bad input leaves nothing behind.
    Raises: UsageError where there is nothing to resume; CheckpointMismatchError naming what does not fit; whatever
    reading, training and saving raise."""
    runs = runs_folder(config.output.folder, source)
    features = FeatureMap.of(config.features)
    if not resume:
        with assembled(config, features) as assembly:
            folder = _PendingFolder(runs, config)
            return _train(assembly, folder, source.stem, None, None, stream)
    run = last_run(runs, config.output.name)
    checkpoint = _checkpoint_to_resume(run)
    with checkpoint, assembled(config, features) as assembly:
        _check_same_features(checkpoint, features)
        checkpoint.restore(assembly.store)
        manifest = checkpoint.manifest
        state = TrainerState(manifest.step, manifest.cursor, manifest.scalars, checkpoint.dense())
        folder = _PendingFolder(runs, config, run)
        return _train(assembly, folder, source.stem, state, checkpoint.path, stream)


class _PendingFolder:
    """A run's folder that is made when it is first asked for."""

    def __init__(self, runs: Path, config: RunConfig, run: RunFolder | None = None) -> None:
        self._runs, self._config, self._run = runs, config, run
        if run is None:
            check_new_run(runs, config.output.name)

    def make(self) -> RunFolder:
        if self._run is None:
            self._run = new_run(self._runs, self._config.output.name)
        if not self._run.config.exists():
            write_yaml(self._run.config, self._config.to_dict())
        return self._run

    def open_log(self) -> MetricsLog:
        run = self.make()
        return MetricsLog(run.metrics, run.tensorboard if self._config.output.tensorboard else None)


class _PendingCheckpoints:
    """Checkpoints in a folder that is made at the first save."""

    def __init__(self, assembly: Assembly, folder: _PendingFolder) -> None:
        self._assembly, self._folder = assembly, folder

    def _made(self) -> RunCheckpoints:
        assembly = self._assembly
        return RunCheckpoints(self._folder.make().checkpoints, assembly.store, assembly.config, assembly.features)

    def save(self, state: TrainerState, *, is_best: bool) -> str:
        return self._made().save(state, is_best=is_best)

    def restore(self, name: str) -> TrainerState:
        return self._made().restore(name)


def _train(
    assembly: Assembly,
    folder: _PendingFolder,
    name: str,
    state: TrainerState | None,
    resumed_from: str | None,
    stream: TextIO,
) -> FinishedRun:
    config, features = assembly.config, assembly.features
    run_id = config.train.seed if state is None else int(state.cursor["run"])
    log: ClickLog = train_log(config.data, features.columns, run_id)
    validation = evaluation_log(config.data, features.columns)
    trainer = Trainer(assembly.model, assembly.embeddings, config.train, config.optimizer)
    share = 1.0 - config.data.evaluate.share if isinstance(config.data.evaluate, RandomShare) else 1.0
    display = TrainingDisplay(folder.open_log, config.output.log_every, share, stream)
    try:
        result = trainer.fit(
            log,
            validation,
            observer=display,
            checkpoints=_PendingCheckpoints(assembly, folder),
            save_every=config.output.checkpoint_every,
            resume=state,
        )
    finally:
        display.close()
    run = folder.make()
    report = _report(assembly, name, result, resumed_from)
    write_report(run, report)
    return FinishedRun(run, report)


def _checkpoint_to_resume(run: RunFolder) -> Checkpoint:
    checkpoint, skipped = latest_checkpoint(run.checkpoints)
    if checkpoint is None:
        reasons = "".join(f"\n  {entry.path}: {entry.reason}" for entry in skipped)
        raise UsageError(f"expected a complete checkpoint in {run.checkpoints} to resume from, got none{reasons}")
    return checkpoint


def _check_same_features(checkpoint: Checkpoint, features: FeatureMap) -> None:
    saved = FeatureMap.from_dict(checkpoint.manifest.feature_map, f"{checkpoint.path} (feature map)")
    if saved.hash != features.hash:
        raise CheckpointMismatchError(
            f"expected the feature map of {checkpoint.path} (hash {saved.hash[:12]}…), got another one "
            f"({features.hash[:12]}…): keys or layout would differ"
        )


def _report(assembly: Assembly, name: str, result: TrainResult, resumed_from: str | None) -> RunReport:
    dims = {table.name: table.dim for table in assembly.store.tables()}
    stats = assembly.store.stats()
    return RunReport(
        name=name,
        auc=_defined(result.auc),
        logloss=_defined(result.logloss),
        examples=result.examples,
        examples_per_second=result.examples_per_second,
        seconds=result.seconds,
        steps=result.steps,
        rows=result.rows,
        checkpoint=result.checkpoint,
        resumed_from=resumed_from,
        stopped=result.stopped,
        refused_rows=result.refused_rows,
        history=[
            {
                "step": entry.step,
                "epoch": entry.epoch,
                "auc": _defined(entry.auc),
                "logloss": _defined(entry.logloss),
                "note": entry.note,
            }
            for entry in result.history
        ],
        tables=[
            TableSize(table, dims[table], rows, sum(stats[table].bytes_by_part.values()))
            for table, rows in result.rows_by_table.items()
        ],
        machine=machine(),
        versions={"python": platform.python_version(), **{package: version(package) for package in REPORTED_VERSIONS}},
    )


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value
