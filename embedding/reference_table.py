"""ReferenceTable: the rows of one table in dictionaries, a part a tablet. What the verbs of `reference.py` work on."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from . import optimizers, policies
from .init_vectors import load_init_vectors
from .initializers import initial_weights, mix64, stream_base
from .row_types import STORED_DTYPES, narrow_nearest, narrow_stochastic, widen
from .table_config import TableConfig, share
from .table_group import TableRows, UpdateStep

F32 = npt.NDArray[np.float32]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
Stored = npt.NDArray[np.float32 | np.float16 | np.uint16]
Mask = npt.NDArray[np.bool_]

MOST = 0xFFFFFFFF
"""Where counts saturate."""


@dataclass(slots=True)
class Row:
    """One row as it is stored; bfloat16 weights are their uint16 bit patterns."""

    weights: Stored
    state: F32
    count: int
    touched_at: int
    version: int
    clicks: int = 0


@dataclass(slots=True)
class Part:
    """Rows of one table in one tablet, occurrences counted for admission, versions of erased keys."""

    rows: dict[int, Row] = field(default_factory=dict)
    admission: dict[int, int] = field(default_factory=dict)
    erased: dict[int, int] = field(default_factory=dict)

    def remove(self, key: int, version: int) -> bool:
        """Take the row of `key` out and remember it for deltas; False if there is none."""
        if self.rows.pop(key, None) is None:
            return False
        self.erased[key] = version
        return True

    def trim_erased(self) -> bool:
        """Forget the erased keys when there are too many; True if it did."""
        if len(self.erased) <= max(policies.FEWEST_ERASED_KEPT, len(self.rows)):
            return False
        self.erased.clear()
        return True


class ReferenceTable:
    """One table: its configuration, its parts and what every verb needs of it. Thread safety: the group's lock."""

    def __init__(self, config: TableConfig, tablet_bits: int) -> None:
        tablets = range(1 << tablet_bits)
        self.config = config
        self.tablet_bits = tablet_bits
        self.parts = [Part() for _ in tablets]
        self.state_width = sum(optimizers.block_state_width(block) for block in config.blocks)
        limit = policies.row_limit(config, tablet_bits)
        self.quotas = [None if limit is None else share(limit, tablet, tablet_bits) for tablet in tablets]
        self.vectors = load_init_vectors(config)
        self.stream_base = np.uint64(stream_base(config))

    def streams(self, keys: U64) -> U64:
        """(n,) uint64: where the draws for each key begin."""
        return mix64(keys ^ self.stream_base)

    def initial(self, keys: U64) -> F32:
        """float32 weights that rows of `keys` start with."""
        weights = initial_weights(self.config, keys)
        self.vectors.put(keys, weights)
        return weights

    def initial_state(self, weights: F32) -> F32:
        """(S,) float32: the state that starts with a row's (D,) weights."""
        parts, start = [], 0
        for block in self.config.blocks:
            parts.append(optimizers.initial_state(block, weights[None, start : start + block.dim])[0])
            start += block.dim
        return np.concatenate(parts)

    def create(self, tablet: int, key: int) -> Row:
        """A new row with initial weights and state, count 0; `key` must be absent."""
        weights = self.initial(np.array([key], np.uint64))[0]
        row = Row(narrow_nearest(self.config.dtype, weights), self.initial_state(weights), 0, 0, 0)
        self.parts[tablet].rows[key] = row
        self.parts[tablet].erased.pop(key, None)
        return row

    def is_refused(self, gradients: F32, step: UpdateStep) -> Mask:
        """(n,) bool: rows whose gradient is not finite or too large in some block."""
        refused, start = np.zeros(len(gradients), np.bool_), 0
        for block in self.config.blocks:
            g = optimizers.scaled_gradients(block, gradients[:, start : start + block.dim], step)
            refused |= optimizers.is_refused(g)
            start += block.dim
        return refused

    def step_rows(
        self, keys: U64, rows: list[Row], gradients: F32, occurrences: U32, step: UpdateStep, versions: list[int]
    ) -> None:
        """One optimizer step of every block of each row, and its counters but for clicks."""
        weights = widen(self.config.dtype, np.stack([row.weights for row in rows]))
        state = np.stack([row.state for row in rows])
        column, state_column = 0, 0
        for block in self.config.blocks:
            columns = slice(column, column + block.dim)
            states = slice(state_column, state_column + optimizers.block_state_width(block))
            g = optimizers.scaled_gradients(block, gradients[:, columns], step)
            weights[:, columns], state[:, states] = optimizers.update_block(
                block, weights[:, columns], g, state[:, states], step
            )
            column, state_column = columns.stop, states.stop
        counts = np.array([row.count for row in rows], np.int64) + occurrences
        counts = np.minimum(counts, MOST).astype(np.uint32)
        stored = narrow_stochastic(self.config.dtype, weights, self.streams(keys), counts)
        for index, (row, version) in enumerate(zip(rows, versions, strict=True)):
            row.weights, row.state, row.count = stored[index], state[index], int(counts[index])
            row.touched_at, row.version = step.now, version

    def add_clicks(self, rows: list[Row], clicks: U32) -> None:
        """Count the clicks of a push, where the table keeps them."""
        if self.config.keeps_clicks:
            for row, more in zip(rows, clicks.tolist(), strict=True):
                row.clicks = min(row.clicks + more, MOST)

    def imported_clicks(self, rows: TableRows) -> U32:
        """(n,) clicks that the rows of a snapshot have here: zeros where either side keeps none."""
        known = self.config.keeps_clicks and len(rows.clicks) > 0
        return rows.clicks if known else np.zeros(len(rows.keys), np.uint32)

    def expired(self, tablet: int, keys: U64, now: int) -> list[int]:
        """Which of the tablet's `keys`, all with rows, age or value lets go at `now`."""
        if not len(keys):
            return []
        rows = [self.parts[tablet].rows[key] for key in keys.tolist()]
        weights = widen(self.config.dtype, np.stack([row.weights for row in rows]))
        count = np.array([row.count for row in rows], np.uint32)
        clicks = np.array([row.clicks for row in rows], np.uint32)
        touched_at = np.array([row.touched_at for row in rows], np.uint32)
        leaving: list[int] = keys[policies.is_expired(self.config, weights, count, clicks, touched_at, now)].tolist()
        return leaving

    def export(self, tablet: int, since_version: int | None) -> TableRows:
        """Rows of the tablet that changed since the version, all of them for None."""
        part, since = self.parts[tablet], -1 if since_version is None else since_version
        rows = sorted((key, row) for key, row in part.rows.items() if row.version > since)
        erased = sorted((key, version) for key, version in part.erased.items() if version > since)
        n = len(rows)
        return TableRows(
            keys=np.array([key for key, _ in rows], np.uint64),
            weights=np.array([row.weights for _, row in rows], STORED_DTYPES[self.config.dtype]).reshape(
                n, self.config.dim
            ),
            state=np.array([row.state for _, row in rows], np.float32).reshape(n, self.state_width),
            count=np.array([row.count for _, row in rows], np.uint32),
            touched_at=np.array([row.touched_at for _, row in rows], np.uint32),
            version=np.array([row.version for _, row in rows], np.uint32),
            admission_keys=np.array(sorted(part.admission), np.uint64),
            admission_counts=np.array([count for _, count in sorted(part.admission.items())], np.uint32),
            erased_keys=np.array([key for key, _ in erased], np.uint64),
            erased_versions=np.array([version for _, version in erased], np.uint32),
            clicks=np.array([row.clicks for _, row in rows if self.config.keeps_clicks], np.uint32),
        )
