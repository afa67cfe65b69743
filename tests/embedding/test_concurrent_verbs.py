"""A million rows are made while other threads read, evict and copy them: nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from embershard.embedding.native_table_group import NativeTableGroup
from embershard.embedding.table_config import ColumnBlock, Sgd, TableConfig, Ttl, Zeros
from embershard.embedding.table_group import TableKeys, UpdateStep

ROWS, BATCH, TABLET_BITS = 1_000_000, 10_000, 4
KEYS = np.arange(1, ROWS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def table(name: str, **fields: object) -> TableConfig:
    """Weights are minus the number of pushes a key got, in both columns."""
    block = ColumnBlock(dim=2, initializer=Zeros(), optimizer=Sgd(lr=1))
    return TableConfig(name=name, blocks=(block,), **fields)


def new_group() -> NativeTableGroup:
    group = NativeTableGroup(TABLET_BITS)
    group.ensure_table(table("kept"))
    group.ensure_table(table("fleeting", eviction=(Ttl(ttl_seconds=5),)))
    return group


class Others:
    """Threads that go on until `stop`; an error in one of them is raised there."""

    def __init__(self, *works: Callable[[np.random.Generator], None]) -> None:
        self.done, self.errors = threading.Event(), list[BaseException]()
        self.rounds = [0] * len(works)
        self.threads = [threading.Thread(target=self._loop, args=(*item,)) for item in enumerate(works)]
        for thread in self.threads:
            thread.start()

    def _loop(self, number: int, work: Callable[[np.random.Generator], None]) -> None:
        rng = np.random.default_rng(number)
        try:
            while not self.done.is_set():
                work(rng)
                self.rounds[number] += 1
        except BaseException as error:
            self.errors.append(error)

    def stop(self) -> None:
        self.done.set()
        for thread in self.threads:
            thread.join()
        if self.errors:
            raise self.errors[0]


@pytest.mark.slow
def test_no_update_is_lost_while_others_pull_evict_and_snapshot() -> None:
    group, copy, evicted = new_group(), new_group(), []
    clock = [0]

    def pull(rng: np.random.Generator) -> None:
        some = rng.choice(KEYS, 2000, replace=False)
        weights = group.lookup(TableKeys.concat({"kept": some, "fleeting": some}), "zeros").reshape(-1, 2)
        assert np.array_equal(weights[:, 0], weights[:, 1])  # a row is never read half updated
        assert weights.min() >= -2

    def evict(_: np.random.Generator) -> None:
        removed = group.evict(clock[0], 5000)
        assert removed["kept"] == 0
        evicted.append(removed["fleeting"])

    def snapshot(rng: np.random.Generator) -> None:
        copied = group.snapshot(int(rng.integers(1 << TABLET_BITS)))
        rows = copied.tables["kept"]
        assert np.array_equal(rows.weights[:, 0], -rows.count.astype(np.float32))
        copy.import_tablet(copied)

    others = Others(pull, pull, evict, snapshot)
    created = 0
    for round_ in range(2):
        for start in range(0, ROWS, BATCH):
            keys = KEYS[start : start + BATCH]
            clock[0] = round_ * 100 + start // BATCH
            request = TableKeys.concat({"kept": keys, "fleeting": keys[: BATCH // 10]})
            gradients, counts = np.ones(2 * len(request.keys), np.float32), np.ones(len(request.keys), np.uint32)
            report = group.apply_gradients(request, gradients, counts, UpdateStep(now=clock[0]))
            assert report.tables["kept"].applied == BATCH
            created += report.tables["fleeting"].created
    others.stop()
    assert min(others.rounds) > 0

    for tablet in range(1 << TABLET_BITS):
        copy.import_tablet(group.snapshot(tablet))
    for held in (group, copy):
        assert held.stats()["kept"].rows == ROWS
        assert (held.lookup(TableKeys.of("kept", KEYS), "zeros") == -2).all()
    counts = np.concatenate([group.snapshot(tablet).tables["kept"].count for tablet in range(1 << TABLET_BITS)])
    assert int(counts.sum()) == 2 * ROWS
    assert sum(evicted) > 0
    assert group.stats()["fleeting"].rows == created - sum(evicted)


def test_b18_pushers_of_the_same_rows_lose_no_update() -> None:
    """Requests so long that the pushers are in the rows at the same time."""
    group, keys, pushes, pushers = NativeTableGroup(0), KEYS[:20_000], 30, 4
    group.ensure_table(table("kept"))
    gradients, counts = np.ones(2 * len(keys), np.float32), np.ones(len(keys), np.uint32)
    ready = threading.Barrier(pushers)

    def pusher() -> None:
        ready.wait()
        for _ in range(pushes):
            group.apply_gradients(TableKeys.of("kept", keys), gradients, counts, UpdateStep())

    threads = [threading.Thread(target=pusher) for _ in range(pushers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = group.snapshot(0).tables["kept"]
    assert len(rows.keys) == len(keys)
    assert (rows.weights == -pushes * pushers).all()
    assert (rows.count == pushes * pushers).all()
