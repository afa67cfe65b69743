"""A store of plain snapshots: what the checkpoint code needs of a store, with contents the test chooses."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from embershard.embedding.checkpoint.tablet_file import state_width
from embershard.embedding.store import TakenSnapshots
from embershard.embedding.table_config import Adagrad, ColumnBlock, Ftrl, Sgd, TableConfig, Uniform, Zeros
from embershard.embedding.table_group import AppliedMemory, TableRows, TabletSnapshot

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}


def random_rows(table: TableConfig, keys: np.ndarray, seed: int, version: int = 1) -> TableRows:
    """Rows with contents that depend on (key, seed) alone, so that a row with another key's values is noticed."""
    keys = np.unique(keys.astype(np.uint64))
    mixed = (keys * np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64(seed * 7919 + 1)

    def column(width: int, salt: int) -> np.ndarray:
        bits = mixed[:, None] * (np.arange(width, dtype=np.uint64) * np.uint64(2) + np.uint64(2 * salt + 1))
        return ((bits >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24) - np.float32(0.5)).astype(np.float32)

    weights = column(table.dim, 1)
    stored = (
        (weights.view(np.uint32) >> 16).astype(np.uint16)
        if table.dtype == "bfloat16"
        else weights.astype(DTYPES[table.dtype])
    )
    return TableRows(
        keys=keys,
        weights=stored,
        state=column(state_width(table), 5),
        count=(mixed & np.uint64(0xFFFF)).astype(np.uint32),
        touched_at=(mixed >> np.uint64(33)).astype(np.uint32),
        version=np.full(len(keys), version, np.uint32),
        admission_keys=np.empty(0, np.uint64),
        admission_counts=np.empty(0, np.uint32),
        erased_keys=np.empty(0, np.uint64),
        erased_versions=np.empty(0, np.uint32),
    )


class SnapshotStore:
    """Tablets held as snapshots. `put` and `erase` change them the way pushes and erasures do."""

    def __init__(self, tables: Sequence[TableConfig], tablet_bits: int = 4) -> None:
        self.tablet_bits = tablet_bits
        self._tables = {table.name: table for table in tables}
        self.checkpoints: list[str] = []
        self.tablets = [self._empty(tablet) for tablet in range(1 << tablet_bits)]

    def _empty(self, tablet: int) -> TabletSnapshot:
        rows = {name: random_rows(table, np.empty(0, np.uint64), 0) for name, table in self._tables.items()}
        return TabletSnapshot(tablet, self.tablet_bits, 1, None, 0, rows)

    def tables(self) -> tuple[TableConfig, ...]:
        return tuple(self._tables.values())

    def ensure_tables(self, tables: Sequence[TableConfig]) -> None:
        for table in tables:
            assert self._tables.setdefault(table.name, table) == table

    def put(self, table: str, keys: np.ndarray, seed: int) -> None:
        keys = np.unique(keys.astype(np.uint64))
        owner = (keys >> np.uint64(64 - self.tablet_bits)).astype(int)
        for tablet in np.unique(owner):
            mine = keys[owner == tablet]
            snapshot = self.tablets[tablet]
            old = snapshot.tables[table]
            new = random_rows(self._tables[table], mine, seed, snapshot.version)
            stay = ~np.isin(old.keys, mine)
            order = np.argsort(np.concatenate([old.keys[stay], mine]))
            merged = {
                name: np.concatenate([getattr(old, name)[stay], getattr(new, name)])[order]
                for name in ("keys", "weights", "state", "count", "touched_at", "version")
            }
            alive = ~np.isin(old.erased_keys, mine)
            rows = dataclasses.replace(
                old, **merged, erased_keys=old.erased_keys[alive], erased_versions=old.erased_versions[alive]
            )
            self._replace(tablet, table, rows, pushes=1)

    def erase(self, table: str, keys: np.ndarray) -> None:
        for tablet, snapshot in enumerate(self.tablets):
            old = snapshot.tables[table]
            gone = np.isin(old.keys, keys.astype(np.uint64))
            erased = np.concatenate([old.erased_keys, old.keys[gone]])
            versions = np.concatenate([old.erased_versions, np.full(gone.sum(), snapshot.version, np.uint32)])
            order = np.argsort(erased)
            columns = {
                name: getattr(old, name)[~gone]
                for name in ("keys", "weights", "state", "count", "touched_at", "version")
            }
            rows = dataclasses.replace(old, **columns, erased_keys=erased[order], erased_versions=versions[order])
            self._replace(tablet, table, rows)

    def count_candidates(self, table: str, keys: np.ndarray, counts: np.ndarray) -> None:
        """Set the admission counters of `table`."""
        for tablet, snapshot in enumerate(self.tablets):
            mine = (keys >> np.uint64(64 - self.tablet_bits)).astype(int) == tablet
            rows = dataclasses.replace(
                snapshot.tables[table], admission_keys=keys[mine], admission_counts=counts[mine].astype(np.uint32)
            )
            self._replace(tablet, table, rows)

    def forget_erased(self, tablet: int) -> None:
        """Drop the record of erased keys, as a store does that holds too many."""
        snapshot = self.tablets[tablet]
        empty = {"erased_keys": np.empty(0, np.uint64), "erased_versions": np.empty(0, np.uint32)}
        tables = {name: dataclasses.replace(rows, **empty) for name, rows in snapshot.tables.items()}
        self.tablets[tablet] = dataclasses.replace(snapshot, tables=tables, erased_since=snapshot.version + 1)
        self.cut(tablet)

    def remember(self, tablet: int, memory: AppliedMemory) -> None:
        self.tablets[tablet] = dataclasses.replace(self.tablets[tablet], applied=memory)

    def _replace(self, tablet: int, table: str, rows: TableRows, pushes: int = 0) -> None:
        snapshot = self.tablets[tablet]
        self.tablets[tablet] = dataclasses.replace(
            snapshot, tables={**snapshot.tables, table: rows}, push_count=snapshot.push_count + pushes
        )

    def begin_checkpoint(self) -> int:
        self.checkpoints.append("begun")
        return 7

    def commit_checkpoint(self, checkpoint: str, taken: TakenSnapshots) -> None:
        assert taken.number == 7
        self.checkpoints.append(checkpoint)

    def cut(self, tablet: int) -> int:
        snapshot = self.tablets[tablet]
        self.tablets[tablet] = dataclasses.replace(snapshot, version=snapshot.version + 1)
        return snapshot.version + 1

    def snapshot(self, tablet: int, since_version: int | None = None) -> TabletSnapshot:
        snapshot = self.tablets[tablet]
        if since_version is None or since_version < snapshot.erased_since:
            return snapshot
        tables = {}
        for name, rows in snapshot.tables.items():
            changed, gone = rows.version > since_version, rows.erased_versions > since_version
            columns = {
                key: getattr(rows, key)[changed]
                for key in ("keys", "weights", "state", "count", "touched_at", "version")
            }
            tables[name] = dataclasses.replace(
                rows, **columns, erased_keys=rows.erased_keys[gone], erased_versions=rows.erased_versions[gone]
            )
        return dataclasses.replace(snapshot, since_version=since_version, tables=tables)

    def restore(self, snapshot: TabletSnapshot) -> None:
        self.tablets[snapshot.tablet] = snapshot


def assert_same_tablet(left: TabletSnapshot, right: TabletSnapshot) -> None:
    """Bit equality of everything a tablet holds."""
    plain = ("tablet", "tablet_bits", "version", "since_version", "push_count", "erased_since")
    assert [getattr(left, name) for name in plain] == [getattr(right, name) for name in plain]
    assert set(left.tables) == set(right.tables)
    for name, rows in left.tables.items():
        for column in dataclasses.fields(TableRows):
            mine, other = getattr(rows, column.name), getattr(right.tables[name], column.name)
            assert mine.dtype == other.dtype, (name, column.name)
            assert mine.shape == other.shape, (name, column.name)
            assert mine.tobytes() == other.tobytes(), (name, column.name)
    for column in dataclasses.fields(AppliedMemory):
        assert getattr(left.applied, column.name).tolist() == getattr(right.applied, column.name).tolist()


def assert_same_store(left: SnapshotStore, right: SnapshotStore) -> None:
    for mine, other in zip(left.tablets, right.tablets, strict=True):
        assert_same_tablet(mine, other)


@pytest.fixture
def configs() -> tuple[TableConfig, ...]:
    """Tables of every weight dtype and of no, narrow and wide state."""
    return (
        TableConfig(name="user", blocks=(ColumnBlock(dim=8, optimizer=Adagrad()),)),
        TableConfig(name="ad/slot.1", blocks=(ColumnBlock(dim=3, optimizer=Sgd()),), dtype="float16"),
        TableConfig(name="ad_slot_1", blocks=(ColumnBlock(dim=5, optimizer=Adagrad()),), dtype="bfloat16"),
        TableConfig(
            name="item",
            blocks=(
                ColumnBlock(name="linear", dim=1, initializer=Zeros(), optimizer=Ftrl()),
                ColumnBlock(name="factors", dim=4, initializer=Uniform(), optimizer=Adagrad(lr=0.05)),
            ),
            seed=(1 << 64) - 1,
        ),
        TableConfig(name="empty", blocks=(ColumnBlock(dim=2),)),
    )


@pytest.fixture
def full_store(configs: tuple[TableConfig, ...]) -> SnapshotStore:
    """A store with rows at both ends of the key space, counters, erased keys and applied memory."""
    rng = np.random.default_rng(5)
    store = SnapshotStore(configs)
    edges = np.array([0, 1, (1 << 60) - 1, 1 << 60, (1 << 63) - 1, 1 << 63, (1 << 64) - 1], np.uint64)
    for index, table in enumerate(configs[:-1]):
        keys = rng.integers(0, 1 << 64, 500 * (index + 1), np.uint64)
        store.put(table.name, np.concatenate([keys, edges]), seed=index)
    candidates = np.sort(rng.integers(0, 1 << 64, 100, np.uint64))
    store.count_candidates("item", candidates, np.arange(1, 101))
    store.erase("user", edges[1:3])
    store.remember(
        3,
        AppliedMemory(
            np.array([5, (1 << 64) - 1], np.uint64), np.array([2, 9], np.uint64), np.array([7, -1], np.int64)
        ),
    )
    return store
