"""ReferenceTableGroup: the NumPy definition of the table group. Obvious and slow; the native one equals it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from . import optimizers, policies
from .errors import DuplicateKeyError, TableConflictError, UnknownTableError
from .init_vectors import load_init_vectors
from .initializers import initial_weights, mix64, stream_base
from .row_types import STORED_DTYPES, narrow_nearest, narrow_stochastic, widen
from .table_config import MinCount, Probability, TableConfig, share, unknown_key, unknown_table
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
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
Stored = npt.NDArray[np.float32 | np.float16 | np.uint16]
Mask = npt.NDArray[np.bool_]

NAMED_KEYS = 16
MOST = 0xFFFFFFFF


@dataclass(slots=True)
class _Row:
    weights: Stored
    state: F32
    count: int
    touched_at: int
    version: int


@dataclass(slots=True)
class _Part:
    """Rows of one table in one tablet, occurrences counted for admission, versions of erased keys."""

    rows: dict[int, _Row] = field(default_factory=dict)
    admission: dict[int, int] = field(default_factory=dict)
    erased: dict[int, int] = field(default_factory=dict)


class _Table:
    def __init__(self, config: TableConfig, tablet_bits: int) -> None:
        tablets = range(1 << tablet_bits)
        self.config = config
        self.parts = [_Part() for _ in tablets]
        self.state_width = sum(optimizers.block_state_width(block) for block in config.blocks)
        limit = policies.row_limit(config, tablet_bits)
        self.quotas = [None if limit is None else share(limit, tablet, tablet_bits) for tablet in tablets]
        self.vectors = load_init_vectors(config)
        self.stream_base = np.uint64(stream_base(config))

    def streams(self, keys: U64) -> U64:
        return mix64(keys ^ self.stream_base)

    def initial(self, keys: U64) -> F32:
        """float32 weights that rows of `keys` start with."""
        weights = initial_weights(self.config, keys)
        self.vectors.put(keys, weights)
        return weights

    def initial_state(self, weights: F32) -> F32:
        parts, start = [], 0
        for block in self.config.blocks:
            parts.append(optimizers.initial_state(block, weights[None, start : start + block.dim])[0])
            start += block.dim
        return np.concatenate(parts)

    def create(self, tablet: int, key: int) -> _Row:
        weights = self.initial(np.array([key], np.uint64))[0]
        row = _Row(narrow_nearest(self.config.dtype, weights), self.initial_state(weights), 0, 0, 0)
        self.parts[tablet].rows[key] = row
        self.parts[tablet].erased.pop(key, None)
        return row


def check_request(request: TableKeys, known: dict[str, Any], *, reads: bool = False) -> None:
    """Raises: UnknownTableError, ValueError for a request not laid out as `TableKeys` says, DuplicateKeyError unless it
    only `reads`."""
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
    for index, name in enumerate(() if reads else request.tables):
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
        self._erased_since = [0] * (1 << tablet_bits)
        self._cursor: tuple[str, int, int] | None = None
        self._lock = threading.RLock()

    @property
    def tablet_bits(self) -> int:
        """The key space is cut into 2^tablet_bits tablets."""
        return self._tablet_bits

    def ensure_table(self, config: TableConfig) -> None:
        """See `TableGroup.ensure_table`."""
        with self._lock:
            existing = self._tables.get(config.name)
            if existing is not None:
                check_same_config(existing.config, config)
                return
            table = _Table(config, self._tablet_bits)
            if config.unseen == "unknown_row":
                self.ensure_table(unknown_table(config))
            self._tables[config.name] = table

    def drop_table(self, name: str) -> None:
        """See `TableGroup.drop_table`."""
        with self._lock:
            config = self._table(name).config
            check_droppable(name, {table.config.name: table.config for table in self._tables.values()})
            del self._tables[name]
            self._cursor = None
            if config.unseen == "unknown_row":
                self._tables.pop(unknown_table(config).name, None)

    def tables(self) -> tuple[TableConfig, ...]:
        """See `TableGroup.tables`."""
        return tuple(table.config for table in self._tables.values())

    def state_width(self, table: str) -> int:
        """See `TableGroup.state_width`."""
        return self._table(table).state_width

    def lookup(self, request: TableKeys, absent: Absent = "initial", out: F32 | None = None) -> F32:
        """See `TableGroup.lookup`."""
        with self._lock:
            check_request(request, self._tables, reads=True)
            dims = [self._tables[name].config.dim for name in request.tables]
            if out is None:
                out = np.empty(int(np.diff(request.splits) @ np.array(dims, np.int64)) if dims else 0, np.float32)
            for index, values in enumerate(split_rows(request, out, dims)):
                table, keys = self._tables[request.tables[index]], request.keys_of(index)
                values[:] = self._absent(table, keys, absent)
                for position, key in enumerate(keys.tolist()):
                    row = table.parts[self._tablet(key)].rows.get(key)
                    if row is not None:
                        values[position] = widen(table.config.dtype, row.weights)
            return out

    def _absent(self, table: _Table, keys: U64, absent: Absent) -> F32:
        """What keys without a row read."""
        if absent == "initial" and table.config.admission.kind == "always":
            return table.initial(keys)
        weights = np.zeros((len(keys), table.config.dim), np.float32)
        if absent == "zeros":
            return weights
        if table.config.unseen == "unknown_row":
            unknown = self._tables[unknown_table(table.config).name]
            for position, tablet in enumerate(self._tablets(keys).tolist()):
                row = unknown.parts[tablet].rows.get(unknown_key(tablet, self._tablet_bits))
                if row is not None:
                    weights[position] = widen(unknown.config.dtype, row.weights)
        table.vectors.put(keys, weights)
        return weights

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
            check_step(step)
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
        self, table: _Table, keys: U64, gradients: F32, occurrences: U32, step: UpdateStep
    ) -> tuple[TableUpdate, list[int]]:
        if not table.config.trainable:
            return TableUpdate(), []
        refused = self._is_refused(table, gradients, step)
        total = {"non_finite": int(refused.sum())}
        taken = np.flatnonzero(~refused)
        taken = taken[np.argsort(keys[taken])]
        tablets = self._tablets(keys[taken])
        positions: list[int] = []
        for tablet in np.unique(tablets).tolist():
            part = taken[tablets == tablet]
            admitted, counts = self._plan(table, tablet, keys[part], gradients[part], occurrences[part], step)
            positions += part[admitted].tolist()
            for name, count in counts.items():
                total[name] = total.get(name, 0) + count
        if positions:
            self._step_rows(table, keys[positions], gradients[positions], occurrences[positions], step)
        return TableUpdate(applied=len(positions), **total), sorted(keys[refused].tolist())

    def _is_refused(self, table: _Table, gradients: F32, step: UpdateStep) -> Mask:
        refused, start = np.zeros(len(gradients), np.bool_), 0
        for block in table.config.blocks:
            g = optimizers.scaled_gradients(block, gradients[:, start : start + block.dim], step)
            refused |= optimizers.is_refused(g)
            start += block.dim
        return refused

    def _plan(
        self, table: _Table, tablet: int, keys: U64, gradients: F32, occurrences: U32, step: UpdateStep
    ) -> tuple[Mask, dict[str, int]]:
        """Which of the tablet's `keys` (ascending) are updated, and counts for the report; makes the new rows."""
        part = table.parts[tablet]
        has_row = np.array([key in part.rows for key in keys.tolist()], np.bool_)
        new = np.flatnonzero(~has_row)
        admitted, counted = self._admit(table, tablet, keys[new], occurrences[new], step)
        held_back = new[~admitted]
        new, counted = new[admitted], counted[admitted]
        room, evicted = self._make_room(table, tablet, len(new), set(keys.tolist()))
        result = has_row.copy()
        for position, before in zip(new[:room].tolist(), counted[:room].tolist(), strict=True):
            key = int(keys[position])
            table.create(tablet, key).count = before
            part.admission.pop(key, None)
            result[position] = True
        if table.config.unseen == "unknown_row" and len(held_back):
            self._train_unknown(table, tablet, gradients[held_back], occurrences[held_back], step)
        counts = {"created": min(room, len(new)), "over_limit": len(new) - min(room, len(new))}
        return result, {**counts, "not_admitted": len(held_back), "evicted": evicted}

    def _admit(
        self, table: _Table, tablet: int, keys: U64, occurrences: U32, step: UpdateStep
    ) -> tuple[Mask, npt.NDArray[np.int64]]:
        """(n,) admitted; (n,) occurrences counted before this push. Counts those that are not admitted yet."""
        admission, before = table.config.admission, np.zeros(len(keys), np.int64)
        if isinstance(admission, Probability):
            return policies.is_thrown_in(admission, table.streams(keys), occurrences, step), before
        if not isinstance(admission, MinCount):
            return np.ones(len(keys), np.bool_), before
        counters = table.parts[tablet].admission
        before = np.array([counters.get(key, 0) for key in keys.tolist()], np.int64)
        after = np.minimum(before + occurrences, MOST)
        for key, count, seen in zip(keys.tolist(), after.tolist(), before.tolist(), strict=True):
            if seen:
                counters[key] = count
        admitted: Mask = after >= admission.count
        unknown = [position for position in np.flatnonzero(~admitted).tolist() if not before[position]]
        quota = policies.counter_quota(admission, tablet, self._tablet_bits)
        if len(counters) + len(unknown) > quota:
            halves = {key: count // 2 for key, count in counters.items() if count >= 2}
            counters.clear()
            counters.update(halves)
        for position in unknown[: max(0, quota - len(counters))]:
            counters[int(keys[position])] = int(after[position])
        return admitted, before

    def _make_room(self, table: _Table, tablet: int, wanted: int, touched: set[int]) -> tuple[int, int]:
        """(new rows there is room for, rows evicted to make it)."""
        part, quota = table.parts[tablet], table.quotas[tablet]
        if quota is None or len(part.rows) + wanted <= quota:
            return wanted, 0
        order, evicted = policies.capacity_order(table.config), 0
        if order is not None:
            excess = len(part.rows) + wanted - quota + quota // 8
            leaving = sorted(
                (row.touched_at if order == "lru" else row.count, key)
                for key, row in part.rows.items()
                if key not in touched
            )[:excess]
            for _, key in leaving:
                self._remove(table, key)
            self._trim_erased(part, tablet)
            evicted = len(leaving)
        return max(0, quota - len(part.rows)), evicted

    def _train_unknown(self, table: _Table, tablet: int, gradients: F32, occurrences: U32, step: UpdateStep) -> None:
        """One step of the tablet's unknown row with the summed gradients of the keys held back, ascending by key."""
        unknown, total = self._tables[unknown_table(table.config).name], gradients[0].copy()
        for gradient in gradients[1:]:
            total = total + gradient
        if self._is_refused(unknown, total[None], step)[0]:
            return
        key = unknown_key(tablet, self._tablet_bits)
        if key not in unknown.parts[tablet].rows:
            unknown.create(tablet, key)
        occurred = np.array([min(int(occurrences.astype(np.int64).sum()), MOST)], np.uint32)
        self._step_rows(unknown, np.array([key], np.uint64), total[None], occurred, step)

    def _step_rows(self, table: _Table, keys: U64, gradients: F32, occurrences: U32, step: UpdateStep) -> None:
        rows = [table.parts[self._tablet(key)].rows[key] for key in keys.tolist()]
        weights = widen(table.config.dtype, np.stack([row.weights for row in rows]))
        state = np.stack([row.state for row in rows])
        column, state_column = 0, 0
        for block in table.config.blocks:
            columns = slice(column, column + block.dim)
            states = slice(state_column, state_column + optimizers.block_state_width(block))
            g = optimizers.scaled_gradients(block, gradients[:, columns], step)
            weights[:, columns], state[:, states] = optimizers.update_block(
                block, weights[:, columns], g, state[:, states], step
            )
            column, state_column = columns.stop, states.stop
        counts = np.array([row.count for row in rows], np.int64) + occurrences
        counts = np.minimum(counts, MOST).astype(np.uint32)
        stored = narrow_stochastic(table.config.dtype, weights, table.streams(keys), counts)
        for index, (row, key) in enumerate(zip(rows, keys.tolist(), strict=True)):
            row.weights, row.state, row.count = stored[index], state[index], int(counts[index])
            row.touched_at, row.version = step.now, self._versions[self._tablet(key)]

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
            check_finite(weights)
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
                        row = table.create(self._tablet(key), key)
                    row.weights = narrow_nearest(table.config.dtype, weight_rows[index][position])
                    row.state = (
                        state_rows[index][position].copy()
                        if state_rows is not None
                        else table.initial_state(weight_rows[index][position])
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
                wanted = keys[self._wanted(keys, tablets)]
                done += sum(self._remove(self._tables[name], key) for key in wanted.tolist())
                for tablet in np.unique(self._tablets(wanted)).tolist():
                    self._trim_erased(self._tables[name].parts[tablet], tablet)
            return done

    def expired(self, now: int, max_rows: int | None = None) -> TableKeys:
        """See `TableGroup.expired`."""
        with self._lock:
            budget = 1 << 62 if max_rows is None else max_rows
            found: dict[str, list[int]] = {}
            start, self._cursor = self._cursor, None
            names = list(self._tables)
            first = names.index(start[0]) if start is not None and start[0] in names else 0
            for name in names[first:]:
                table = self._tables[name]
                if not policies.evicts_by_age_or_value(table.config):
                    continue
                for tablet in range(start[1] if start is not None and start[0] == name else 0, len(table.parts)):
                    keys = np.array(list(table.parts[tablet].rows), np.uint64)
                    hashes = policies.scan_hash(keys)
                    order = np.argsort(hashes)
                    if start is not None and start[:2] == (name, tablet):
                        order = order[hashes[order] >= np.uint64(start[2])]
                    looked = keys[order[:budget]]
                    found.setdefault(name, []).extend(self._expired_of(table, tablet, looked, now))
                    if len(order) > budget:
                        self._cursor = (name, tablet, int(hashes[order[budget]]))
                        return _table_keys(found)
                    budget -= len(order)
            return _table_keys(found)

    def _expired_of(self, table: _Table, tablet: int, keys: U64, now: int) -> list[int]:
        if not len(keys):
            return []
        rows = [table.parts[tablet].rows[key] for key in keys.tolist()]
        weights = widen(table.config.dtype, np.stack([row.weights for row in rows]))
        count = np.array([row.count for row in rows], np.uint32)
        touched_at = np.array([row.touched_at for row in rows], np.uint32)
        leaving: list[int] = keys[policies.is_expired(table.config, weights, count, touched_at, now)].tolist()
        return leaving

    def evict(self, now: int, max_rows: int | None = None) -> dict[str, int]:
        """See `TableGroup.evict`."""
        with self._lock:
            keys = self.expired(now, max_rows)
            self.erase(keys)
            removed = dict(zip(keys.tables, np.diff(keys.splits).tolist(), strict=True))
            return {name: removed.get(name, 0) for name in self._tables}

    def snapshot(self, tablet: int, since_version: int | None = None) -> TabletSnapshot:
        """See `TableGroup.snapshot`."""
        with self._lock:
            self._check_tablet(tablet)
            if since_version is not None and since_version < self._erased_since[tablet]:
                since_version = None
            return TabletSnapshot(
                tablet=tablet,
                tablet_bits=self._tablet_bits,
                version=self._versions[tablet],
                since_version=since_version,
                push_count=int(self._push_counts[tablet]),
                tables={name: _table_rows(table, tablet, since_version) for name, table in self._tables.items()},
                erased_since=self._erased_since[tablet],
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
                if snapshot.erased_since > self._erased_since[snapshot.tablet]:
                    kept = {key: version for key, version in part.erased.items() if version > snapshot.erased_since}
                    part.erased = kept
                part.admission = dict(zip(rows.admission_keys.tolist(), rows.admission_counts.tolist(), strict=True))
                for key, version in zip(rows.erased_keys.tolist(), rows.erased_versions.tolist(), strict=True):
                    part.rows.pop(key, None)
                    part.erased[key] = version
                for index, key in enumerate(rows.keys.tolist()):
                    part.erased.pop(key, None)
                    part.rows[key] = _Row(
                        rows.weights[index].copy(),
                        rows.state[index].copy(),
                        int(rows.count[index]),
                        int(rows.touched_at[index]),
                        int(rows.version[index]),
                    )
            self._versions[snapshot.tablet] = snapshot.version
            self._push_counts[snapshot.tablet] = snapshot.push_count
            self._erased_since[snapshot.tablet] = snapshot.erased_since

    def drop_tablet(self, tablet: int) -> None:
        """See `TableGroup.drop_tablet`."""
        with self._lock:
            self._check_tablet(tablet)
            for table in self._tables.values():
                table.parts[tablet] = _Part()
            self._erased_since[tablet] = self._versions[tablet]

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

    def _remove(self, table: _Table, key: int) -> bool:
        tablet = self._tablet(key)
        part = table.parts[tablet]
        if part.rows.pop(key, None) is None:
            return False
        part.erased[key] = self._versions[tablet]
        return True

    def _trim_erased(self, part: _Part, tablet: int) -> None:
        if len(part.erased) > max(policies.FEWEST_ERASED_KEPT, len(part.rows)):
            part.erased.clear()
            self._erased_since[tablet] = self._versions[tablet]

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
        expected = STORED_DTYPES[dtype]
        n = len(rows.keys)
        tablets = rows.keys >> np.uint64(64 - tablet_bits) if tablet_bits else np.zeros(n, np.uint64)
        if (rows.keys[1:] <= rows.keys[:-1]).any() or (tablets != snapshot.tablet).any():
            raise ValueError(f"expected ascending keys of tablet {snapshot.tablet}, got others (table {name!r})")
        if rows.weights.shape != (n, dim) or rows.weights.dtype != expected or rows.state.shape != (n, state_width):
            raise ValueError(
                f"expected weights ({n}, {dim}) {expected} and state ({n}, {state_width}), got "
                f"{rows.weights.shape} {rows.weights.dtype} and {rows.state.shape} (table {name!r})"
            )


def check_droppable(name: str, configs: Mapping[str, TableConfig]) -> None:
    """Raises: ValueError for the table of another table's unknown rows, which goes with that table."""
    owners = [
        other.name for other in configs.values() if other.unseen == "unknown_row" and unknown_table(other).name == name
    ]
    if owners:
        raise ValueError(f"expected to drop table {owners[0]!r}, which owns {name!r}, got {name!r} alone")


def check_step(step: UpdateStep) -> None:
    """Raises: ValueError for a step that no push can have."""
    if not (step.examples >= 1 and step.step >= 1 and 0 <= step.now < 1 << 32 and 0 <= step.lr_scale < np.inf):
        raise ValueError(f"expected examples ≥ 1, step ≥ 1, 0 ≤ now < 2^32, finite lr_scale ≥ 0, got {step}")


def check_finite(weights: F32) -> None:
    """Raises: ValueError for weights that are not all finite."""
    if not np.isfinite(weights).all():
        raise ValueError("expected finite weights, got nan or infinity")


def _table_keys(found: dict[str, list[int]]) -> TableKeys:
    return TableKeys.concat({name: np.array(sorted(keys), np.uint64) for name, keys in found.items() if keys})


def _table_rows(table: _Table, tablet: int, since_version: int | None) -> TableRows:
    part, since = table.parts[tablet], -1 if since_version is None else since_version
    rows = sorted((key, row) for key, row in part.rows.items() if row.version > since)
    erased = sorted((key, version) for key, version in part.erased.items() if version > since)
    n = len(rows)
    return TableRows(
        keys=np.array([key for key, _ in rows], np.uint64),
        weights=np.array([row.weights for _, row in rows], STORED_DTYPES[table.config.dtype]).reshape(
            n, table.config.dim
        ),
        state=np.array([row.state for _, row in rows], np.float32).reshape(n, table.state_width),
        count=np.array([row.count for _, row in rows], np.uint32),
        touched_at=np.array([row.touched_at for _, row in rows], np.uint32),
        version=np.array([row.version for _, row in rows], np.uint32),
        admission_keys=np.array(sorted(part.admission), np.uint64),
        admission_counts=np.array([count for _, count in sorted(part.admission.items())], np.uint32),
        erased_keys=np.array([key for key, _ in erased], np.uint64),
        erased_versions=np.array([version for _, version in erased], np.uint32),
    )
