"""ReferenceTableGroup: the NumPy definition of the table group. Obvious and slow; the native one equals it."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from . import policies
from .errors import UnknownTableError
from .reference_plan import make_room, plan_part
from .reference_table import F32, MOST, U32, U64, Mask, Part, ReferenceTable, Row
from .request_checks import (
    check_clicks,
    check_droppable,
    check_finite,
    check_import,
    check_prepared,
    check_request,
    check_same_config,
    check_step,
    check_writable,
    unknown_owners,
)
from .row_types import Stored, dtype_name, narrow_any, narrow_nearest, widen
from .table_config import TableConfig, unknown_key, unknown_table
from .table_group import (
    Absent,
    TableKeys,
    TableStats,
    TabletSnapshot,
    TableUpdate,
    UpdateReport,
    UpdateStep,
    split_rows,
)

NAMED_KEYS = 16


class ReferenceTableGroup:
    """All tables of one process, in dictionaries. See `TableGroup` for the verbs.

    Thread safety: one lock around every verb.
    """

    def __init__(self, tablet_bits: int = 8) -> None:
        if not 0 <= tablet_bits <= 16:
            raise ValueError(f"expected tablet_bits in 0..16, got {tablet_bits}")
        self._tablet_bits = tablet_bits
        self._tables: dict[str, ReferenceTable] = {}
        self._owners: dict[str, str] = {}
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
            table = ReferenceTable(config, self._tablet_bits)
            if config.unseen == "unknown_row":
                self.ensure_table(unknown_table(config))
            self._tables[config.name] = table
            self._owners = unknown_owners(self.tables())

    def drop_table(self, name: str) -> None:
        """See `TableGroup.drop_table`."""
        with self._lock:
            config = self._table(name).config
            check_droppable(name, {table.config.name: table.config for table in self._tables.values()})
            del self._tables[name]
            self._cursor = None
            if config.unseen == "unknown_row":
                self._tables.pop(unknown_table(config).name, None)
            self._owners = unknown_owners(self.tables())

    def tables(self) -> tuple[TableConfig, ...]:
        """See `TableGroup.tables`."""
        return tuple(table.config for table in self._tables.values())

    def state_width(self, table: str) -> int:
        """See `TableGroup.state_width`."""
        return self._table(table).state_width

    def lookup(self, request: TableKeys, absent: Absent = "initial", out: Stored | None = None) -> npt.NDArray[Any]:
        """See `TableGroup.lookup`."""
        values = self._lookup(request, absent)
        if out is None:
            return values
        out[:] = narrow_any(dtype_name(out), values)
        return out

    def _lookup(self, request: TableKeys, absent: Absent) -> F32:
        with self._lock:
            check_request(request, self._tables, reads=True)
            dims = [self._tables[name].config.dim for name in request.tables]
            out = np.empty(int(np.diff(request.splits) @ np.array(dims, np.int64)) if dims else 0, np.float32)
            for index, values in enumerate(split_rows(request, out, dims)):
                table, keys = self._tables[request.tables[index]], request.keys_of(index)
                values[:] = self._absent(table, keys, absent)
                for position, key in enumerate(keys.tolist()):
                    row = table.parts[self._tablet(key)].rows.get(key)
                    if row is not None:
                        values[position] = widen(table.config.dtype, row.weights)
            return out

    def _absent(self, table: ReferenceTable, keys: U64, absent: Absent) -> F32:
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

    def prepare(self, request: TableKeys, occurrences: U32) -> object:
        """See `TableGroup.prepare`."""
        with self._lock:
            check_request(request, self._tables)
        return request

    def apply_gradients(
        self,
        request: TableKeys,
        gradients: Stored,
        occurrences: npt.NDArray[np.uint32],
        step: UpdateStep,
        tablets: Mask | None = None,
        clicks: U32 | None = None,
        prepared: object | None = None,
    ) -> UpdateReport:
        """See `TableGroup.apply_gradients`. Nothing is gained by preparing here."""
        check_prepared(prepared, TableKeys)
        wide = widen(dtype_name(gradients), gradients)
        with self._lock:
            check_writable(request.tables, self._owners)
            check_request(request, self._tables)
            dims = [self._tables[name].config.dim for name in request.tables]
            self._check_length(request, wide, dims, "gradients")
            if occurrences.shape != request.keys.shape:
                raise ValueError(f"expected occurrences {request.keys.shape}, got {occurrences.shape}")
            check_clicks(clicks, occurrences)
            check_step(step)
            clicked = np.zeros(len(request.keys), np.uint32) if clicks is None else clicks
            report = UpdateReport()
            for tablet in np.unique(self._tablets(request.keys)).tolist():
                if tablets is None or tablets[tablet]:
                    self._push_counts[tablet] += np.uint64(1)
            for index, table_gradients in enumerate(split_rows(request, wide, dims)):
                name = request.tables[index]
                part = slice(int(request.splits[index]), int(request.splits[index + 1]))
                keys = request.keys[part]
                wanted = self._wanted(keys, tablets)
                counts = np.stack([occurrences[part][wanted], clicked[part][wanted]])
                update, refused = self._update(self._tables[name], keys[wanted], table_gradients[wanted], counts, step)
                report.tables[name] = update
                if refused:
                    report.non_finite_keys[name] = tuple(refused[:NAMED_KEYS])
            return report

    def _update(
        self, table: ReferenceTable, keys: U64, gradients: F32, counts: U32, step: UpdateStep
    ) -> tuple[TableUpdate, list[int]]:
        """counts: (2, n) occurrences and clicks."""
        occurrences, clicks = counts
        if not table.config.trainable:
            return TableUpdate(), []
        refused = table.is_refused(gradients, step)
        total = {"non_finite": int(refused.sum())}
        taken = np.flatnonzero(~refused)
        taken = taken[np.argsort(keys[taken])]
        tablets = self._tablets(keys[taken])
        positions: list[int] = []
        for tablet in np.unique(tablets).tolist():
            part = taken[tablets == tablet]
            plan = plan_part(table, tablet, keys[part], occurrences[part], step, self._versions[tablet])
            positions += part[plan.updated].tolist()
            if plan.counts["evicted"]:
                self._trim_erased(table.parts[tablet], tablet)
            held_back = part[plan.held_back]
            if table.config.unseen == "unknown_row" and len(held_back):
                self._train_unknown(table, tablet, gradients[held_back], occurrences[held_back], step)
            for name, count in plan.counts.items():
                total[name] = total.get(name, 0) + count
        if positions:
            self._step_rows(table, keys[positions], gradients[positions], occurrences[positions], step)
            table.add_clicks(self._rows(table, keys[positions]), clicks[positions])
        return TableUpdate(applied=len(positions), **total), sorted(keys[refused].tolist())

    def _train_unknown(
        self, table: ReferenceTable, tablet: int, gradients: F32, occurrences: U32, step: UpdateStep
    ) -> None:
        """One step of the tablet's unknown row with the summed gradients of the keys held back, ascending by key."""
        unknown, total = self._tables[unknown_table(table.config).name], gradients[0].copy()
        for gradient in gradients[1:]:
            total = total + gradient
        if unknown.is_refused(total[None], step)[0]:
            return
        key = unknown_key(tablet, self._tablet_bits)
        if key not in unknown.parts[tablet].rows:
            unknown.create(tablet, key)
        occurred = np.array([min(int(occurrences.astype(np.int64).sum()), MOST)], np.uint32)
        self._step_rows(unknown, np.array([key], np.uint64), total[None], occurred, step)

    def _step_rows(self, table: ReferenceTable, keys: U64, gradients: F32, occurrences: U32, step: UpdateStep) -> None:
        versions = [self._versions[tablet] for tablet in self._tablets(keys).tolist()]
        table.step_rows(keys, self._rows(table, keys), gradients, occurrences, step, versions)

    def _rows(self, table: ReferenceTable, keys: U64) -> list[Row]:
        return [table.parts[self._tablet(key)].rows[key] for key in keys.tolist()]

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
            check_writable(request.tables, self._owners)
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
                wanted = np.flatnonzero(self._wanted(keys, tablets))
                wanted = wanted[np.argsort(keys[wanted])]
                for tablet in np.unique(self._tablets(keys[wanted])).tolist():
                    for position in self._to_assign(table, tablet, keys, wanted, if_absent):
                        given = weight_rows[index][position]
                        row = table.parts[tablet].rows[int(keys[position])]
                        row.weights = narrow_nearest(table.config.dtype, given)
                        row.state = (
                            table.initial_state(given) if state_rows is None else state_rows[index][position].copy()
                        )
                        row.touched_at, row.version = now, self._versions[tablet]
                        done += 1
            return done

    def _to_assign(
        self, table: ReferenceTable, tablet: int, keys: U64, wanted: npt.NDArray[np.int64], if_absent: bool
    ) -> list[int]:
        """Positions of the tablet's keys among the `wanted` (ascending by key) that are to be set; makes new rows."""
        part = table.parts[tablet]
        of_tablet = {int(keys[at]): at for at in wanted[self._tablets(keys[wanted]) == tablet].tolist()}
        new = [key for key in of_tablet if key not in part.rows]
        known = [] if if_absent else [key for key in of_tablet if key in part.rows]
        room, evicted = make_room(table, tablet, len(new), set(of_tablet), self._versions[tablet])
        for key in new[:room]:
            table.create(tablet, key)
        if evicted:
            self._trim_erased(part, tablet)
        return [of_tablet[key] for key in known + new[:room]]

    def erase(self, request: TableKeys, tablets: Mask | None = None) -> int:
        """See `TableGroup.erase`."""
        with self._lock:
            check_writable(request.tables, self._owners)
            check_request(request, self._tables)
            done = 0
            for index, name in enumerate(request.tables):
                keys = request.keys_of(index)
                wanted = keys[self._wanted(keys, tablets)]
                parts = self._tables[name].parts
                for tablet, key in zip(self._tablets(wanted).tolist(), wanted.tolist(), strict=True):
                    done += parts[tablet].remove(key, self._versions[tablet])
                for tablet in np.unique(self._tablets(wanted)).tolist():
                    self._trim_erased(parts[tablet], tablet)
            return done

    def expired(self, now: int, max_rows: int | None = None, tablets: npt.NDArray[np.bool_] | None = None) -> TableKeys:
        """See `TableGroup.expired`."""
        with self._lock:
            budget = 1 << 62 if max_rows is None else max_rows
            found: dict[str, list[int]] = {}
            start = None
            if tablets is None:
                start, self._cursor = self._cursor, None
            names = list(self._tables)
            first = names.index(start[0]) if start is not None and start[0] in names else 0
            for name in names[first:]:
                table = self._tables[name]
                if not policies.evicts_by_age_or_value(table.config):
                    continue
                for tablet in range(start[1] if start is not None and start[0] == name else 0, len(table.parts)):
                    if tablets is not None and not tablets[tablet]:
                        continue
                    keys = np.array(list(table.parts[tablet].rows), np.uint64)
                    hashes = policies.scan_hash(keys)
                    order = np.argsort(hashes)
                    if start is not None and start[:2] == (name, tablet):
                        order = order[hashes[order] >= np.uint64(start[2])]
                    looked = keys[order[:budget]]
                    found.setdefault(name, []).extend(table.expired(tablet, looked, now))
                    if len(order) > budget:
                        if tablets is None:
                            self._cursor = (name, tablet, int(hashes[order[budget]]))
                        return _table_keys(found)
                    budget -= len(order)
            return _table_keys(found)

    def evict(
        self, now: int, max_rows: int | None = None, tablets: npt.NDArray[np.bool_] | None = None
    ) -> dict[str, int]:
        """See `TableGroup.evict`."""
        with self._lock:
            keys = self.expired(now, max_rows, tablets)
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
                tables={name: table.export(tablet, since_version) for name, table in self._tables.items()},
                erased_since=self._erased_since[tablet],
            )

    def import_tablet(self, snapshot: TabletSnapshot) -> None:
        """See `TableGroup.import_tablet`."""
        with self._lock:
            check_import(snapshot, self._tablet_bits, self._versions[snapshot.tablet], self._shape)
            if snapshot.since_version is None:
                for table in self._tables.values():
                    table.parts[snapshot.tablet] = Part()
            for name, rows in snapshot.tables.items():
                part = self._tables[name].parts[snapshot.tablet]
                if snapshot.erased_since > self._erased_since[snapshot.tablet]:
                    kept = {key: version for key, version in part.erased.items() if version > snapshot.erased_since}
                    part.erased = kept
                part.admission = dict(zip(rows.admission_keys.tolist(), rows.admission_counts.tolist(), strict=True))
                for key, version in zip(rows.erased_keys.tolist(), rows.erased_versions.tolist(), strict=True):
                    part.rows.pop(key, None)
                    part.erased[key] = version
                clicks = self._tables[name].imported_clicks(rows)
                for index, key in enumerate(rows.keys.tolist()):
                    part.erased.pop(key, None)
                    part.rows[key] = Row(
                        rows.weights[index].copy(),
                        rows.state[index].copy(),
                        int(rows.count[index]),
                        int(rows.touched_at[index]),
                        int(rows.version[index]),
                        int(clicks[index]),
                    )
            self._versions[snapshot.tablet] = snapshot.version
            self._push_counts[snapshot.tablet] = snapshot.push_count
            self._erased_since[snapshot.tablet] = snapshot.erased_since

    def drop_tablet(self, tablet: int) -> None:
        """See `TableGroup.drop_tablet`."""
        with self._lock:
            self._check_tablet(tablet)
            for table in self._tables.values():
                table.parts[tablet] = Part()
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

    def _table_stats(self, table: ReferenceTable) -> TableStats:
        by_tablet = np.array([len(part.rows) for part in table.parts], np.int64)
        rows = int(by_tablet.sum())
        counters = 16 if table.config.keeps_clicks else 12
        parts = {
            "weights": 4 * table.config.dim * rows,
            "state": 4 * table.state_width * rows,
            "counters": counters * rows,
        }
        return TableStats(rows, {**parts, "index": 8 * rows, "free": 0}, 1.0, by_tablet)

    def _table(self, name: str) -> ReferenceTable:
        if name not in self._tables:
            raise UnknownTableError(f"expected one of tables {sorted(self._tables)}, got {name!r}")
        return self._tables[name]

    def _shape(self, name: str) -> tuple[int, int, str]:
        table = self._table(name)
        return table.config.dim, table.state_width, table.config.dtype

    def _trim_erased(self, part: Part, tablet: int) -> None:
        if part.trim_erased():
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


def _table_keys(found: dict[str, list[int]]) -> TableKeys:
    return TableKeys.concat({name: np.array(sorted(keys), np.uint64) for name, keys in found.items() if keys})
