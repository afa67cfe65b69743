"""The table group: all tables of one process, cut into tablets, behind a small closed set of batched verbs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from .row_types import Stored
from .table_config import TableConfig

Absent = Literal["initial", "zeros", "unseen"]
"""What lookup gives for a key without a row: its initial weights (training; zeros where an admission policy has not
admitted it), zeros, or the table's `unseen` vector (evaluation, predict, serving)."""


@dataclass(frozen=True, slots=True)
class TableKeys:
    """Unique keys of several tables, concatenated.

        tables = ("user", "item")   keys = [u0 u1 u2 | i0 i1]   splits = [0, 3, 5]

    tables: T distinct names.   keys: (n,) uint64, unique within each table.   splits: (T + 1,) int64.
    """

    tables: tuple[str, ...]
    keys: npt.NDArray[np.uint64]
    splits: npt.NDArray[np.int64]

    @classmethod
    def of(cls, table: str, keys: npt.ArrayLike) -> TableKeys:
        """Keys of one table. Raises: as `as_keys`."""
        array = as_keys(keys)
        return cls((table,), array, np.array([0, len(array)], np.int64))

    @classmethod
    def concat(cls, parts: Mapping[str, npt.NDArray[np.uint64]]) -> TableKeys:
        """Keys of several tables, in the mapping's order."""
        splits = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(part) for part in parts.values()], out=splits[1:])
        keys = np.concatenate(list(parts.values())) if parts else np.empty(0, np.uint64)
        return cls(tuple(parts), keys, splits)

    def keys_of(self, index: int) -> npt.NDArray[np.uint64]:
        """(n_t,) uint64 keys of table number `index`."""
        return self.keys[self.splits[index] : self.splits[index + 1]]


def as_keys(keys: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """(n,) uint64 of whole numbers; an int64 array gives its bit patterns, as torch carries keys.

    Raises: TypeError for floats, text and others; ValueError unless flat; OverflowError beyond 64 bits."""
    # NumPy makes floats of a list such as [0, 2^64 - 1].
    given = np.asarray(keys) if hasattr(keys, "__array__") else np.asarray(keys, object)
    others = [key for key in given.flat if not isinstance(key, int | np.integer)] if given.dtype == object else []
    if others or given.dtype.kind not in "iuO":
        raise TypeError(f"expected keys that are whole numbers, got {others[0] if others else given.dtype!r}")
    if given.ndim != 1:
        raise ValueError(f"expected (n,) keys, got shape {given.shape}")
    try:
        return np.ascontiguousarray(given, dtype=np.uint64)
    except OverflowError:
        raise OverflowError(f"expected keys from 0 to 2^64 - 1, got {given.min()} to {given.max()}") from None


@dataclass(frozen=True, slots=True)
class UpdateStep:
    """What one push says beside keys and gradients; replay of the push log passes the same values again.

    examples: examples the gradient is the mean over.   step: the client's global step, ≥ 1 (catch-up, request-step bias
    correction).
    now:      seconds; stored as `touched_at`.            lr_scale: factor on each block's lr.
    unit, batch: origin of the push, input of the probability admission's hash.
    """

    examples: int = 1
    step: int = 1
    now: int = 0
    lr_scale: float = 1.0
    unit: int = 0
    batch: int = 0


@dataclass(frozen=True, slots=True)
class TableUpdate:
    """What `apply_gradients` did to one table, in rows.

    applied, created: updated; of these, made by this push.   not_admitted: keys the admission policy holds back.
    non_finite: refused gradients.   over_limit: new keys beyond capacity or memory.   evicted: rows that made room.
    """

    applied: int = 0
    created: int = 0
    not_admitted: int = 0
    non_finite: int = 0
    over_limit: int = 0
    evicted: int = 0


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """Per table, what a push did; `non_finite_keys` names refused keys (at most 16 a table)."""

    tables: dict[str, TableUpdate] = field(default_factory=dict)
    non_finite_keys: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of one table in one tablet, ascending by key.

    keys (n,) uint64 · weights (n, D) of the table's dtype (bfloat16 as its uint16 bit pattern) · state (n, S) float32 ·
    count, touched_at, version (n,) uint32.
    admission_keys (m,) uint64, admission_counts (m,) uint32: keys counted but not yet admitted.
    erased_keys (e,) uint64, erased_versions (e,) uint32: rows that left, for deltas.
    clicks (n,) uint32, or (0,) where the table keeps none: an import takes zeros for it then.
    """

    keys: npt.NDArray[np.uint64]
    weights: npt.NDArray[np.float32 | np.float16 | np.uint16]
    state: npt.NDArray[np.float32]
    count: npt.NDArray[np.uint32]
    touched_at: npt.NDArray[np.uint32]
    version: npt.NDArray[np.uint32]
    admission_keys: npt.NDArray[np.uint64]
    admission_counts: npt.NDArray[np.uint32]
    erased_keys: npt.NDArray[np.uint64]
    erased_versions: npt.NDArray[np.uint32]
    clicks: npt.NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))


@dataclass(frozen=True, slots=True)
class AppliedMemory:
    """Last batch applied per unit in one tablet: unit (u,) uint64, lease (u,) uint64, batch (u,) int64.

    A batch below −1 is one that was refused as stale and has not come again: −2 − batch. A unit has the first and the
    last of these beside its applied one.
    """

    unit: npt.NDArray[np.uint64]
    lease: npt.NDArray[np.uint64]
    batch: npt.NDArray[np.int64]

    @classmethod
    def empty(cls) -> AppliedMemory:
        """Memory of no unit."""
        return cls(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.int64))


@dataclass(frozen=True, slots=True)
class TabletSnapshot:
    """One tablet, whole or changed since a version: what a checkpoint, a delta, a move and an import all carry.

    since_version: rows with a later version and keys erased since; None: all rows.
    erased_since:  keys erased before this version are forgotten, so a delta asked for since before it comes back whole.
    log_position:  records of its shard's push log that are in it; 0 where there is no log. An import takes no notice.
    """

    tablet: int
    tablet_bits: int
    version: int
    since_version: int | None
    push_count: int
    tables: dict[str, TableRows]
    applied: AppliedMemory = field(default_factory=AppliedMemory.empty)
    erased_since: int = 0
    log_position: int = 0


@dataclass(frozen=True, slots=True)
class TableStats:
    """Rows and bytes of one table over all tablets. `bytes_by_part`: weights, state, counters, index, free."""

    rows: int
    bytes_by_part: dict[str, int]
    load_factor: float
    rows_by_tablet: npt.NDArray[np.int64]


class TableGroup(Protocol):
    """All tables of one process; `NativeTableGroup` and its NumPy definition `ReferenceTableGroup` agree bit for bit.

    Thread safety: any mix of verbs from any threads; each row update is atomic.
    Invariants: 1. lookup changes nothing. 2. a row exists only if a push or an assign made it. 3. no result depends on
    the order of keys in a request, on the number of threads or on other tables.
    `tablets` arguments are (2^tablet_bits,) bool masks: keys of tablets that are False are left out entirely.
    """

    @property
    def tablet_bits(self) -> int: ...

    def ensure_table(self, config: TableConfig) -> None:
        """Add the table; idempotent. Raises: TableConflictError naming the field that differs (nothing is changed)."""

    def drop_table(self, name: str) -> None:
        """Remove a table with its rows. Raises: UnknownTableError."""

    def tables(self) -> tuple[TableConfig, ...]:
        """Configurations in the order they were added."""

    def state_width(self, table: str) -> int:
        """`S`: float32 state values a row."""

    def lookup(self, request: TableKeys, absent: Absent = "initial", out: Stored | None = None) -> npt.NDArray[Any]:
        """(Σ n_t·D_t,) float32: rows of table 0, then of table 1 …, row i for the table's key i. Never inserts.
        A key may stand more than once.

        out: takes the rows and is returned. Where it is float16 or uint16 (bfloat16) they are rounded to the nearest,
        as `row_types.narrow_any` does.

        Raises: UnknownTableError; nothing was read."""

    def apply_gradients(
        self,
        request: TableKeys,
        gradients: Stored,
        occurrences: npt.NDArray[np.uint32],
        step: UpdateStep,
        tablets: npt.NDArray[np.bool_] | None = None,
        clicks: npt.NDArray[np.uint32] | None = None,
        prepared: object | None = None,
    ) -> UpdateReport:
        """Create admitted absent rows, then update every row by its block optimizers.

        gradients: (Σ n_t·D_t,) float32, or float16 or uint16 (bfloat16), laid out as lookup's result.
        occurrences: (n,) uint32, added to `count`.
        clicks: (n,) uint32, how many of the occurrences were clicked; added to the rows' clicks where the table keeps
        them (`TableConfig.keeps_clicks`), not looked at elsewhere. None: no occurrence was.
        prepared: what `prepare` gave for this request to all tablets, used once; saves the time that took, unless a
        table was dropped and made anew in between.
        A row with a non-finite gradient is refused, counted and named; all others are applied.

        Raises: UnknownTableError, DuplicateKeyError, TypeError (prepared by another kind of group), ValueError (more
        clicks than occurrences; a table that holds another table's unknown rows is trained by pushes to that table
        alone); nothing is changed."""

    def prepare(self, request: TableKeys, occurrences: npt.NDArray[np.uint32]) -> object:
        """What `apply_gradients` to all tablets does before it needs the gradients, done ahead; changes nothing.

        Thread safety: any thread, beside any verb. Raises: UnknownTableError; DuplicateKeyError may be left to the
        push."""

    def assign(
        self,
        request: TableKeys,
        weights: npt.NDArray[np.float32],
        state: npt.NDArray[np.float32] | None = None,
        *,
        if_absent: bool = False,
        now: int = 0,
        tablets: npt.NDArray[np.bool_] | None = None,
    ) -> int:
        """Number of rows set. State is initial unless given, flat (Σ n_t·S_t,).

        A full tablet makes room for new rows as it does for a push, by evicting rows that are not in the request, or
        has none; new keys beyond it, the largest first, are not set and not counted. `if_absent` leaves existing rows
        as they are. Raises: ValueError for weights not finite and for a table of another's unknown rows; nothing is
        set."""

    def erase(self, request: TableKeys, tablets: npt.NDArray[np.bool_] | None = None) -> int:
        """Number of rows removed; absent keys are ignored.

        Raises: ValueError for a table that holds another table's unknown rows, which stay as long as that table."""

    def expired(self, now: int, max_rows: int | None = None, tablets: npt.NDArray[np.bool_] | None = None) -> TableKeys:
        """Keys that `evict` would remove, ascending a table; nothing is removed.

        Looks at no more than `max_rows` rows and goes on there at the next call, starting again after the last tablet
        of the last table. With `tablets` (2^t,) it looks at the rows of these, and such a place stays where it is.
        A shard logs the erasure of these keys, so that a replay decides nothing."""

    def evict(
        self, now: int, max_rows: int | None = None, tablets: npt.NDArray[np.bool_] | None = None
    ) -> dict[str, int]:
        """Rows removed per table by ttl, min_l2 and score: erases what `expired` finds."""

    def snapshot(self, tablet: int, since_version: int | None = None) -> TabletSnapshot:
        """Consistent copy of one tablet: whole, or rows with version > `since_version` and keys erased since."""

    def import_tablet(self, snapshot: TabletSnapshot) -> None:
        """Replace (whole) or merge into (since a version) the tablet. Tables must exist with equal layout.

        Every row is kept, even above the tablet's capacity, so that a restore is exact; the next push or assign to the
        tablet's rows of that table evicts the excess."""

    def drop_tablet(self, tablet: int) -> None:
        """Forget all rows of one tablet in all tables."""

    def cut(self, tablet: int) -> int:
        """Bump the tablet's version; changes from now on carry the new one, which is returned."""

    def push_counts(self) -> npt.NDArray[np.uint64]:
        """(2^tablet_bits,) uint64: pushes applied to each tablet so far."""

    def stats(self) -> dict[str, TableStats]:
        """Rows and bytes per table."""


def split_rows(request: TableKeys, flat: npt.NDArray[np.float32], dims: Sequence[int]) -> list[npt.NDArray[np.float32]]:
    """Views (n_t, D_t) of a flat row buffer, one a table."""
    views, start = [], 0
    for index, dim in enumerate(dims):
        count = int(request.splits[index + 1] - request.splits[index])
        views.append(flat[start : start + count * dim].reshape(count, dim))
        start += count * dim
    return views
