"""One training run from its configuration to its report."""

from __future__ import annotations

import math
import platform
import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TextIO

from ..benchmarks.measurement import machine
from ..datasets import ClickLog
from ..embedding.checkpoint import Checkpoint, latest_checkpoint
from ..embedding.table_config import unknown_table
from ..feature_map import FeatureMap
from ..feature_map.yaml_file import write_yaml
from ..models.train_result import TrainResult
from ..models.trainer import Trainer
from ..models.trainer_state import TrainerState
from .assembly import Assembly, assembled
from .data_config import evaluation_log, train_log
from .errors import UsageError
from .evaluation import runs_folder
from .feature_statistics import with_statistics
from .metrics_log import MetricsLog
from .report import RunReport, TableReport, write_report
from .resume_plan import ResumePlan, plan_resume, resumed_state
from .run_checkpoints import RunCheckpoints
from .run_config import RunConfig
from .run_folder import RunFolder, check_new_run, last_run, new_run
from .split_check import check_split
from .store_config import ClusterStoreConfig
from .training_display import TrainingDisplay
from .value_keeping import VALUES_FOLDER, ValueKeeper

REPORTED_VERSIONS = ("embershard", "torch", "numpy", "pyarrow")


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run that has ended: its folder and what was measured."""

    folder: RunFolder
    report: RunReport


def train_run(
    config: RunConfig, source: Path, *, resume: bool, stream: TextIO, reinit: Sequence[str] = ()
) -> FinishedRun:
    """Train as configured; progress goes to `stream`.

    source: the configuration file; the runs are named after it.
    reinit: tables that a resume starts anew.
    A run's folder is made when its first batch has been trained: bad input leaves nothing behind.
    Raises: UsageError where there is nothing to resume; CheckpointMismatchError naming what does not fit; whatever
    reading, training and saving raise."""
    runs = runs_folder(config.output.folder, source)
    if not resume:
        check_new_run(runs, config.output.name)
        check_split(config.data, FeatureMap.of(config.features), source)
        config = _with_statistics(config)
        with ExitStack() as held, assembled(config, FeatureMap.of(config.features)) as assembly:
            return _train(assembly, _PendingFolder(runs, config, held), source.stem, None, stream)
    run = last_run(runs, config.output.name)
    with ExitStack() as held, run.trained_alone(), _checkpoint_to_resume(run) as checkpoint:
        plan = plan_resume(checkpoint, config, reinit)
        check_split(plan.config.data, FeatureMap.of(plan.config.features), source)
        plan = replace(plan, config=_with_statistics(plan.config))
        state = resumed_state(checkpoint, plan)
        for line in plan.changes:
            stream.write(f"{line}\n")
        config, gone = plan.config, (*plan.dropped, *plan.anew)
        with assembled(config, FeatureMap.of(config.features), without=gone) as assembly:
            _check_no_others(plan, assembly)
            checkpoint.restore(assembly.store, only=plan.kept)
            folder = _PendingFolder(runs, config, held, run, is_changed=bool(plan.changes))
            return _train(assembly, folder, source.stem, _Resumed(state, checkpoint.path, plan.changes), stream)


def _check_no_others(plan: ResumePlan, assembly: Assembly) -> None:
    """Raises: UsageError where the store has rows of tables that are not the run's: restoring empties them."""
    # A checkpoint has all tables of its store; those of its run are its feature map's.
    present = {table.name for table in plan.old.tables} | set(assembly.embeddings.layout.tables)
    own = present | {unknown_table(table).name for table in assembly.store.tables() if table.name in present}
    others = sorted(name for name, stats in assembly.store.stats().items() if stats.rows and name not in own)
    if others:
        raise UsageError(
            f"expected a cluster with the rows of this run alone, got rows in tables {others} too: a resume puts all "
            "tablets back to the checkpoint and would empty them; give each run a cluster of its own"
        )


@dataclass(frozen=True, slots=True)
class _Resumed:
    """What a run goes on from."""

    state: TrainerState
    checkpoint: str
    changes: tuple[str, ...]


class _PendingFolder:
    """A run's folder that is made when it is first asked for; `is_changed`: with another configuration in it.

    held: keeps the lock of a folder that is made."""

    def __init__(
        self,
        runs: Path,
        config: RunConfig,
        held: ExitStack,
        run: RunFolder | None = None,
        *,
        is_changed: bool = False,
    ) -> None:
        self._runs, self._config, self._run, self._is_changed = runs, config, run, is_changed
        self._held = held

    def make(self) -> RunFolder:
        run = self._run
        if run is None:
            run = self._make_new()
        elif self._is_changed or not run.config.exists():
            write_yaml(run.config, self._config.to_dict())
        self._run, self._is_changed = run, False
        return run

    def _make_new(self) -> RunFolder:
        run = new_run(self._runs, self._config.output.name)
        with ExitStack() as made:
            made.enter_context(run.trained_alone())
            check_new_run(self._runs, self._config.output.name)  # another process may have made and left it since
            try:
                write_yaml(run.config, self._config.to_dict())
            except OSError:
                made.close()
                run.path.rmdir()
                raise
            self._held.enter_context(made.pop_all())
        return run

    def open_log(self) -> MetricsLog:
        run = self.make()
        return MetricsLog(run.metrics, run.tensorboard if self._config.output.tensorboard else None)


class _PendingCheckpoints:
    """Checkpoints in a folder that is made at the first save."""

    def __init__(self, assembly: Assembly, folder: _PendingFolder, keeper: ValueKeeper | None) -> None:
        self._assembly, self._folder, self._keeper = assembly, folder, keeper

    def _made(self) -> RunCheckpoints:
        assembly = self._assembly
        return RunCheckpoints(self._folder.make().checkpoints, assembly.store, assembly.config, assembly.features)

    def save(self, state: TrainerState, *, is_best: bool) -> str:
        if self._keeper is not None:
            self._keeper.save(self._folder.make().path / VALUES_FOLDER)
        return self._made().save(state, is_best=is_best)

    def restore(self, name: str) -> TrainerState:
        return self._made().restore(name)


def _train(
    assembly: Assembly,
    folder: _PendingFolder,
    name: str,
    resumed: _Resumed | None,
    stream: TextIO,
) -> FinishedRun:
    config, features = assembly.config, assembly.features
    state = None if resumed is None else resumed.state
    run_id = _new_run_id(config) if state is None else int(state.cursor["run"])
    keeper = (
        ValueKeeper(features, f"step{0 if state is None else state.step}") if ValueKeeper.is_needed(features) else None
    )
    log: ClickLog = train_log(config.data, features.columns, run_id, [] if keeper is None else [keeper])
    validation = evaluation_log(config.data, features.columns)
    trainer = Trainer(assembly.model, assembly.embeddings, config.train, config.optimizer)
    display = TrainingDisplay(folder.open_log, config.output.log_every, stream)
    try:
        result = trainer.fit(
            log,
            validation,
            observer=display,
            checkpoints=_PendingCheckpoints(assembly, folder, keeper),
            save_every=config.output.checkpoint_every,
            resume=state,
        )
    finally:
        display.close()
        if keeper is not None:
            keeper.close()
    run = folder.make()
    report = _report(assembly, name, result)
    if resumed is not None:
        report = replace(report, resumed_from=resumed.checkpoint, changes=resumed.changes)
    write_report(run, report)
    return FinishedRun(run, report)


def _new_run_id(config: RunConfig) -> int:
    """The seed, so that a run repeats to the bit; on a running cluster a number of its own, since shards that were
    trained by a run of the same seed would take its batches for ones they have applied."""
    is_shared = isinstance(config.store, ClusterStoreConfig) and config.store.address is not None
    return secrets.randbits(63) if is_shared else config.train.seed


def _checkpoint_to_resume(run: RunFolder) -> Checkpoint:
    checkpoint, skipped = latest_checkpoint(run.checkpoints)
    if checkpoint is None:
        reasons = "".join(f"\n  {entry.path}: {entry.reason}" for entry in skipped)
        raise UsageError(f"expected a complete checkpoint in {run.checkpoints} to resume from, got none{reasons}")
    return checkpoint


def _with_statistics(config: RunConfig) -> RunConfig:
    """The configuration with the means, ranges and quantiles that its features learn from the rows that train."""
    features = FeatureMap.of(config.features)
    if not features.unlearned:
        return config
    log = train_log(config.data, features.columns, run=0)
    return config.model_copy(update={"features": with_statistics(features, log, config.data.unit_rows).config})


def _report(assembly: Assembly, name: str, result: TrainResult) -> RunReport:
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
        stopped=result.stopped,
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
            TableReport(
                table,
                dims[table],
                rows,
                sum(stats[table].bytes_by_part.values()),
                evicted=result.evicted[table],
                held_out=result.kept_back.held_out[table],
                non_finite=result.kept_back.non_finite[table],
                clipped=result.kept_back.clipped[table],
            )
            for table, rows in result.rows_by_table.items()
        ],
        machine=machine(),
        versions={"python": platform.python_version(), **{package: version(package) for package in REPORTED_VERSIONS}},
    )


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value
