"""ReferenceTableGroup: the NumPy definition of the table group. Obvious and slow; the native one equals it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from . import optimizers
from .errors import DuplicateKeyError, TableConflictError, UnknownTableError
from .initializers import initial_weights
from .table_config import TableConfig
from .table_group import (
    Absent,
    TableKeys,
    TableRows,
    TableStats,
    TabletSnapshot,
    TableUpdate,
    UpdateReport,
    UpdateStep,
    split_rows,
)

F32 = npt.NDArray[np.float32]
U64 = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

NAMED_KEYS = 16


@dataclass(slots=True)
class _Row:
    weights: F32
    state: F32
    count: int
    touched_at: int
    version: int


@dataclass(slots=True)
class _Part:
    """Rows of one table in one tablet."""

    rows: dict[int, _Row] = field(default_factory=dict)
    erased: dict[int, int] = field(default_factory=dict)


class _Table:
    def __init__(self, config: TableConfig, tablets: int) -> None:
        self.config = config
        self.parts = [_Part() for _ in range(tablets)]
        self.state_width = sum(optimizers.block_state_width(block) for block in config.blocks)


def check_request(request: TableKeys, known: dict[str, Any]) -> None:
    """Raises: UnknownTableError, DuplicateKeyError, ValueError for a request not laid out as `TableKeys` says."""
    for name in request.tables:
        if name not in known:
            raise UnknownTableError(f"expected one of tables {sorted(known)}, got {name!r}")
    if len(set(request.tables)) != len(request.tables):
        raise ValueError(f"expected distinct tables in a request, got {request.tables}")
    if request.keys.dtype != np.uint64 or request.keys.ndim != 1:
        raise ValueError(f"expected keys (n,) uint64, got {request.keys.shape} {request.keys.dtype}")
    splits = request.splits
    if (
        len(splits) != len(request.tables) + 1
        or splits[0] != 0
        or splits[-1] != len(request.keys)
        or (np.diff(splits) < 0).any()
    ):
        raise ValueError(
            f"expected {len(request.tables) + 1} ascending splits from 0 to {len(request.keys)}, got {splits}"
        )
    for index, name in enumerate(request.tables):
        keys = np.sort(request.keys_of(index))
        repeated = keys[1:][keys[1:] == keys[:-1]]
        if len(repeated):
            raise DuplicateKeyError(f"expected unique keys, got key {int(repeated[0])} more than once (table {name!r})")


class ReferenceTableGroup:
    """All tables of one process, in dictionaries. See `TableGroup` for the verbs.

    Thread safety: one lock around every verb.
    """

    def __init__(self, tablet_bits: int = 8) -> None:
        if not 0 <= tablet_bits <= 16:
            raise ValueError(f"expected tablet_bits in 0..16, got {tablet_bits}")
        self._tablet_bits = tablet_bits
        self._tables: dict[str, _Table] = {}
        self._versions = [1] * (1 << tablet_bits)
        self._push_counts = np.zeros(1 << tablet_bits, np.uint64)
        self._lock = threading.RLock()

    @property
    def tablet_bits(self) -> int:
        """The key space is cut into 2^tablet_bits tablets."""
        return self._tablet_bits

    def ensure_table(self, config: TableConfig) -> None:
        """See `TableGroup.ensure_table`."""
        with self._lock:
            existing = self._tables.get(config.name)
            if existing is None:
                self._tables[config.name] = _Table(config, 1 << self._tablet_bits)
            else:
                check_same_config(existing.config, config)

    def drop_table(self, name: str) -> None:
        """See `TableGroup.drop_table`."""
        with self._lock:
            self._table(name)
            del self._tables[name]

    def tables(self) -> tuple[TableConfig, ...]:
        """See `TableGroup.tables`."""
        return tuple(table.config for table in self._tables.values())

    def state_width(self, table: str) -> int:
        """See `TableGroup.state_width`."""
        return self._table(table).state_width

    def lookup(self, request: TableKeys, absent: Absent = "initial", out: F32 | None = None) -> F32:
        """See `TableGroup.lookup`."""
        with self._lock:
            check_request(request, self._tables)
            dims = [self._tables[name].config.dim for name in request.tables]
            if out is None:
                out = np.empty(int(np.diff(request.splits) @ np.array(dims, np.int64)) if dims else 0, np.float32)
            for index, values in enumerate(split_rows(request, out, dims)):
                table, keys = self._tables[request.tables[index]], request.keys_of(index)
                values[:] = initial_weights(table.config, keys) if absent == "initial" else np.float32(0)
                for position, key in enumerate(keys.tolist()):
                    row = table.parts[self._tablet(key)].rows.get(key)
                    if row is not None:
                        values[position] = row.weights
            return out

    def apply_gradients(
        self,
        request: TableKeys,
        gradients: F32,
        occurrences: npt.NDArray[np.uint32],
        step: UpdateStep,
        tablets: Mask | None = None,
    ) -> UpdateReport:
        """See `TableGroup.apply_gradients`."""
        with self._lock:
            check_request(request, self._tables)
            dims = [self._tables[name].config.dim for name in request.tables]
            self._check_length(request, gradients, dims, "gradients")
            if occurrences.shape != request.keys.shape:
                raise ValueError(f"expected occurrences {request.keys.shape}, got {occurrences.shape}")
            report = UpdateReport()
            for tablet in np.unique(self._tablets(request.keys)).tolist():
                if tablets is None or tablets[tablet]:
                    self._push_counts[tablet] += np.uint64(1)
            for index, table_gradients in enumerate(split_rows(request, gradients, dims)):
                name = request.tables[index]
                part = slice(int(request.splits[index]), int(request.splits[index + 1]))
                keys = request.keys[part]
                wanted = self._wanted(keys, tablets)
                update, refused = self._update(
                    self._tables[name], keys[wanted], table_gradients[wanted], occurrences[part][wanted], step
                )
                report.tables[name] = update
                if refused:
                    report.non_finite_keys[name] = tuple(refused[:NAMED_KEYS])
            return report

    def _update(
        self, table: _Table, keys: U64, gradients: F32, occurrences: npt.NDArray[np.uint32], step: UpdateStep
    ) -> tuple[TableUpdate, list[int]]:
        scaled, refused, start = [], np.zeros(len(keys), np.bool_), 0
        for block in table.config.blocks:
            g = optimizers.scaled_gradients(block, gradients[:, start : start + block.dim], step)
            refused |= optimizers.is_refused(g)
            scaled.append(g)
            start += block.dim
        taken = np.flatnonzero(~refused)
        created = 0
        rows = []
        for position in taken.tolist():
            key = int(keys[position])
            row = table.parts[self._tablet(key)].rows.get(key)
            if row is None:
                row = self._create(table, key)
                created += 1
            rows.append(row)
        if rows:
            weights, state = np.stack([row.weights for row in rows]), np.stack([row.state for row in rows])
            column, state_column = 0, 0
            for block, g in zip(table.config.blocks, scaled, strict=True):
                columns = slice(column, column + block.dim)
                states = slice(state_column, state_column + optimizers.block_state_width(block))
                weights[:, columns], state[:, states] = optimizers.update_block(
                    block, weights[:, columns], g[taken], state[:, states], step
                )
                column, state_column = columns.stop, states.stop
            for index, row in enumerate(rows):
                key, occurred = int(keys[taken[index]]), int(occurrences[taken[index]])
                row.weights, row.state = weights[index], state[index]
                row.count = min(row.count + occurred, 0xFFFFFFFF)
                row.touched_at = step.now
                row.version = self._versions[self._tablet(key)]
        named = sorted(int(key) for key in keys[refused])
        return TableUpdate(applied=len(rows), created=created, non_finite=len(named)), named

    def assign(
        self,
        request: TableKeys,
        weights: F32,
        state: F32 | None = None,
        *,
        if_absent: bool = False,
        now: int = 0,
        tablets: Mask | None = None,
    ) -> int:
        """See `TableGroup.assign`."""
        with self._lock:
            check_request(request, self._tables)
            used = [self._tables[name] for name in request.tables]
            self._check_length(request, weights, [table.config.dim for table in used], "weights")
            if state is not None:
                self._check_length(request, state, [table.state_width for table in used], "state")
            weight_rows = split_rows(request, weights, [table.config.dim for table in used])
            state_rows = split_rows(request, state, [t.state_width for t in used]) if state is not None else None
            done = 0
            for index, table in enumerate(used):
                keys = request.keys_of(index)
                for position in np.flatnonzero(self._wanted(keys, tablets)).tolist():
                    key = int(keys[position])
                    part = table.parts[self._tablet(key)]
                    row = part.rows.get(key)
                    if row is not None and if_absent:
                        continue
                    if row is None:
                        row = self._create(table, key)
                    row.weights = weight_rows[index][position].copy()
                    row.state = (
                        state_rows[index][position].copy()
                        if state_rows is not None
                        else _initial_state(table, row.weights)
                    )
                    row.touched_at = now
                    row.version = self._versions[self._tablet(key)]
                    done += 1
            return done

    def erase(self, request: TableKeys, tablets: Mask | None = None) -> int:
        """See `TableGroup.erase`."""
        with self._lock:
            check_request(request, self._tables)
            done = 0
            for index, name in enumerate(request.tables):
                keys = request.keys_of(index)
                for key in keys[self._wanted(keys, tablets)].tolist():
                    done += self._remove(self._tables[name], key)
            return done

    def evict(self, now: int, max_rows: int | None = None) -> dict[str, int]:
        """See `TableGroup.evict`."""
        return dict.fromkeys(self._tables, 0)

    def snapshot(self, tablet: int, since_version: int | None = None) -> TabletSnapshot:
        """See `TableGroup.snapshot`."""
        with self._lock:
            self._check_tablet(tablet)
            return TabletSnapshot(
                tablet=tablet,
                tablet_bits=self._tablet_bits,
                version=self._versions[tablet],
                since_version=since_version,
                push_count=int(self._push_counts[tablet]),
                tables={name: _table_rows(table, tablet, since_version) for name, table in self._tables.items()},
            )

    def import_tablet(self, snapshot: TabletSnapshot) -> None:
        """See `TableGroup.import_tablet`."""
        with self._lock:
            check_import(snapshot, self._tablet_bits, self._versions[snapshot.tablet], self._shape)
            if snapshot.since_version is None:
                for table in self._tables.values():
                    table.parts[snapshot.tablet] = _Part()
            for name, rows in snapshot.tables.items():
                part = self._tables[name].parts[snapshot.tablet]
                for key, version in zip(rows.erased_keys.tolist(), rows.erased_versions.tolist(), strict=True):
                    part.rows.pop(key, None)
                    part.erased[key] = version
                for index, key in enumerate(rows.keys.tolist()):
                    part.erased.pop(key, None)
                    part.rows[key] = _Row(
                        rows.weights[index].astype(np.float32),
                        rows.state[index].copy(),
                        int(rows.count[index]),
                        int(rows.touched_at[index]),
                        int(rows.version[index]),
                    )
            self._versions[snapshot.tablet] = snapshot.version
            self._push_counts[snapshot.tablet] = snapshot.push_count

    def drop_tablet(self, tablet: int) -> None:
        """See `TableGroup.drop_tablet`."""
        with self._lock:
            self._check_tablet(tablet)
            for table in self._tables.values():
                table.parts[tablet] = _Part()

    def cut(self, tablet: int) -> int:
        """See `TableGroup.cut`."""
        with self._lock:
            self._check_tablet(tablet)
            self._versions[tablet] += 1
            return self._versions[tablet]

    def push_counts(self) -> U64:
        """See `TableGroup.push_counts`."""
        return self._push_counts.copy()

    def stats(self) -> dict[str, TableStats]:
        """See `TableGroup.stats`."""
        with self._lock:
            return {name: self._table_stats(table) for name, table in self._tables.items()}

    def _table_stats(self, table: _Table) -> TableStats:
        by_tablet = np.array([len(part.rows) for part in table.parts], np.int64)
        rows = int(by_tablet.sum())
        parts = {"weights": 4 * table.config.dim * rows, "state": 4 * table.state_width * rows, "counters": 12 * rows}
        return TableStats(rows, {**parts, "index": 8 * rows, "free": 0}, 1.0, by_tablet)

    def _table(self, name: str) -> _Table:
        if name not in self._tables:
            raise UnknownTableError(f"expected one of tables {sorted(self._tables)}, got {name!r}")
        return self._tables[name]

    def _shape(self, name: str) -> tuple[int, int, str]:
        table = self._table(name)
        return table.config.dim, table.state_width, table.config.dtype

    def _create(self, table: _Table, key: int) -> _Row:
        weights = initial_weights(table.config, np.array([key], np.uint64))[0]
        row = _Row(weights, _initial_state(table, weights), 0, 0, 0)
        part = table.parts[self._tablet(key)]
        part.rows[key] = row
        part.erased.pop(key, None)
        return row

    def _remove(self, table: _Table, key: int) -> bool:
        tablet = self._tablet(key)
        part = table.parts[tablet]
        if part.rows.pop(key, None) is None:
            return False
        part.erased[key] = self._versions[tablet]
        return True

    def _tablet(self, key: int) -> int:
        return key >> (64 - self._tablet_bits) if self._tablet_bits else 0

    def _tablets(self, keys: U64) -> npt.NDArray[np.int64]:
        if not self._tablet_bits:
            return np.zeros(len(keys), np.int64)
        return (keys >> np.uint64(64 - self._tablet_bits)).astype(np.int64)

    def _wanted(self, keys: U64, tablets: Mask | None) -> Mask:
        return np.ones(len(keys), np.bool_) if tablets is None else tablets[self._tablets(keys)]

    def _check_tablet(self, tablet: int) -> None:
        if not 0 <= tablet < 1 << self._tablet_bits:
            raise ValueError(f"expected a tablet in 0..{(1 << self._tablet_bits) - 1}, got {tablet}")

    @staticmethod
    def _check_length(request: TableKeys, flat: F32, widths: list[int], what: str) -> None:
        expected = int(np.diff(request.splits) @ np.array(widths, np.int64)) if widths else 0
        if flat.shape != (expected,) or flat.dtype != np.float32:
            raise ValueError(f"expected {what} ({expected},) float32, got {flat.shape} {flat.dtype}")


def check_same_config(existing: TableConfig, config: TableConfig) -> None:
    """Raises: TableConflictError naming the first field that differs."""
    for name in type(config).model_fields:
        if getattr(existing, name) != getattr(config, name):
            raise TableConflictError(
                f"expected {name} {getattr(existing, name)!r}, got {getattr(config, name)!r} (table {config.name!r})"
            )


def check_import(
    snapshot: TabletSnapshot, tablet_bits: int, version: int, shape_of: Callable[[str], tuple[int, int, str]]
) -> None:
    """Raises: UnknownTableError, ValueError for a snapshot that does not fit; nothing has been changed."""
    if snapshot.tablet_bits != tablet_bits:
        raise ValueError(f"expected a snapshot of 2^{tablet_bits} tablets, got one of 2^{snapshot.tablet_bits}")
    if snapshot.since_version is not None and snapshot.since_version > version:
        raise ValueError(
            f"expected a delta since version {version} or older, got since {snapshot.since_version} "
            f"(tablet {snapshot.tablet})"
        )
    for name, rows in snapshot.tables.items():
        dim, state_width, dtype = shape_of(name)
        expected = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}[dtype]
        n = len(rows.keys)
        if rows.weights.shape != (n, dim) or rows.weights.dtype != expected or rows.state.shape != (n, state_width):
            raise ValueError(
                f"expected weights ({n}, {dim}) {np.dtype(expected)} and state ({n}, {state_width}), got "
                f"{rows.weights.shape} {rows.weights.dtype} and {rows.state.shape} (table {name!r})"
            )


def _initial_state(table: _Table, weights: F32) -> F32:
    parts, start = [], 0
    for block in table.config.blocks:
        parts.append(optimizers.initial_state(block, weights[None, start : start + block.dim])[0])
        start += block.dim
    return np.concatenate(parts)


def _table_rows(table: _Table, tablet: int, since_version: int | None) -> TableRows:
    part, since = table.parts[tablet], -1 if since_version is None else since_version
    rows = sorted((key, row) for key, row in part.rows.items() if row.version > since)
    erased = sorted((key, version) for key, version in part.erased.items() if version > since)
    n = len(rows)
    return TableRows(
        keys=np.array([key for key, _ in rows], np.uint64),
        weights=np.array([row.weights for _, row in rows], np.float32).reshape(n, table.config.dim),
        state=np.array([row.state for _, row in rows], np.float32).reshape(n, table.state_width),
        count=np.array([row.count for _, row in rows], np.uint32),
        touched_at=np.array([row.touched_at for _, row in rows], np.uint32),
        version=np.array([row.version for _, row in rows], np.uint32),
        admission_keys=np.empty(0, np.uint64),
        admission_counts=np.empty(0, np.uint32),
        erased_keys=np.array([key for key, _ in erased], np.uint64),
        erased_versions=np.array([version for _, version in erased], np.uint32),
    )
