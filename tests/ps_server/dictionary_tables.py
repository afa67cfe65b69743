"""A table group of Python dictionaries with plain SGD at learning rate 1: enough to watch what a shard does to rows."""

from __future__ import annotations

import dataclasses

import numpy as np

from embershard.embedding.errors import TableConflictError, UnknownTableError
from embershard.embedding.table_group import (
    TableKeys,
    TableRows,
    TableStats,
    TabletSnapshot,
    TableUpdate,
    UpdateReport,
    split_rows,
)


class DictionaryTables:
    """Rows start at 0; a push subtracts its gradient times lr_scale; counts add up."""

    def __init__(self, tablet_bits=2):
        self.tablet_bits = tablet_bits
        self.configs = {}
        self.rows = {}
        self.pushes = np.zeros(1 << tablet_bits, np.uint64)
        self.versions = [1] * (1 << tablet_bits)

    def tablet(self, key):
        return int(key) >> (64 - self.tablet_bits)

    def ensure_table(self, config):
        known = self.configs.setdefault(config.name, config)
        if known != config:
            raise TableConflictError(f"table {config.name!r} differs")
        self.rows.setdefault(config.name, {})

    def drop_table(self, name):
        if name not in self.configs:
            raise UnknownTableError(name)
        del self.configs[name], self.rows[name]

    def tables(self):
        return tuple(self.configs.values())

    def state_width(self, table):
        return 0

    def dims(self, request):
        return [self.configs[name].dim for name in request.tables]

    def lookup(self, request, absent="initial", out=None):
        parts = [
            np.concatenate(
                [self.rows[name].get(int(key), (np.zeros(dim, np.float32), 0))[0] for key in request.keys_of(i)]
            )
            for i, (name, dim) in enumerate(zip(request.tables, self.dims(request), strict=True))
            if len(request.keys_of(i))
        ]
        return np.concatenate(parts) if parts else np.empty(0, np.float32)

    def prepare(self, request, occurrences):
        return request

    def apply_gradients(self, request, gradients, occurrences, step, tablets=None, clicks=None, prepared=None):
        start, updates, touched = 0, {}, set()
        for i, (name, part) in enumerate(
            zip(request.tables, split_rows(request, gradients, self.dims(request)), strict=True)
        ):
            applied = 0
            for key, gradient in zip(request.keys_of(i), part, strict=True):
                count, start = int(occurrences[start]), start + 1
                if tablets is not None and not tablets[self.tablet(key)]:
                    continue
                row, seen = self.rows[name].get(int(key), (np.zeros(part.shape[1], np.float32), 0))
                self.rows[name][int(key)] = (row - np.float32(step.lr_scale) * gradient, seen + count)
                touched.add(self.tablet(key))
                applied += 1
            updates[name] = TableUpdate(applied=applied)
        self.pushes[list(touched)] += np.uint64(1)
        return UpdateReport(updates)

    def assign(self, request, weights, state=None, *, if_absent=False, now=0, tablets=None):
        changed = 0
        for i, part in enumerate(split_rows(request, weights, self.dims(request))):
            rows = self.rows[request.tables[i]]
            for key, row in zip(request.keys_of(i), part, strict=True):
                here = tablets is None or tablets[self.tablet(key)]
                if here and not (if_absent and int(key) in rows):
                    rows[int(key)] = (row.copy(), rows.get(int(key), (None, 0))[1])
                    changed += 1
        return changed

    def erase(self, request, tablets=None):
        gone = [
            self.rows[name].pop(int(key), None)
            for i, name in enumerate(request.tables)
            for key in request.keys_of(i)
            if tablets is None or tablets[self.tablet(key)]
        ]
        return sum(row is not None for row in gone)

    def expired(self, now, max_rows=None, tablets=None):
        return TableKeys.concat({})

    def snapshot(self, tablet, since_version=None):
        tables = {}
        for name, rows in self.rows.items():
            mine = sorted((key, row) for key, row in rows.items() if self.tablet(key) == tablet)
            n, dim, u64, u32 = len(mine), self.configs[name].dim, np.uint64, np.uint32
            tables[name] = TableRows(
                np.array([key for key, _ in mine], u64),
                np.array([row[0] for _, row in mine], np.float32).reshape(n, dim),
                np.empty((n, 0), np.float32),
                np.array([row[1] for _, row in mine], u32),
                np.zeros(n, u32),
                np.full(n, self.versions[tablet], u32),
                np.empty(0, u64),
                np.empty(0, u32),
                np.empty(0, u64),
                np.empty(0, u32),
            )
        return TabletSnapshot(
            tablet, self.tablet_bits, self.versions[tablet], since_version, int(self.pushes[tablet]), tables
        )

    def import_tablet(self, snapshot):
        self.drop_tablet(snapshot.tablet)
        for name, rows in snapshot.tables.items():
            for key, row, count in zip(rows.keys, rows.weights, rows.count, strict=True):
                self.rows[name][int(key)] = (row.copy(), int(count))
        self.pushes[snapshot.tablet] = snapshot.push_count
        self.versions[snapshot.tablet] = snapshot.version

    def drop_tablet(self, tablet):
        for name in self.rows:
            self.rows[name] = {key: row for key, row in self.rows[name].items() if self.tablet(key) != tablet}

    def cut(self, tablet):
        self.versions[tablet] += 1
        return self.versions[tablet]

    def push_counts(self):
        return self.pushes.copy()

    def stats(self):
        by_tablet = {
            name: np.bincount([self.tablet(key) for key in rows] or [0], minlength=1 << self.tablet_bits)
            for name, rows in self.rows.items()
        }
        return {name: TableStats(len(rows), {}, 0.0, by_tablet[name]) for name, rows in self.rows.items()}


def same_snapshot(left, right):
    """Whether two snapshots hold equal bits."""
    head = ("tablet", "tablet_bits", "version", "since_version", "push_count", "erased_since")
    return (
        all(getattr(left, name) == getattr(right, name) for name in head)
        and left.tables.keys() == right.tables.keys()
        and all(_same_arrays(left.tables[name], right.tables[name]) for name in left.tables)
        and _same_arrays(left.applied, right.applied)
    )


def _same_arrays(left, right):
    return all(
        getattr(left, field.name).tobytes() == getattr(right, field.name).tobytes()
        for field in dataclasses.fields(left)
    )
