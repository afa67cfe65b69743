"""ClickLogDataset under ranks, loader workers and restarts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

import embershard as es
from embershard.datasets import ClickLogError
from embershard.datasets.sharding import shares
from embershard.embedding.store import Pull
from embershard.embedding.table_group import TableKeys
from embershard.models.click_log_dataset import ClickLogDataset

ROWS = 1_003
FEATURES = es.FeatureMap([es.Categorical("row")])


@pytest.fixture(scope="module", params=[1, 3])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    for number, rows in enumerate(np.array_split(np.arange(ROWS), request.param)):
        pq.write_table(pa.table({"row": rows}), folder / f"{number}.parquet", row_group_size=10)
    return folder


def dataset_of(folder: Path, rank: int = 0, world_size: int = 1, **options: int) -> ClickLogDataset[es.FeatureBatch]:
    log = es.ClickLog(folder, unit_rows=options.pop("unit_rows", 100), run=3)
    return ClickLogDataset(log, FEATURES, 16, rank=rank, world_size=world_size, seed=2, **options)


def rows_of(batch: es.FeatureBatch) -> list[int]:
    return [FEATURES.value("row", int(key)) or 0 for key in batch.keys]


def as_worker(monkeypatch: pytest.MonkeyPatch, number: int, workers: int) -> None:
    info = SimpleNamespace(id=number, num_workers=workers) if workers else None
    monkeypatch.setattr("embershard.models.click_log_dataset.get_worker_info", lambda: info)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("unit_rows", [100, 4_096])
def test_b74_each_row_comes_once_over_ranks_and_workers(
    folder: Path, ranks: int, workers: int, unit_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: Counter[int] = Counter()
    for rank in range(ranks):
        for worker in range(max(1, workers)):
            as_worker(monkeypatch, worker, workers)
            dataset = dataset_of(folder, rank, ranks, unit_rows=unit_rows)
            seen.update(row for batch in dataset for row in rows_of(batch))
    assert seen == Counter(range(ROWS))


@pytest.mark.process
@pytest.mark.parametrize("stay", [False, True])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_real_workers_read_each_epoch_once_and_no_epoch_twice(folder: Path, stay: bool) -> None:
    dataset = dataset_of(folder)
    loader = DataLoader(
        dataset, batch_size=None, num_workers=2, persistent_workers=stay, multiprocessing_context="fork"
    )
    epochs = []
    for _ in range(3):
        batches = list(loader)
        assert Counter(row for batch in batches for row in rows_of(batch)) == Counter(range(ROWS))
        epochs.append({batch.id.unit for batch in batches if batch.id})
    for epoch, names in enumerate(epochs):
        units = dataset._log.units(epoch, seed=2, shuffle=True)
        own = {share.id for reader in range(2) for share in shares(units, reader, 2)}
        assert names <= own  # a reader's part of a short unit may have no batch
    assert len(set.union(*epochs)) == sum(map(len, epochs))


@pytest.mark.parametrize("readers", [(1, 2), (1, 3), (2, 2), (3, 1), (2, 4)])
@pytest.mark.parametrize("unit_rows", [100, 4_096])
def test_each_row_is_trained_once_in_whatever_order_readers_bring_their_batches(
    folder: Path, readers: tuple[int, int], unit_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers that share a unit bring its batches out of order; a store takes each unit's in order alone."""
    ranks, workers = readers
    streams = []
    for rank in range(ranks):
        for worker in range(workers):
            as_worker(monkeypatch, worker, workers)
            # A generator asks for its worker when it gives its first batch.
            streams.append(iter(list(dataset_of(folder, rank, ranks, unit_rows=unit_rows))))
    order = np.random.default_rng(ranks * 10 + workers)
    with es.LocalStore() as store:
        optimizer, initializer = es.Sgd(lr=1.0), es.Zeros()
        embeddings = es.EmbeddingCollection(FEATURES, store, dim=1, optimizer=optimizer, initializer=initializer)
        rows = embeddings.optimizer()
        while streams:
            at = int(order.integers(len(streams)))
            if (batch := next(streams[at], None)) is None:
                del streams[at]
                continue
            embeddings(batch).values().sum().backward()
            rows.step()
        assert embeddings.counts.repeated == 0
        keys = FEATURES.encode_values("row", pa.array(np.arange(ROWS)))
        found = store.exchange(None, Pull(TableKeys.of("row", keys))).rows
        assert found is not None
        assert found.values.tolist() == [-1.0] * ROWS


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_run_stopped_and_resumed_under_real_workers_delivers_each_row_once(folder: Path) -> None:
    def loader_over(dataset: ClickLogDataset[es.FeatureBatch]) -> DataLoader[es.FeatureBatch]:
        return DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")

    state: dict[str, object] = {"epoch": 5, "readers": 2, "positions": {}}
    seen: list[int] = []
    for stop in (7, 25, None):
        dataset = dataset_of(folder)
        dataset.load_state_dict(json.loads(json.dumps(state)))
        for count, batch in enumerate(loader_over(dataset), 1):
            seen += rows_of(batch)
            dataset.delivered(batch)
            if count == stop:
                break
        state = dataset.state_dict()
    assert Counter(seen) == Counter(range(ROWS))
    again = dataset_of(folder)
    again.load_state_dict(state)
    assert list(loader_over(again)) == []
    assert state["epoch"] == 5


def test_states_taken_in_the_workers_themselves_resume_each_worker(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    for worker in range(3):
        as_worker(monkeypatch, worker, 3)
        dataset = dataset_of(folder)
        batches: Iterator[es.FeatureBatch] = iter(dataset)
        for _ in range(worker * 2 + 1):
            seen += rows_of(next(batches))
        resumed = dataset_of(folder)
        resumed.load_state_dict(dataset.state_dict())
        seen += [row for batch in resumed for row in rows_of(batch)]
    assert Counter(seen) == Counter(range(ROWS))


def test_passes_are_epochs_and_a_state_holds_for_the_first_one_only(folder: Path) -> None:
    dataset = dataset_of(folder)
    first, second = ([rows_of(batch) for batch in dataset] for _ in range(2))
    assert first != second
    dataset.set_epoch(1)
    assert [rows_of(batch) for batch in dataset] == second
    resumed = dataset_of(folder)
    half = len(first) // 2
    batches = iter(resumed)
    assert [rows_of(next(batches)) for _ in range(half)] == first[:half]
    state = resumed.state_dict()
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert [rows_of(batch) for batch in resumed] == first[half:]
    assert [rows_of(batch) for batch in resumed] == second


def test_a_state_of_another_number_of_readers_and_a_foreign_batch_are_refused(folder: Path) -> None:
    dataset = dataset_of(folder)
    next(iter(dataset))
    other = dataset_of(folder, rank=0, world_size=2)
    other.load_state_dict(dataset.state_dict())
    with pytest.raises(ClickLogError, match="expected 1 readers as in the state, got 2"):
        next(iter(other))
    with pytest.raises(ClickLogError, match="expected a batch of epoch 0"):
        dataset.delivered(next(iter(es.ClickLog(folder, run=77).batches(FEATURES, 16))))
    with pytest.raises(ClickLogError, match="expected a rank in"):
        dataset_of(folder, rank=2, world_size=2)
