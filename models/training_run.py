"""TrainingRun: one call of `fit`, from its first batch (or a checkpoint's next one) to its result."""

from __future__ import annotations

import math
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ..datasets.batch_stream import ReadPosition
from ..datasets.click_log import ClickLog
from ..embedding.policies import evicts_by_age_or_value
from ..feature_map.feature_map import FeatureMap
from .config import EarlyStop
from .epoch_batches import EpochBatches
from .errors import ModelSpecError, ResumeMismatchError, TrainedBeforeError, TrainingDivergedError
from .evaluation import evaluate
from .eviction_sweep import EvictionSweep
from .kept_back import KeptBack
from .metrics import Metrics
from .prefetch_pipeline import prefetch
from .train_result import Checkpoints, Evaluation, TrainObserver, TrainResult
from .trainer_state import TrainerState, dense_arrays, load_dense_arrays

if TYPE_CHECKING:
    from .trainer import Trainer


@dataclass(slots=True)
class _Progress:
    """Where the run is: what comes next, and what came of it so far."""

    step: int = 0
    epoch: int = 0
    unit: int = 0
    batch: int = 0
    examples: int = 0
    seconds: float = 0.0
    history: list[Evaluation] = field(default_factory=list)
    best: Evaluation | None = None
    bad_evaluations: int = 0
    saved_step: int = -1
    checkpoint: str | None = None
    best_checkpoint: str | None = None
    evicted: Counter[str] = field(default_factory=Counter)
    kept_back: KeptBack = field(default_factory=KeptBack)


class TrainingRun:
    """One call of `Trainer.fit`: segments of steps with nothing on its way between them.

    Thread safety: one thread.
    """

    def __init__(
        self,
        trainer: Trainer,
        log: ClickLog,
        validation: ClickLog | None,
        observer: TrainObserver,
        checkpoints: Checkpoints | None,
        save_every: int | None,
    ) -> None:
        self.trainer = trainer
        self.config = trainer.config
        self.log = log
        self.validation = validation
        self.observer = observer
        self.checkpoints = checkpoints
        self.save_every = save_every
        self.at = _Progress()
        self.features: FeatureMap = trainer.embeddings.features  # type: ignore[assignment]
        if validation is not None and len(self.features.labels) > 1:
            raise ModelSpecError(f"expected one label to evaluate by, got {list(self.features.labels)}")
        self.resumed = False
        self.repeated_before = trainer.embeddings.counts.repeated
        self.fenced_before = trainer.embeddings.counts.fenced
        self.evicted_before = Counter(trainer.embeddings.counts.evicted)
        self.kept_back_before = KeptBack().plus(trainer.embeddings.counts.kept_back)
        evicts = any(evicts_by_age_or_value(table) for table in trainer.embeddings.layout.configs)
        self._sweep = EvictionSweep(
            trainer.embeddings.store, self.config.evict_every, evicts=evicts, step=trainer.rows.steps
        )
        self._epoch: EpochBatches | None = None
        self._open_units: dict[int, int] = {}  # their places in the epoch
        self._data = log.fingerprint()
        rows = log.rows()
        self.total = None if rows is None else rows * self.config.epochs

    # --- resume -------------------------------------------------------------------------------------------------------

    def _settings(self) -> dict[str, Any]:
        """What decides which examples a batch holds; a resumed run must agree on it."""
        config = self.config
        return {
            "run": self.log.run,
            "seed": config.seed,
            "batch_size": config.batch_size,
            "shuffle": config.shuffle,
        }

    def go_on(self, state: TrainerState) -> None:
        """Take up the state of a checkpoint."""
        for name, expected in self._settings().items():
            if state.cursor[name] != expected:
                raise ResumeMismatchError(
                    f"expected {name} {state.cursor[name]} as in the checkpoint, got {expected}: batches would "
                    "not be the ones that were left to train"
                )
        is_inside = state.cursor["unit"] > 0 or state.cursor["batch"] > 0
        if is_inside and state.cursor.get("data", self._data) != self._data:
            raise ResumeMismatchError(
                f"expected the click log of the checkpoint, which is inside epoch {state.cursor['epoch']}, got other "
                "files, rows, unit_rows or evaluation rows: some rows would be trained twice and others never; data "
                "may change between epochs"
            )
        self._load(state)
        # What pushed these units after the checkpoint, and may have completed them, is not what goes on now: above all
        # leases before, also those of another resume of this checkpoint.
        known = max(int(state.cursor.get("lease", 1)), self.trainer.embeddings.lease)
        self.trainer.embeddings.lease = max(known + 1, time.time_ns() // 1_000_000)
        self.resumed = True

    def _load(self, state: TrainerState) -> None:
        load_dense_arrays(state.dense, self.trainer.model, self.trainer.dense)
        self.trainer.rows.load_state_dict(state.scalars["rows"])
        at, cursor = self.at, state.cursor
        at.step, at.epoch, at.unit, at.batch = state.step, cursor["epoch"], cursor["unit"], cursor["batch"]
        at.history = [Evaluation.of_json(entry) for entry in state.scalars["history"]]
        at.bad_evaluations = state.scalars["bad_evaluations"]
        at.kept_back = KeptBack.of_json(state.scalars.get("kept_back", {}))
        at.evicted = Counter(state.scalars.get("evicted", {}))
        self._sweep.go_on(self.trainer.rows.steps, state.scalars.get("now", 0))
        best = state.scalars["best"]
        at.best = None if best is None else Evaluation.of_json(best)
        # A checkpoint cannot hold its own name: where it is itself the best one, the reader gives the name.
        is_best = at.best is not None and at.best.step == state.step
        at.best_checkpoint = state.name if is_best else state.scalars["best_checkpoint"]
        if state.name is not None:
            at.checkpoint, at.saved_step = state.name, state.step

    def _state(self) -> TrainerState:
        at = self.at
        last = at.history[-1] if at.history else None
        scalars = {
            "auc": None if last is None or math.isnan(last.auc) else last.auc,
            "logloss": None if last is None or math.isnan(last.logloss) else last.logloss,
            "rows": self.trainer.rows.state_dict(),
            "history": [entry.as_json() for entry in at.history],
            "best": None if at.best is None else at.best.as_json(),
            "best_checkpoint": at.best_checkpoint,
            "bad_evaluations": at.bad_evaluations,
            "kept_back": self._kept_back().as_json(),
            "evicted": dict(self._evicted()),
            "now": self._sweep.now,
        }
        place = {"epoch": at.epoch, "unit": at.unit, "batch": at.batch}
        cursor = {**self._settings(), "data": self._data, "lease": self.trainer.embeddings.lease, **place}
        return TrainerState(at.step, cursor, scalars, dense_arrays(self.trainer.model, self.trainer.dense))

    # --- train --------------------------------------------------------------------------------------------------------

    def train(self) -> TrainResult:
        """Train to the end and say what came of it."""
        repeats_expected, self.trainer.embeddings.repeats_expected = self.trainer.embeddings.repeats_expected, True
        try:
            return self._train()  # which tells repeated pushes by TrainedBeforeError
        finally:
            self.trainer.embeddings.repeats_expected = repeats_expected
            if self._epoch is not None:
                self._epoch.close()

    def _train(self) -> TrainResult:
        stopped = "finished"
        self.trainer.model.train()
        self.trainer.embeddings.train()
        if self.resumed and self.at.best is None and self.at.history:
            self._evaluate()  # other features than those that were measured: where the run goes on from
        while not self._is_over():
            ended = self._segment()
            if self.config.evict_every is None and ended:
                self._sweep.all_tablets()
            if (self._is_due(self.config.evaluate_every, ended) or self._is_over()) and not self._is_evaluated():
                self._evaluate()
            if self._should_stop():
                stopped = "early_stop"
                break
            if self._is_due(self.save_every, ended):
                self._save()
        else:
            stopped = "finished" if self.at.epoch >= self.config.epochs else "max_steps"
        if not self._is_evaluated():
            self._evaluate()
        shown = self.at.history[-1] if self.at.history else None
        if self._can_go_back():
            shown = self._go_back_to_best()
        else:
            self._save()
        return self._result(stopped, shown)

    def _kept_back(self) -> KeptBack:
        """Over the whole run, resumes included."""
        return self.at.kept_back.plus(self.trainer.embeddings.counts.kept_back.since(self.kept_back_before))

    def _evicted(self) -> Counter[str]:
        """By table, over the whole run; tables that lost no row are left out."""
        return self.at.evicted + self._sweep.evicted + (self.trainer.embeddings.counts.evicted - self.evicted_before)

    def _is_over(self) -> bool:
        at, config = self.at, self.config
        return at.epoch >= config.epochs or (config.max_steps is not None and at.step >= config.max_steps)

    def _is_evaluated(self) -> bool:
        return bool(self.at.history) and self.at.history[-1].step == self.at.step

    def _is_due(self, every: int | None, epoch_ended: bool) -> bool:
        return epoch_ended if every is None else self.at.step % every == 0

    def _segment(self) -> bool:
        """Train up to the next evaluation, checkpoint or the end of the epoch; whether the epoch ended."""
        at, config = self.at, self.config
        limits = [every - at.step % every for every in (config.evaluate_every, self.save_every) if every is not None]
        if config.max_steps is not None:
            limits.append(config.max_steps - at.step)
        limit = min(limits) if limits else None
        if self._epoch is None:
            start = ReadPosition(at.epoch, at.unit, at.batch)
            self._epoch = EpochBatches(
                self.log,
                self.features,
                config.batch_size,
                start,
                seed=config.seed,
                shuffle=config.shuffle,
                # An epoch's evaluation is of the rows that its sweep leaves, so its end is to be known before.
                looks_ahead=self.log.rows() is not None or self._sweep.follows_epochs,
            )
        epoch = self._epoch
        began = time.perf_counter()
        pulled = prefetch(
            epoch.segment(limit),
            self.trainer.embeddings,
            config.pipeline_depth,
            synchronous_steps=config.synchronous_steps,
            before_push=self._sweep.before_push,
        )
        with closing(pulled) as batches:  # type: ignore[type-var]
            for batch, inputs in batches:
                loss = self.trainer.step(batch, inputs)
                at.step, at.examples = at.step + 1, at.examples + len(batch)
                if batch.id is not None:
                    after = epoch.after(batch.id)
                    self._open_units[batch.id.unit] = after.unit
                    at.unit, at.batch = after.unit, after.batch
                self._report(loss)
        at.seconds += time.perf_counter() - began
        for unit in [unit for unit, place in self._open_units.items() if epoch.is_end or place < at.unit]:
            self.trainer.embeddings.complete_unit(unit)
            del self._open_units[unit]
        if epoch.is_end:
            at.epoch, at.unit, at.batch = at.epoch + 1, 0, 0
            at.saved_step = -1  # a checkpoint of this step goes on inside the epoch
            self._epoch = None
        self._check_trained_once()
        return epoch.is_end

    def _report(self, loss: torch.Tensor) -> None:
        value = loss.item()
        if not math.isfinite(value):
            raise TrainingDivergedError(
                f"expected a finite loss, got {value} at step {self.at.step}, epoch {self.at.epoch}: lower the "
                "learning rates (optimizer.rows.lr, optimizer.dense.lr), clip (train.clip_norm), or look for extreme "
                "dense values"
            )
        self.observer.on_progress(
            step=self.at.step, epoch=self.at.epoch, examples=self.at.examples, total=self.total, loss=value
        )

    def _check_trained_once(self) -> None:
        repeated = self.trainer.embeddings.counts.repeated - self.repeated_before
        if repeated and not self.resumed:
            raise TrainedBeforeError(
                f"expected batches that this store has not applied yet, got {repeated} of run {self.log.run} again: "
                "they were not applied a second time; open the click log anew, or with another run"
            )
        if fenced := self.trainer.embeddings.counts.fenced - self.fenced_before:
            raise TrainedBeforeError(
                f"expected the store to take the batches of run {self.log.run}, got {fenced} refused: their work units "
                "are completed, or another process has gone on with this run since"
            )

    # --- evaluate, save -----------------------------------------------------------------------------------------------

    def _evaluate(self) -> None:
        if self.validation is None:
            return
        at, trainer = self.at, self.trainer
        batches = self.validation.batches(self.features, self.config.batch_size, epoch=0)
        metrics: Metrics = evaluate(trainer.model, trainer.embeddings, batches)
        found = Evaluation(at.step, at.epoch, metrics.auc, metrics.logloss, metrics.examples, metrics.note)
        at.history.append(found)
        if found.examples == 0:  # it tells neither for nor against the model
            self.observer.on_evaluation(found, is_best=False)
            return
        at.saved_step = -1  # a checkpoint of this step does not know of it
        is_best = at.best is None or _is_better(found, at.best, self.config.early_stop or EarlyStop())
        at.bad_evaluations = 0 if is_best else at.bad_evaluations + 1
        if is_best:
            at.best = found
            if self.config.early_stop is not None:
                self._save()
        self.observer.on_evaluation(found, is_best=is_best)

    def _should_stop(self) -> bool:
        stop = self.config.early_stop
        return stop is not None and self.at.bad_evaluations >= stop.patience

    def _save(self) -> None:
        if self.checkpoints is None or self.at.saved_step == self.at.step:
            return
        at = self.at
        is_best = at.best is not None and at.best.step == at.step
        name = self.checkpoints.save(self._state(), is_best=is_best)
        at.checkpoint, at.saved_step = name, at.step
        if is_best:
            at.best_checkpoint = name
        self.trainer.embeddings.checkpoint = name
        self.observer.on_checkpoint(at.step, name)

    def _can_go_back(self) -> bool:
        at = self.at
        is_older = at.best is not None and at.best.step != at.step
        return self.config.early_stop is not None and is_older and at.best_checkpoint is not None

    def _go_back_to_best(self) -> Evaluation | None:
        at = self.at
        if self.checkpoints is not None and at.best_checkpoint is not None:
            state = self.checkpoints.restore(at.best_checkpoint)
            load_dense_arrays(state.dense, self.trainer.model, self.trainer.dense)
            self.trainer.rows.load_state_dict(state.scalars["rows"])
            at.checkpoint = self.trainer.embeddings.checkpoint = at.best_checkpoint
        return at.best

    def _result(self, stopped: str, shown: Evaluation | None) -> TrainResult:
        at = self.at
        rows = self.trainer.embeddings.rows_by_table()
        return TrainResult(
            auc=float("nan") if shown is None else shown.auc,
            logloss=float("nan") if shown is None else shown.logloss,
            examples=at.examples,
            examples_per_second=at.examples / at.seconds if at.seconds else 0.0,
            seconds=at.seconds,
            steps=at.step,
            rows=sum(rows.values()),
            rows_by_table=rows,
            stopped=stopped,
            history=tuple(at.history),
            checkpoint=at.checkpoint,
            best_step=None if at.best is None else at.best.step,
            evicted=self._evicted(),
            kept_back=self._kept_back(),
        )


def _is_better(found: Evaluation, best: Evaluation, stop: EarlyStop) -> bool:
    if stop.metric == "auc":
        return found.auc > best.auc + stop.min_delta or math.isnan(best.auc) > math.isnan(found.auc)
    return found.logloss < best.logloss - stop.min_delta
