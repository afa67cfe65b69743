"""Runs over click logs that come from elsewhere: a source is opened once an epoch, and nothing waits for what comes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import torch

import embershard as es
from embershard.datasets.schema import ColumnSpec
from embershard.datasets.table_reader import TableReader
from embershard.models.config import DenseSgd, FactorizationMachineConfig, OptimizerConfig, TrainConfig
from embershard.models.model_factory import build_embeddings, build_model
from embershard.models.table_options import TableOptions
from embershard.models.train_result import TrainObserver, TrainResult
from embershard.models.trainer import Trainer
from embershard.models.trainer_state import TrainerState

MODEL = FactorizationMachineConfig(dim=4)
OPTIMIZER = OptimizerConfig(rows=es.Adagrad(lr=0.05), dense=DenseSgd(lr=0.1))
ROWS = 64


def some_clicks(index: int, rows: int = ROWS) -> pa.Table:
    rng = np.random.default_rng(index)
    return pa.table({"c1": rng.integers(0, 99, rows), "label": rng.integers(0, 2, rows).astype(np.int8)})


class Recorder(TrainObserver):
    """What happened, in order, beside what the source gave."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def on_evaluation(self, evaluation: object, *, is_best: bool) -> None:
        self.events.append(f"evaluated {evaluation.step}")

    def save(self, state: TrainerState, *, is_best: bool) -> str:
        self.events.append(f"saved {state.step} of epoch {state.cursor['epoch']}")
        return f"step-{state.step}"


class Source:
    """Gives `tables` tables an epoch; after them it ends, or waits for what does not come."""

    def __init__(self, events: list[str], tables: int, *, waits: bool = False) -> None:
        self.events, self.tables, self.waits = events, tables, waits
        self.never = threading.Event()

    def __call__(self) -> Iterator[pa.Table]:
        self.events.append("opened")
        try:
            for index in range(self.tables):
                self.events.append(f"gave {index + 1}")
                yield some_clicks(index)
            if self.waits:
                assert self.never.wait(60), "the source was waited for"
        finally:
            self.events.append("closed")


def fit(
    log: es.ClickLog, recorder: Recorder, options: TableOptions | None = None, **config: object
) -> tuple[TrainResult, dict[str, np.ndarray]]:
    features = es.FeatureMap([es.Categorical(name="c1")], label="label")
    settings = {"batch_size": ROWS, "epochs": 1, "shuffle": False, "pipeline_depth": 0, **config}
    with es.LocalStore(tablet_bits=1) as store:
        model = MODEL.model_copy(update={"tables": options or TableOptions()})
        embeddings = build_embeddings(model, OPTIMIZER, features, store, device="cpu")
        trainer = Trainer(build_model(MODEL, features), embeddings, TrainConfig(**settings), OPTIMIZER)
        validation = es.ClickLog.from_table(some_clicks(1000))
        save_every = None if "evaluate_every" not in config else 3
        result = trainer.fit(log, validation, observer=recorder, checkpoints=recorder, save_every=save_every)
        weights = {f"{tablet}": store.snapshot(tablet).tables["c1"].weights for tablet in range(2)}
        return result, weights


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("is_iterator", [False, True])
def test_a_source_is_opened_once_an_epoch_however_often_the_run_evaluates(depth: int, is_iterator: bool) -> None:
    """Opened anew at each evaluation, a queue would have given other rows, and an iterator none."""
    recorder = Recorder()
    source = Source(recorder.events, 8)
    log = es.ClickLog.from_batches(source() if is_iterator else source)
    result, weights = fit(log, recorder, evaluate_every=2, pipeline_depth=depth)
    assert result.steps == 8
    assert result.stopped == "finished"
    assert [event for event in recorder.events if event[0] in "ogc"] == [
        "opened",
        *(f"gave {index + 1}" for index in range(8)),
        "closed",
    ]
    table = pa.concat_tables([some_clicks(index) for index in range(8)])
    expected, expected_weights = fit(es.ClickLog.from_table(table), Recorder(), evaluate_every=2, pipeline_depth=depth)
    found = [(entry.step, entry.auc, entry.logloss) for entry in result.history]
    assert found == [(entry.step, entry.auc, entry.logloss) for entry in expected.history]
    for tablet, values in weights.items():
        np.testing.assert_array_equal(values, expected_weights[tablet])


def test_an_evaluation_does_not_wait_for_the_batch_after_it() -> None:
    recorder = Recorder()
    fit(es.ClickLog.from_batches(Source(recorder.events, 6)), recorder, evaluate_every=2)
    for before, after in (("evaluated 2", "gave 3"), ("saved 3 of epoch 0", "gave 4"), ("evaluated 4", "gave 5")):
        assert recorder.events.index(before) < recorder.events.index(after), recorder.events


def test_a_run_of_so_many_steps_ends_without_a_batch_more() -> None:
    recorder = Recorder()
    result, _ = fit(es.ClickLog.from_batches(Source(recorder.events, 4, waits=True)), recorder, max_steps=4)
    assert (result.steps, result.stopped) == (4, "max_steps")
    assert recorder.events[-1] == "saved 4 of epoch 0" or recorder.events[-1] == "closed"
    assert "closed" in recorder.events


@pytest.mark.parametrize("waits_for", ["step", "evaluation"])
def test_a_source_is_closed_where_a_run_fails(waits_for: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("as asked")

    if waits_for == "step":
        monkeypatch.setattr(torch.optim.SGD, "step", fail)
    else:
        monkeypatch.setattr(recorder, "on_evaluation", fail)
    with pytest.raises(RuntimeError, match="as asked"):
        fit(es.ClickLog.from_batches(Source(recorder.events, 4)), recorder, evaluate_every=2)
    assert "closed" in recorder.events


def test_the_end_of_an_epoch_that_falls_on_an_evaluation_is_evaluated_once_and_saved() -> None:
    recorder = Recorder()
    result, _ = fit(es.ClickLog.from_batches(Source(recorder.events, 6)), recorder, evaluate_every=3, epochs=2)
    assert [entry.step for entry in result.history] == [3, 6, 9, 12]
    saved = [event for event in recorder.events if event.startswith("saved")]
    assert saved[-1] == "saved 12 of epoch 2"
    assert recorder.events.count("opened") == 2


def test_the_evaluation_at_an_epochs_end_is_of_the_rows_that_its_sweep_leaves() -> None:
    """As over a table that tells its rows; a batch more is waited for to find out."""
    table = some_clicks(3, 6 * ROWS)
    found = []
    for log in (es.ClickLog.from_table(table), es.ClickLog.from_batches(lambda: iter([table]))):
        result, _ = fit(log, Recorder(), TableOptions(eviction=(es.MinL2(min_l2=0.05),)), evaluate_every=3)
        assert sum(result.evicted.values()) > 0
        found.append([(entry.step, entry.auc) for entry in result.history])
    assert found[0] == found[1]


class FailingReader(TableReader):
    """Tells its rows, and cannot read them from `fails_at` on."""

    fails_at = 4 * ROWS

    def read(self, start: int, stop: int | None, columns: Sequence[ColumnSpec]) -> Iterator[pa.RecordBatch]:
        bounds = range(start, self._table.num_rows + 1, ROWS)
        for first, last in pairwise(bounds):
            if first >= self.fails_at:
                raise OSError("the disk is gone")
            yield from self._table.slice(first, last - first).combine_chunks().to_batches()


def test_what_was_trained_before_an_unreadable_batch_is_evaluated_and_saved() -> None:
    recorder = Recorder()
    log = es.ClickLog.over(FailingReader(some_clicks(0, 6 * ROWS)))
    assert log.rows() == 6 * ROWS
    with pytest.raises(OSError, match="the disk is gone"):
        fit(log, recorder, evaluate_every=4)
    assert recorder.events == ["saved 3 of epoch 0", "evaluated 4"]
