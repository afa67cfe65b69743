"""Checkpoints of real stores: training goes on from them as if it had never stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from embershard.embedding.checkpoint import TrainingState, open_checkpoint, write_checkpoint
from embershard.embedding.reference import ReferenceTableGroup
from embershard.embedding.store import Pull, Push, PushToken
from embershard.embedding.table_config import (
    Adagrad,
    Adam,
    ColumnBlock,
    Ftrl,
    MinCount,
    RowwiseAdagrad,
    Score,
    TableConfig,
    Zeros,
)
from embershard.embedding.table_group import TableKeys
from embershard.ps_server.local_store import LocalStore

TABLES = (
    TableConfig(
        name="user",
        blocks=(
            ColumnBlock(name="linear", dim=1, initializer=Zeros(), optimizer=Ftrl()),
            ColumnBlock(name="factors", dim=4, optimizer=Adagrad()),
        ),
    ),
    TableConfig(name="item", blocks=(ColumnBlock(dim=3, optimizer=Adam()),)),
    TableConfig(
        name="shop",
        blocks=(ColumnBlock(dim=6, optimizer=RowwiseAdagrad()),),
        seed=9,
        eviction=(Score(min_score=1.0, half_life_seconds=60, click_weight=5.0),),
    ),
)
WITHOUT_CLICKS = (*TABLES[:2], TABLES[2].model_copy(update={"eviction": ()}))


def reference_store() -> LocalStore:
    return LocalStore(tables=ReferenceTableGroup(4))


def native_store() -> LocalStore:
    return LocalStore(4)


@pytest.fixture(params=[reference_store, native_store], ids=["reference", "native"])
def make_store(request: pytest.FixtureRequest) -> Callable[[], LocalStore]:
    return request.param


def train(
    store: LocalStore, steps: range, *, unit: int = 1, keys_of: Callable[[int], np.ndarray] | None = None
) -> None:
    """Batches whose keys and gradients are functions of the step; a gradient also depends on the rows pulled."""
    for step in steps:
        rng = np.random.default_rng(step)
        parts = {
            table.name: np.unique(rng.integers(0, 200, 40).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
            for table in TABLES
        }
        keys = TableKeys.concat(parts)
        rows = store.exchange(None, Pull(keys)).rows
        assert rows is not None
        gradients = (rows.values + rng.standard_normal(len(rows.values)).astype(np.float32)).astype(np.float32)
        occurrences = rng.integers(1, 4, len(keys.keys)).astype(np.uint32)
        token = PushToken(1, 1, step)
        clicks = rng.integers(0, occurrences + np.uint32(1)).astype(np.uint32)
        push = Push(token, keys, gradients, occurrences, 32, step=step + 1, now=1000 + step, clicks=clicks)
        store.exchange(push, None)


def contents(store: LocalStore) -> list[bytes]:
    """All that training made: rows, state, counters, applied memory of work units."""
    found = []
    for tablet in range(1 << store.tablet_bits):
        snapshot = store.snapshot(tablet)
        found.append(str(snapshot.push_count).encode())
        for rows in snapshot.tables.values():
            found += [
                rows.keys.tobytes(),
                rows.weights.tobytes(),
                rows.state.tobytes(),
                rows.count.tobytes(),
                rows.touched_at.tobytes(),
                rows.clicks.tobytes(),
                rows.admission_keys.tobytes(),
                rows.admission_counts.tobytes(),
            ]
        of_units = snapshot.applied.unit < 1000
        found += [snapshot.applied.unit[of_units].tobytes(), snapshot.applied.batch[of_units].tobytes()]
    return found


def test_stop_and_resume_equals_going_on_b32_b42(tmp_path: Path, make_store) -> None:
    straight = make_store()
    straight.ensure_tables(TABLES)
    train(straight, range(60))
    stopped = make_store()
    stopped.ensure_tables(TABLES)
    train(stopped, range(30))
    path = write_checkpoint(tmp_path, stopped, TrainingState(step=30))
    stopped.close()
    resumed = make_store()
    with open_checkpoint(path) as checkpoint:
        report = checkpoint.restore(resumed)
    assert all(rows > 100 for rows in report.rows.values())
    train(resumed, range(30, 60))
    assert contents(resumed) == contents(straight)


def test_a_batch_trained_before_the_checkpoint_is_a_duplicate_after_it(tmp_path: Path, make_store) -> None:
    store = make_store()
    store.ensure_tables(TABLES)
    train(store, range(10))
    path = write_checkpoint(tmp_path, store, TrainingState(step=10))
    resumed = make_store()
    with open_checkpoint(path) as checkpoint:
        checkpoint.restore(resumed)
    before = contents(resumed)
    train(resumed, range(5, 10))
    assert contents(resumed) == before
    train(resumed, range(10, 11))
    assert contents(resumed) != before


def test_reference_and_native_restore_each_other(tmp_path: Path) -> None:
    native = native_store()
    native.ensure_tables(TABLES)
    train(native, range(20))
    with open_checkpoint(write_checkpoint(tmp_path, native, TrainingState(step=1))) as checkpoint:
        twin = reference_store()
        checkpoint.restore(twin)
    assert contents(twin) == contents(native)
    train(twin, range(20, 30))
    train(native, range(20, 30))
    assert contents(twin) == contents(native)


def test_base_and_deltas_equal_the_store(tmp_path: Path, make_store) -> None:
    store = make_store()
    store.ensure_tables(TABLES)
    base = None
    for round_ in range(4):
        train(store, range(10 * round_, 10 * round_ + 10))
        if round_ == 1:
            store.erase(TableKeys.of("user", np.arange(0, 100, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)))
        base = write_checkpoint(tmp_path, store, TrainingState(step=round_), base=base)
    with open_checkpoint(base) as checkpoint:
        fresh = make_store()
        checkpoint.restore(fresh)
        for tablet in range(16):
            merged, whole = checkpoint.snapshot(tablet), store.snapshot(tablet)
            assert merged.version == whole.version
            for name, rows in whole.tables.items():
                assert rows.version.tobytes() == merged.tables[name].version.tobytes()
                assert rows.erased_keys.tobytes() == merged.tables[name].erased_keys.tobytes()
                assert rows.erased_versions.tobytes() == merged.tables[name].erased_versions.tobytes()
    assert contents(fresh) == contents(store)


@pytest.mark.parametrize(("before", "after"), [(WITHOUT_CLICKS, TABLES), (TABLES, WITHOUT_CLICKS)])
def test_a_delta_on_a_base_of_another_policy_equals_the_store(tmp_path: Path, make_store, before, after) -> None:
    """Clicks begin, or cease, to be kept at a restore; the delta after it stands on a base that did otherwise."""
    old, store, fresh = make_store(), make_store(), make_store()
    old.ensure_tables(before)
    train(old, range(10))
    base = write_checkpoint(tmp_path, old, TrainingState(step=1))
    store.ensure_tables(after)
    with open_checkpoint(base) as checkpoint:
        report = checkpoint.restore(store)
    assert any("eviction" in line for line in report.changed)
    kept = np.concatenate([store.snapshot(tablet).tables["shop"].clicks for tablet in range(16)])
    assert not kept.any()
    assert len(kept) == (report.rows["shop"] if after is TABLES else 0)
    train(store, range(10, 13))
    with open_checkpoint(write_checkpoint(tmp_path, store, TrainingState(step=2), base=base)) as checkpoint:
        checkpoint.restore(fresh)
    assert contents(fresh) == contents(store)


def test_saving_while_four_clients_train_keeps_each_row_whole_b36(tmp_path: Path, make_store) -> None:
    """Weight, accumulator, count and time are functions of the number of pushes of the key: a row caught between two of
    its parts would break the relation. Applied memory and rows must agree as well."""
    table = TableConfig(name="user", blocks=(ColumnBlock(dim=2, initializer=Zeros(), optimizer=Adagrad(lr=1.0)),))
    store = make_store()
    store.ensure_tables([table])
    stop = threading.Event()
    own = [np.sort(np.random.default_rng(c).integers(0, 1 << 64, 64, np.uint64)) for c in range(4)]

    def client(number: int) -> None:
        batch = 0
        keys = TableKeys.of("user", own[number])
        ones, occurrences = np.ones(128, np.float32), np.ones(64, np.uint32)
        while not stop.is_set():
            token = PushToken(number, 1, batch)
            store.exchange(Push(token, keys, ones, occurrences, examples=1, step=batch + 1, now=batch), None)
            batch += 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        paths = [write_checkpoint(tmp_path, store, TrainingState(step=step)) for step in range(3)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    fresh = make_store()
    with open_checkpoint(paths[-1]) as checkpoint:
        checkpoint.restore(fresh)
    moved = 0
    for tablet in range(16):
        snapshot = fresh.snapshot(tablet)
        rows = snapshot.tables["user"]
        applied = dict(zip(snapshot.applied.unit.tolist(), snapshot.applied.batch.tolist(), strict=True))
        for index, key in enumerate(rows.keys):
            number = next(number for number in range(4) if key in own[number])
            pushes = applied[number] + 1
            moved += pushes
            assert rows.count[index] == pushes
            assert rows.state[index].tolist() == [pushes, pushes]
            assert rows.touched_at[index] == pushes - 1
            total = np.float32(0)
            for count in range(1, pushes + 1):
                total -= np.float32(1) / (np.sqrt(np.float32(count)) + np.float32(1e-8))
            assert rows.weights[index].tolist() == [total, total]
    assert moved > 0


def test_admission_counters_survive_b32(tmp_path: Path, make_store) -> None:
    """Threshold 3: two occurrences, checkpoint, restore, one more: admitted."""
    table = TableConfig(name="user", blocks=(ColumnBlock(dim=2),), admission=MinCount(count=3))
    store = make_store()
    store.ensure_tables([table])
    keys = TableKeys.of("user", np.array([5, 1 << 63], np.uint64))

    def push(target: LocalStore, batch: int, occurrences: int) -> None:
        counts = np.full(2, occurrences, np.uint32)
        token = PushToken(1, 1, batch)
        target.exchange(Push(token, keys, np.ones(4, np.float32), counts, examples=1, step=1, now=0), None)

    push(store, 0, 2)
    assert store.stats()["user"].rows == 0
    fresh = make_store()
    with open_checkpoint(write_checkpoint(tmp_path, store, TrainingState(step=1))) as checkpoint:
        checkpoint.restore(fresh)
    push(fresh, 1, 1)
    assert fresh.stats()["user"].rows == 2
