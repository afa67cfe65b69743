"""Trainer: metrics, early stop, checkpoints, and resume that equals a run that was not stopped, to the bit."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import embershard as es
from embershard.datasets.split import RandomPart
from embershard.datasets.synthetic import SyntheticClicks, write_synthetic_clicks
from embershard.embedding.errors import CheckpointMismatchError
from embershard.embedding.table_config import Score
from embershard.feature_map.feature_config import EventTime
from embershard.models.config import (
    DeepFMConfig,
    DenseAdagrad,
    DenseAdam,
    DenseSgd,
    EarlyStop,
    FactorizationMachineConfig,
    LogisticRegressionConfig,
    OptimizerConfig,
    TrainConfig,
)
from embershard.models.errors import ModelSpecError, ResumeMismatchError, TrainedBeforeError, TrainingDivergedError
from embershard.models.evaluation import predict
from embershard.models.model_factory import build_embeddings, build_model
from embershard.models.table_options import TableOptions
from embershard.models.train_result import Evaluation, TrainObserver, TrainResult
from embershard.models.trainer import Trainer
from embershard.models.trainer_state import TrainerState

MODEL = DeepFMConfig(dim=4, hidden=(16,), dropout=0.2)
OPTIMIZER = OptimizerConfig(rows=es.Adagrad(lr=0.05))
SCORE = Score(min_score=6.0, half_life_seconds=60, show_weight=0.5, click_weight=2.0)
SCORED = MODEL.model_copy(update={"tables": TableOptions(eviction=(SCORE,))})


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = SyntheticClicks(rows=6_000, features=4, min_ids=8, max_ids=200)
    return write_synthetic_clicks(tmp_path_factory.mktemp("clicks") / "clicks.parquet", shape)


def feature_map() -> es.FeatureMap:
    return es.FeatureMap(
        [*(es.Categorical(name=f"c{i}") for i in range(1, 5)), es.Numeric(name="n1", transform=("log1p",))],
        label="label",
    )


@pytest.mark.parametrize("limit", [1 << 18, 1])
def test_a_small_model_is_stepped_on_one_thread(clicks: Path, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embershard.models.trainer.SMALL_DENSE", limit)
    before, found = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        with es.LocalStore() as store:
            embeddings = build_embeddings(MODEL, OPTIMIZER, feature_map(), store, device="cpu")
            trainer = Trainer(build_model(MODEL, feature_map()), embeddings, TrainConfig(batch_size=2048), OPTIMIZER)
            assert trainer.dense is not None
            trainer.dense.register_step_post_hook(lambda *_: found.append(torch.get_num_threads()))
            trainer.fit(es.ClickLog(clicks))
        assert set(found) == {1 if limit > 1 else 2}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


class MemoryCheckpoints:
    """Keeps states and rows in memory."""

    def __init__(self, store: es.LocalStore) -> None:
        self.store = store
        self.saved: dict[str, tuple[TrainerState, list[Any]]] = {}
        self.best: list[str] = []

    def save(self, state: TrainerState, *, is_best: bool) -> str:
        name = f"step-{state.step}"
        tablets = [self.store.snapshot(tablet) for tablet in range(1 << self.store.tablet_bits)]
        self.saved[name] = (state, tablets)
        if is_best:
            self.best.append(name)
        return name

    def restore(self, name: str, store: es.LocalStore | None = None) -> TrainerState:
        state, tablets = self.saved[name]
        for snapshot in tablets:
            (store or self.store).restore(snapshot)
        return replace(state, name=name)


class Job:
    """A fresh store, collection, model and trainer."""

    def __init__(self, config: TrainConfig, model: Any = MODEL, optimizer: OptimizerConfig = OPTIMIZER) -> None:
        self.store = es.LocalStore(tablet_bits=3)
        features = feature_map()
        embeddings = build_embeddings(model, optimizer, features, self.store, seed=config.seed, device="cpu")
        self.trainer = Trainer(build_model(model, features, config.seed), embeddings, config, optimizer)
        self.checkpoints = MemoryCheckpoints(self.store)

    def fit(self, clicks: Path, validation: Path | None = None, **options: Any) -> TrainResult:
        log = es.ClickLog(clicks, unit_rows=1_000, run=11)
        return self.trainer.fit(log, None if validation is None else es.ClickLog(validation), **options)

    def bits(self) -> dict[str, np.ndarray]:
        found = {f"dense/{name}": value.numpy() for name, value in self.trainer.model.state_dict().items()}
        for tablet in range(8):
            for table, rows in self.store.snapshot(tablet).tables.items():
                for part in ("keys", "weights", "state", "count", "clicks"):
                    found[f"{tablet}/{table}/{part}"] = getattr(rows, part)
        return found


def assert_same_bits(first: Job, second: Job) -> None:
    for name, value in first.bits().items():
        np.testing.assert_array_equal(value, second.bits()[name], err_msg=name)


CONFIG = TrainConfig(batch_size=128, epochs=2, seed=3, synchronous_steps=8)


def test_fit_learns_and_says_what_came_of_it(clicks: Path) -> None:
    job = Job(TrainConfig(batch_size=64, epochs=3), model=FactorizationMachineConfig(dim=4))
    result = job.fit(clicks, clicks)
    assert result.stopped == "finished"
    assert result.examples == 18_000
    assert result.steps == 3 * 6 * 16  # 1,000 rows a unit: 15 batches of 64 and one of 40
    assert [entry.epoch for entry in result.history] == [1, 2, 3]
    assert result.auc == result.history[-1].auc > 0.75
    assert result.logloss < 0.5
    assert result.rows == sum(result.rows_by_table.values()) == sum(s.rows for s in job.store.stats().values())
    assert result.examples_per_second == pytest.approx(result.examples / result.seconds)


def test_counts_of_rows_equal_value_counts_of_the_log(clicks: Path) -> None:
    job = Job(TrainConfig(batch_size=100, epochs=1, pipeline_depth=2, synchronous_steps=8))
    job.fit(clicks)
    keys, counts = np.unique(feature_map().encode(pq.read_table(clicks)).keys_of("c3"), return_counts=True)
    found: dict[int, int] = {}
    for tablet in range(8):
        rows = job.store.snapshot(tablet).tables["c3"]
        found.update(zip(rows.keys.tolist(), rows.count.tolist(), strict=True))
    assert found == dict(zip(keys.tolist(), counts.tolist(), strict=True))


def test_counts_and_clicks_of_rows_equal_those_of_the_log(clicks: Path) -> None:
    job = Job(TrainConfig(batch_size=100, epochs=2, pipeline_depth=1, evict_every=10_000), SCORED)
    job.fit(clicks)
    log = pq.read_table(clicks)
    keys, place, counts = np.unique(feature_map().encode(log).keys_of("c3"), return_inverse=True, return_counts=True)
    clicked = np.bincount(place.reshape(-1), weights=log["label"].to_numpy()).astype(int)
    found: dict[int, tuple[int, int]] = {}
    for tablet in range(8):
        rows = job.store.snapshot(tablet).tables["c3"]
        counted = zip(rows.count.tolist(), rows.clicks.tolist(), strict=True)
        found.update(zip(rows.keys.tolist(), counted, strict=True))
    expected = zip((2 * counts).tolist(), (2 * clicked).tolist(), strict=True)
    assert found == dict(zip(keys.tolist(), expected, strict=True))


def test_rows_below_the_score_leave_before_the_checkpoint_of_an_epoch(clicks: Path) -> None:
    job = Job(TrainConfig(batch_size=100, epochs=1), SCORED)
    job.fit(clicks, checkpoints=job.checkpoints)
    encoded, label = feature_map().encode(pq.read_table(clicks)), pq.read_table(clicks)["label"].to_numpy()
    left = 0
    for feature in ("c1", "c2", "c3", "c4"):
        keys, place, counts = np.unique(encoded.keys_of(feature), return_inverse=True, return_counts=True)
        clicked = np.bincount(place.reshape(-1), weights=label)
        stays = 0.5 * (counts - clicked) + 2.0 * clicked >= 6.0
        _, tablets = job.checkpoints.saved["step-60"]
        saved = np.concatenate([tablet.tables[feature].keys for tablet in tablets])
        assert set(saved.tolist()) == set(keys[stays].tolist())
        left += int((~stays).sum())
    assert left > 10


def timed_log(clicks: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log with example number n at n seconds after 5,000, for a feature map that reads the time."""
    timed = es.FeatureMap([es.Categorical(name="c1")], label="label", event_time=EventTime(column="at", unit="s"))
    monkeypatch.setattr(f"{__name__}.feature_map", lambda: timed)
    log = pq.read_table(clicks).append_column("at", pa.array(np.arange(6_000) + 5_000))
    pq.write_table(log, folder / "timed.parquet")
    return folder / "timed.parquet"


def seen_evictions(job: Job, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, list[int]]]:
    """(pushes made, now, tablets) of each eviction of the job, which removes nothing."""
    seen: list[tuple[int, int, list[int]]] = []

    def evict(now: int, tablets: np.ndarray) -> dict[str, int]:
        seen.append((job.trainer.embeddings.counts.pushes, now, np.flatnonzero(tablets).tolist()))
        return {}

    monkeypatch.setattr(job.store, "evict", evict)
    return seen


TTL = SCORED.model_copy(update={"tables": TableOptions(eviction=(es.Ttl(ttl_seconds=10_000_000),))})


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("every", [3, 8, 40])
def test_evictions_come_between_pushes_a_few_tablets_at_a_time_by_the_time_of_the_data(
    clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int, depth: int
) -> None:
    log = timed_log(clicks, tmp_path, monkeypatch)
    job = Job(CONFIG.model_copy(update={"evict_every": every, "shuffle": False, "pipeline_depth": depth}), TTL)
    seen = seen_evictions(job, monkeypatch)
    job.fit(log, log, save_every=7)
    assert min(pushes for pushes, _, _ in seen) >= every
    for interval in range(every, 96 - every, every):
        of_interval = [entry for entry in seen if interval <= entry[0] < interval + every]
        assert [tablet for _, _, tablets in of_interval for tablet in tablets] == list(range(8))
        assert max(len(tablets) for _, _, tablets in of_interval) == -(-8 // every)
    # Eight steps to a unit of 1,000 examples: seven of 128 and one of 104.
    trained = np.cumsum([128, 128, 128, 128, 128, 128, 128, 104] * 12)
    assert all(now == 4_999 + min(trained[pushes - 1], 6_000) for pushes, now, _ in seen)


def test_evictions_after_an_epoch_look_at_all_tablets(
    clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = timed_log(clicks, tmp_path, monkeypatch)
    job = Job(CONFIG.model_copy(update={"shuffle": False}), TTL)
    seen = seen_evictions(job, monkeypatch)
    job.fit(log)
    assert seen == [(pushes, 10_999, [tablet]) for pushes in (48, 96) for tablet in range(8)]


def test_tables_without_such_policies_are_not_scanned(clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(CONFIG.model_copy(update={"evict_every": 40}))
    monkeypatch.setattr(job.store, "evict", None)
    assert job.fit(clicks).steps == 96


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_same_seed_gives_same_bits_and_another_does_not(clicks: Path, depth: int) -> None:
    config = CONFIG.model_copy(update={"pipeline_depth": depth, "epochs": 1})
    jobs = [Job(config), Job(config), Job(config.model_copy(update={"seed": 4}))]
    for job in jobs:
        job.fit(clicks)
    assert_same_bits(jobs[0], jobs[1])
    assert not np.array_equal(jobs[0].bits()["dense/mlp.0.weight"], jobs[2].bits()["dense/mlp.0.weight"])


@pytest.mark.parametrize(
    ("depth", "stop", "model"),
    [
        *((depth, stop, MODEL) for depth, stop in [(0, 20), (0, 47), (0, 48), (2, 5), (2, 20)]),
        *((depth, stop, SCORED) for depth, stop in [(0, 30), (0, 37), (0, 48), (2, 20)]),
    ],
)
def test_stopped_and_resumed_equals_straight(clicks: Path, depth: int, stop: int, model: DeepFMConfig) -> None:
    config = CONFIG.model_copy(
        update={"pipeline_depth": depth, "max_steps": 80, "evict_every": 15 if stop < 40 else None}
    )
    straight = Job(config, model)
    # A checkpoint is a moment without pushes on their way; at depth > 0 the straight run needs it at the same step.
    straight.fit(clicks, checkpoints=straight.checkpoints, save_every=stop if depth else None)
    stopped = Job(config.model_copy(update={"max_steps": stop}), model)
    assert stopped.fit(clicks, checkpoints=stopped.checkpoints).stopped == "max_steps"
    resumed = Job(config, model)
    state = stopped.checkpoints.restore(f"step-{stop}", resumed.store)
    result = resumed.fit(clicks, checkpoints=resumed.checkpoints, save_every=stop, resume=state)
    assert result.steps == 80
    assert result.stopped == "max_steps"
    assert_same_bits(straight, resumed)


class BlindAtTimes(torch.nn.Module):
    """A model that looks at no rows of every third batch: their gradients are not pushed."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: es.EmbeddingOutput, dense: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return self.model(inputs, dense)
        self.batches += 1
        blind = int(self.batches) % 3 == 0
        return self.model(inputs, dense) if not blind else self.model.bias.expand(len(dense))


def test_stopped_and_resumed_evicts_as_a_straight_run_does_where_batches_have_no_push(
    clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = timed_log(clicks, tmp_path, monkeypatch)
    policy = es.Ttl(ttl_seconds=600)
    model = FactorizationMachineConfig(dim=4, tables=TableOptions(eviction=(policy,)))
    config = CONFIG.model_copy(update={"evict_every": 4, "shuffle": False, "epochs": 1})

    def job(max_steps: int | None = None) -> tuple[Job, list[tuple[int, int, list[int]]]]:
        made = Job(config.model_copy(update={"max_steps": max_steps}), model)
        made.trainer.model = BlindAtTimes(made.trainer.model)
        return made, seen_evictions(made, monkeypatch)

    (straight, all_seen), (stopped, first_seen), (resumed, last_seen) = job(), job(20), job()
    straight.fit(log)
    stopped.fit(log, checkpoints=stopped.checkpoints)
    resumed.fit(log, resume=stopped.checkpoints.restore("step-20", resumed.store))
    made = stopped.trainer.embeddings.counts.pushes
    assert made < 20
    assert all_seen == first_seen + [(pushes + made, *rest) for pushes, *rest in last_seen]
    assert {pushes - at for (pushes, *_), at in zip(all_seen, range(4, 32), strict=True)} == {0}
    assert_same_bits(straight, resumed)


def test_resume_that_has_nothing_left_to_train_saves_nothing(clicks: Path) -> None:
    """A second checkpoint of the same state would push an older one out of those that are kept."""
    job = Job(CONFIG)
    first = job.fit(clicks, clicks, checkpoints=job.checkpoints)
    state = job.checkpoints.restore(f"step-{first.steps}")
    saved = {name: id(entry) for name, entry in job.checkpoints.saved.items()}
    again = job.fit(clicks, clicks, checkpoints=job.checkpoints, resume=state)
    assert (again.checkpoint, again.auc, again.steps) == (first.checkpoint, first.auc, first.steps)
    assert {name: id(entry) for name, entry in job.checkpoints.saved.items()} == saved
    changed = replace(state, name=None)  # as after a change of features
    assert job.fit(clicks, clicks, checkpoints=job.checkpoints, resume=changed).checkpoint == first.checkpoint
    assert id(job.checkpoints.saved[f"step-{first.steps}"]) != saved[f"step-{first.steps}"]


@pytest.mark.parametrize("stop", [None, EarlyStop(patience=2)])
def test_the_first_evaluation_of_a_run_that_has_nothing_left_to_train_is_saved(
    clicks: Path, stop: EarlyStop | None
) -> None:
    config = CONFIG.model_copy(update={"early_stop": stop})
    job = Job(config)
    job.fit(clicks, checkpoints=job.checkpoints)
    result = job.fit(clicks, clicks, checkpoints=job.checkpoints, resume=job.checkpoints.restore("step-96"))
    assert job.checkpoints.best == ["step-96"]
    (state, _) = job.checkpoints.saved["step-96"]
    assert (state.scalars["auc"], state.scalars["best"]["step"], result.best_step) == (result.auc, 96, 96)
    saved = id(state)
    job.fit(clicks, clicks, checkpoints=job.checkpoints, resume=job.checkpoints.restore("step-96"))
    assert id(job.checkpoints.saved["step-96"][0]) == saved


def test_the_last_checkpoint_has_the_last_evaluation(clicks: Path) -> None:
    job, recorder = Job(CONFIG.model_copy(update={"evaluate_every": 40})), Recorder()
    job.fit(clicks, clicks, observer=recorder, checkpoints=job.checkpoints, save_every=48)
    assert [step for step, _ in recorder.checkpoints] == [48, 96]
    state, _ = job.checkpoints.saved["step-96"]
    assert [entry["step"] for entry in state.scalars["history"]] == [40, 80, 96]


def test_a_checkpoint_at_the_last_step_of_an_epoch_has_its_evaluation(clicks: Path) -> None:
    job, recorder = Job(CONFIG), Recorder()
    result = job.fit(clicks, clicks, observer=recorder, checkpoints=job.checkpoints, save_every=48)
    assert [step for step, _ in recorder.checkpoints] == [48, 96]
    assert [entry.step for entry in result.history] == [48, 96]
    assert job.checkpoints.saved["step-48"][0].scalars["auc"] == result.history[0].auc


def test_a_batch_that_cannot_be_read_costs_no_checkpoint_before_it(clicks: Path, tmp_path: Path) -> None:
    lines = [f"{number % 7},{number % 5},1,1,0,0,{number % 2}" for number in range(2_000)]
    lines[1_100] = "not_a_number,1,1,1,0,0,1"
    (tmp_path / "clicks.csv").write_text("\n".join(["c1,c2,c3,c4,n1,n2,label", *lines, ""]))
    job = Job(CONFIG.model_copy(update={"shuffle": False}))
    with pytest.raises(ValueError, match="not_a_number"):
        job.fit(tmp_path / "clicks.csv", checkpoints=job.checkpoints, save_every=8)
    assert list(job.checkpoints.saved) == ["step-8"]


@pytest.mark.parametrize(
    ("change", "named"), [({"seed": 9}, "seed"), ({"batch_size": 64}, "batch_size"), ({"shuffle": False}, "shuffle")]
)
def test_resume_with_other_batches_is_refused(clicks: Path, change: dict[str, Any], named: str) -> None:
    stopped = Job(CONFIG.model_copy(update={"max_steps": 5}))
    stopped.fit(clicks, checkpoints=stopped.checkpoints)
    resumed = Job(CONFIG.model_copy(update=change))
    with pytest.raises(ResumeMismatchError, match=f"expected {named}"):
        resumed.fit(clicks, resume=stopped.checkpoints.restore("step-5", resumed.store))


@pytest.mark.parametrize(
    ("before", "after", "is_refused"),
    [
        (DenseAdam(), DenseAdagrad(), True),
        (DenseAdam(), DenseSgd(), True),
        (DenseAdagrad(), DenseAdam(), True),
        (DenseSgd(momentum=0.9), DenseAdam(), True),
        (DenseAdam(), DenseAdam(lr=0.1, decoupled=True), False),
        (DenseSgd(), DenseAdam(), False),  # it has no state
        (DenseSgd(momentum=0.9), DenseSgd(), False),
    ],
)
def test_state_of_another_dense_optimizer_is_refused(clicks: Path, before: Any, after: Any, is_refused: bool) -> None:
    stopped = Job(CONFIG.model_copy(update={"max_steps": 5}), optimizer=OptimizerConfig(dense=before))
    stopped.fit(clicks, checkpoints=stopped.checkpoints)
    resumed = Job(CONFIG.model_copy(update={"max_steps": 8}), optimizer=OptimizerConfig(dense=after))
    state = stopped.checkpoints.restore("step-5", resumed.store)
    if not is_refused:
        assert resumed.fit(clicks, resume=state).steps == 8
        return
    with pytest.raises(CheckpointMismatchError, match=r"expected state \[.*\] of dense optimizer \w+, got \[.*\]: "):
        resumed.fit(clicks, resume=state)


@pytest.mark.parametrize("change", ["unit_rows", "file", "rows", "stage", "order"])
@pytest.mark.parametrize("stop", [5, 48])
def test_other_data_may_come_between_epochs_and_not_inside_one(
    clicks: Path, tmp_path: Path, change: str, stop: int
) -> None:
    """Units are found by their place in the epoch: other units there would be trained twice, and others never."""
    (tmp_path / "log").mkdir()
    table = pq.read_table(clicks)
    for number in range(2):
        pq.write_table(table.slice(3_000 * number, 3_000), tmp_path / "log" / f"{number}.parquet")

    def log(kind: str | None = None) -> es.ClickLog:
        paths = sorted((tmp_path / "log").iterdir(), reverse=kind == "order")
        stages = [RandomPart("train", 0.1)] if kind == "stage" else []
        return es.ClickLog(paths, unit_rows=500 if kind == "unit_rows" else 1_000, run=11, stages=stages)

    stopped = Job(CONFIG.model_copy(update={"max_steps": stop}))
    stopped.trainer.fit(log(), checkpoints=stopped.checkpoints)
    resumed = Job(CONFIG)
    state = stopped.checkpoints.restore(f"step-{stop}", resumed.store)
    if change == "file":
        (tmp_path / "log" / "1.parquet").rename(tmp_path / "log" / "2.parquet")
    if change == "rows":
        pq.write_table(table, tmp_path / "log" / "1.parquet")
    if stop == 48:
        assert resumed.trainer.fit(log(change), resume=state).stopped == "finished"
        return
    with pytest.raises(ResumeMismatchError, match="expected the click log of the checkpoint, which is inside epoch 0"):
        resumed.trainer.fit(log(change), resume=state)
    del state.cursor["data"]  # as earlier versions saved it
    assert Job(CONFIG).trainer.fit(log(change), resume=state).steps > 5


def test_a_click_log_that_has_moved_to_another_folder_is_the_same_one(clicks: Path, tmp_path: Path) -> None:
    stopped, resumed = Job(CONFIG.model_copy(update={"max_steps": 5})), Job(CONFIG)
    stopped.fit(clicks, checkpoints=stopped.checkpoints)
    moved = shutil.copy(clicks, tmp_path / clicks.name)
    assert resumed.fit(moved, resume=stopped.checkpoints.restore("step-5", resumed.store)).steps == 96


class Recorder(TrainObserver):
    def __init__(self) -> None:
        self.steps: list[int] = []
        self.examples: list[int] = []
        self.totals: set[int | None] = set()
        self.evaluations: list[tuple[Evaluation, bool]] = []
        self.checkpoints: list[tuple[int, str]] = []

    def on_progress(self, *, step: int, epoch: int, examples: int, total: int | None, loss: float) -> None:
        self.steps.append(step)
        self.examples.append(examples)
        self.totals.add(total)
        assert 0 < loss < 5

    def on_evaluation(self, evaluation: Evaluation, *, is_best: bool) -> None:
        self.evaluations.append((evaluation, is_best))

    def on_checkpoint(self, step: int, name: str) -> None:
        self.checkpoints.append((step, name))


def test_evaluates_and_saves_in_the_middle_of_an_epoch(clicks: Path) -> None:
    job, recorder = Job(CONFIG), Recorder()
    result = job.fit(clicks, clicks, observer=recorder, checkpoints=job.checkpoints, save_every=30)
    assert recorder.steps == list(range(1, 97))
    assert recorder.examples[-1] == 12_000
    assert recorder.totals == {12_000}
    assert [step for step, _ in recorder.checkpoints] == [30, 60, 90, 96]
    assert [entry.step for entry, _ in recorder.evaluations] == [48, 96]
    assert result.checkpoint == "step-96"
    job = Job(CONFIG.model_copy(update={"evaluate_every": 40}))
    assert [entry.step for entry in job.fit(clicks, clicks).history] == [40, 80, 96]


def test_evaluation_does_not_change_training(clicks: Path) -> None:
    plain, evaluated = Job(CONFIG), Job(CONFIG)
    plain.fit(clicks)
    evaluated.fit(clicks, clicks)
    assert_same_bits(plain, evaluated)


def test_early_stop_goes_back_to_the_best(clicks: Path, tmp_path: Path) -> None:
    # The validation labels are the training labels turned round: it gets worse as the model learns.
    table = pq.read_table(clicks)
    turned = pa.array(1 - table["label"].to_numpy())
    pq.write_table(table.set_column(0, "label", turned), tmp_path / "turned.parquet")
    stop = EarlyStop(metric="logloss", patience=2)
    config = TrainConfig(batch_size=128, epochs=20, evaluate_every=16, early_stop=stop)
    job = Job(config)
    result = job.fit(clicks, tmp_path / "turned.parquet", checkpoints=job.checkpoints)
    assert result.stopped == "early_stop"
    assert [entry.step for entry in result.history] == [16, 32, 48]
    assert result.best_step == 16
    assert result.logloss == result.history[0].logloss
    assert result.checkpoint == "step-16"
    short = Job(config.model_copy(update={"max_steps": 16}))
    short.fit(clicks)
    assert_same_bits(job, short)


def test_evaluation_without_a_row_is_no_result(clicks: Path) -> None:
    nothing = RandomPart("evaluate", 1e-12)
    stop = EarlyStop(patience=1)
    job, recorder = Job(TrainConfig(batch_size=128, epochs=3, early_stop=stop)), Recorder()
    log = es.ClickLog(clicks, unit_rows=1_000, run=11)
    result = job.trainer.fit(log, es.ClickLog(clicks, stages=[nothing]), observer=recorder)
    assert [(entry.examples, is_best) for entry, is_best in recorder.evaluations] == [(0, False)] * 3
    assert (result.stopped, result.steps, result.best_step) == ("finished", 144, None)
    assert np.isnan(result.auc)
    assert result.history[0].as_json()["auc"] is None


def test_logistic_regression_of_numbers_alone_learns_and_resumes(clicks: Path) -> None:
    features = es.FeatureMap([es.Numeric(name=f"n{i}", transform=("log1p",)) for i in (1, 2)], label="label")

    def job(max_steps: int | None) -> tuple[Trainer, TrainConfig]:
        config = TrainConfig(batch_size=128, epochs=2, seed=3, pipeline_depth=1, max_steps=max_steps)
        model = LogisticRegressionConfig()
        embeddings = build_embeddings(model, OPTIMIZER, features, es.LocalStore(tablet_bits=3), device="cpu")
        return Trainer(build_model(model, features, 3), embeddings, config, OPTIMIZER), config

    def log() -> es.ClickLog:
        return es.ClickLog(clicks, unit_rows=1_000, run=11)

    straight, stopped, resumed = (job(steps)[0] for steps in (None, 30, None))
    result = straight.fit(log(), es.ClickLog(clicks))
    assert (result.examples, result.rows, result.rows_by_table) == (12_000, 0, {})
    assert 0 < result.history[-1].logloss < result.history[0].logloss < 0.75
    states: list[TrainerState] = []
    saving = SimpleNamespace(save=lambda state, is_best: states.append(state) or "s", restore=None)
    stopped.fit(log(), checkpoints=saving)
    resumed.fit(log(), resume=states[-1])
    for name, value in straight.model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), resumed.model.state_dict()[name].numpy(), err_msg=name)


@pytest.mark.parametrize("model", [FactorizationMachineConfig(), DeepFMConfig()])
def test_factors_of_numbers_alone_are_refused_before_anything_is_made(model: Any) -> None:
    features = es.FeatureMap([es.Numeric(name="n1")], label="label")
    with pytest.raises(ModelSpecError, match=f"one pooled feature for model '{model.kind}', got only numbers"):
        build_model(model, features)


def test_model_with_several_logits_an_example_is_refused_by_prediction(clicks: Path) -> None:
    job = Job(CONFIG, model=FactorizationMachineConfig(dim=4))

    class TwoLogits(torch.nn.Module):
        def forward(self, inputs: es.EmbeddingOutput, dense: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(inputs), 2)

    batches = es.ClickLog(clicks).batches(feature_map(), 100)
    with pytest.raises(ModelSpecError, match=r"expected logits of shape \(100,\), got \(100, 2\)"):
        next(iter(predict(TwoLogits(), job.trainer.embeddings, batches)))


def test_several_labels_are_refused_before_they_are_trained_and_by_evaluate(clicks: Path) -> None:
    features = es.FeatureMap([es.Categorical(name="c1")], label=["label", "n1"])
    log = es.ClickLog(clicks)
    embeddings = build_embeddings(FactorizationMachineConfig(dim=4), OPTIMIZER, features, es.LocalStore())
    model = build_model(FactorizationMachineConfig(dim=4), feature_map())
    with pytest.raises(ModelSpecError, match=r"expected one label to evaluate by, got \['label', 'n1'\]"):
        Trainer(model, embeddings, CONFIG).fit(log, log)

    class OneLogit(torch.nn.Module):
        def forward(self, inputs: es.EmbeddingOutput, dense: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(inputs))

    two = pa.table({"c1": [1, 2], "label": [0, 1], "n1": [1, 0]})
    batches = es.ClickLog.from_table(two).batches(features, 2)
    with pytest.raises(ModelSpecError, match="expected one label to evaluate by, got 2"):
        es.evaluate(OneLogit(), embeddings, batches)


def test_evaluation_leaves_each_module_in_its_own_mode(clicks: Path) -> None:
    class Frozen(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.drop = torch.nn.BatchNorm1d(4), torch.nn.Dropout()

        def forward(self, inputs: es.EmbeddingOutput, dense: torch.Tensor) -> torch.Tensor:
            assert not any(module.training for module in self.modules())
            return torch.zeros(len(inputs))

    class Switched(torch.nn.Identity):
        """As layers that merge weights for evaluation."""

        merged = False

        def train(self, mode: bool = True) -> Switched:
            self.merged = not mode
            return super().train(mode)

    job, model = Job(CONFIG, model=FactorizationMachineConfig(dim=4)), Frozen()
    model.switched = Switched()
    model.norm.eval()
    es.evaluate(model, job.trainer.embeddings, es.ClickLog(clicks).batches(feature_map(), 1000))
    assert (model.training, model.norm.training, model.drop.training) == (True, False, True)
    assert not model.switched.merged
    assert job.trainer.embeddings.training


@pytest.mark.parametrize("weights", [[None, 2.0], [2.0, None]])
def test_examples_without_a_weight_beside_others_weigh_one(clicks: Path, weights: list[float | None]) -> None:
    job = Job(CONFIG, model=FactorizationMachineConfig(dim=4))
    plain = list(es.ClickLog(clicks).batches(feature_map(), 3_000))
    given = [None if weight is None else np.full(3_000, weight, np.float32) for weight in weights]
    batches = [replace(batch, example_weight=weight) for batch, weight in zip(plain, given, strict=True)]
    told = [np.full(3_000, weight or 1.0, np.float32) for weight in weights]
    expected = [replace(batch, example_weight=weight) for batch, weight in zip(plain, told, strict=True)]
    model, embeddings = job.trainer.model, job.trainer.embeddings
    assert es.evaluate(model, embeddings, batches) == es.evaluate(model, embeddings, expected)


def test_same_log_twice_into_one_store_is_refused(clicks: Path) -> None:
    job = Job(TrainConfig(batch_size=128))
    job.fit(clicks)
    with pytest.raises(TrainedBeforeError, match="run 11 again"):
        job.fit(clicks)
    assert not job.trainer.embeddings.repeats_expected


@pytest.mark.parametrize("stop", [20, 40])
def test_a_resume_over_the_store_that_was_trained_on_equals_straight(clicks: Path, stop: int) -> None:
    """The units that were completed after the checkpoint are trained again; two resumes of one checkpoint."""
    straight, again = Job(CONFIG), Job(CONFIG)
    straight.fit(clicks)
    again.fit(clicks, checkpoints=again.checkpoints, save_every=stop)
    for _ in range(2):
        job = Job(CONFIG)
        job.store, job.trainer.embeddings.store = again.store, again.store
        state = again.checkpoints.restore(f"step-{stop}")
        job.fit(clicks, resume=state)
        assert job.trainer.embeddings.counts.fenced == 0
        assert_same_bits(straight, job)


def test_a_resumed_run_that_another_process_has_gone_on_with_is_told(clicks: Path) -> None:
    stopped = Job(CONFIG.model_copy(update={"max_steps": 5}))
    stopped.fit(clicks, checkpoints=stopped.checkpoints)
    job = Job(CONFIG)
    state = stopped.checkpoints.restore("step-5", job.store)
    log = es.ClickLog(clicks, unit_rows=1_000, run=11)

    class Overtaken(TrainObserver):
        def on_progress(self, *, step: int, epoch: int, examples: int, total: int | None, loss: float) -> None:
            if step == 6:
                later = list(log.batches(feature_map(), 128, epoch=0, seed=3, shuffle=True))[-1]
                other = build_embeddings(MODEL, OPTIMIZER, feature_map(), job.store, seed=3, device="cpu")
                other.lease = 1 << 62
                rows = other.optimizer()
                other(later).values().sum().backward()
                rows.step()

    with pytest.raises(TrainedBeforeError, match=r"got \d+ refused: their work units are completed, or another"):
        job.trainer.fit(log, observer=Overtaken(), resume=state)


def test_loss_that_is_not_finite_is_named(clicks: Path) -> None:
    optimizer = OptimizerConfig(rows=es.Sgd(lr=1e30))
    with pytest.raises(TrainingDivergedError, match=r"at step \d+, epoch 0: lower the learning rates"):
        Job(TrainConfig(batch_size=128), optimizer=optimizer).fit(clicks)


def test_l2_shrinks_the_rows(clicks: Path) -> None:
    norms = []
    for config in (TrainConfig(batch_size=128), TrainConfig(batch_size=128, embedding_l2=1.0)):
        job = Job(config)
        job.fit(clicks)
        norms.append(sum(float(np.abs(bits).sum()) for name, bits in job.bits().items() if name.endswith("weights")))
    assert norms[1] < 0.7 * norms[0]


def test_clip_norm_bounds_rows_and_dense_parameters_together(clicks: Path) -> None:
    optimizer = OptimizerConfig(rows=es.Sgd(lr=1.0), dense=DenseSgd(lr=1.0))
    job = Job(TrainConfig(batch_size=128, clip_norm=1e-6), optimizer=optimizer)
    before = {name: value.clone() for name, value in job.trainer.model.state_dict().items()}
    job.fit(clicks)
    moved = max(float((value - before[name]).abs().max()) for name, value in job.trainer.model.state_dict().items())
    assert 0 < moved < 48 * 1e-6
    linear = np.concatenate([bits[:, 0] for name, bits in job.bits().items() if name.endswith("weights")])
    assert 0 < np.abs(linear).max() < 48 * 1e-6  # they start at 0


def test_two_table_threads_give_the_same_bits(clicks: Path) -> None:
    one, two = Job(CONFIG), Job(CONFIG)
    two.store = es.LocalStore(tablet_bits=3, threads=2)
    features = feature_map()
    embeddings = build_embeddings(MODEL, OPTIMIZER, features, two.store, seed=CONFIG.seed, device="cpu")
    two.trainer = Trainer(build_model(MODEL, features, CONFIG.seed), embeddings, CONFIG, OPTIMIZER)
    one.fit(clicks)
    two.fit(clicks)
    assert_same_bits(one, two)


def test_ten_lines_of_python(clicks: Path) -> None:
    """The example of the README, on a small log."""
    features = feature_map()
    store = es.LocalStore()
    embeddings = es.EmbeddingCollection(features, store)
    rows = embeddings.optimizer()
    model = torch.nn.Sequential(torch.nn.Linear(4 * 16 + 1, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    dense = torch.optim.Adam(model.parameters(), lr=1e-2)
    criterion = torch.nn.BCEWithLogitsLoss()
    losses = []
    for batch, inputs in es.prefetch(es.ClickLog(clicks).batches(features, batch_size=256), embeddings):
        logits = model(torch.cat([inputs.values(), batch.dense], 1)).squeeze(1)
        loss = criterion(logits, batch.label)
        loss.backward()
        rows.step()
        dense.step()
        rows.zero_grad()
        dense.zero_grad()
        losses.append(loss.item())
    assert len(losses) == 24
    assert np.mean(losses[-4:]) < np.mean(losses[:4])
    assert store.stats()["c4"].rows > 50
