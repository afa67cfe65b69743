"""The store protocol: what a trainer asks of rows, wherever they live."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .table_config import TableConfig
from .table_group import Absent, TableKeys, TableStats, TabletSnapshot, TableUpdate


@dataclass(frozen=True, slots=True)
class PushToken:
    """Names one batch's gradients for ever: work unit, lease, batch index within the unit.

    A mutation without a work unit uses (client, incarnation, sequence) in the same three places.
    """

    unit: int
    lease: int
    batch: int


@dataclass(frozen=True, slots=True)
class Push:
    """Gradients of one batch.

    token:       names the batch; None where it belongs to no work unit: the store gives it a client's token.
    gradients:   (Σ n_t·D_t,) float32, laid out as `TableKeys` says.
    occurrences: (n,) uint32, times each key occurred.
    examples, step, now, lr_scale: see `UpdateStep`.
    seen_pushes: (2^t,) uint64 push counters the rows were pulled at (staleness), or None.
    recomputed:  the same token was refused as stale and the batch was computed again from fresh rows.
    clicks:      (n,) uint32, how many of the occurrences were clicked; None: none was. Only tables that keep clicks
                 (`TableConfig.keeps_clicks`) look at it.
    prepared:    what the store's `prepare_push` gave for these keys and occurrences, not pushed with before; or None.
    """

    token: PushToken | None
    keys: TableKeys
    gradients: npt.NDArray[np.float32]
    occurrences: npt.NDArray[np.uint32]
    examples: int
    step: int
    now: int
    lr_scale: float = 1.0
    seen_pushes: npt.NDArray[np.uint64] | None = None
    recomputed: bool = False
    clicks: npt.NDArray[np.uint32] | None = None
    prepared: object | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Pull:
    """Keys whose rows are wanted, and what to give for keys without a row."""

    keys: TableKeys
    absent: Absent = "initial"


@dataclass(frozen=True, slots=True)
class PushReport:
    """What became of a push.

    applied, duplicate, fenced: tablets that applied it, had it already, or know a newer lease of the unit.
    stale:  tablets that refused it for `max_staleness`.
    tables: per table, rows applied, created, refused.   non_finite_keys: refused keys by table (at most 16 each).
    held_out: per table, rows the gradient guard kept back in the worker; held_out_non_finite: of these, rows that are
    not finite.   clipped: tables it scaled down.
    """

    applied: int = 0
    duplicate: int = 0
    fenced: int = 0
    stale: int = 0
    tables: dict[str, TableUpdate] = field(default_factory=dict)
    non_finite_keys: dict[str, tuple[int, ...]] = field(default_factory=dict)
    held_out: dict[str, int] = field(default_factory=dict)
    held_out_non_finite: dict[str, int] = field(default_factory=dict)
    clipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rows:
    """Answer to a pull: values (Σ n_t·D_t,) float32 in the request's order; pushes (2^t,) uint64 counters then."""

    keys: TableKeys
    values: npt.NDArray[np.float32]
    pushes: npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Exchange:
    """Answers to one data call."""

    report: PushReport | None
    rows: Rows | None


@dataclass(frozen=True, slots=True)
class TakenSnapshots:
    """Which snapshots a checkpoint holds: several of a tablet may be taken meanwhile, by exports or repeated calls.

    number:    as `EmbeddingStore.begin_checkpoint` gave it.
    positions: (2^t,) int64 `log_position` of each tablet's snapshot, -1 where there is none.
    """

    number: int
    positions: npt.NDArray[np.int64]


class EmbeddingStore(Protocol):
    """Rows of all tables, in this process (`LocalStore`) or on shards (`RemoteStore`); both give the same bits.

    Thread safety: any verb from any thread; `exchange` calls of one store are carried out one at a time, in call order.
    """

    @property
    def identity(self) -> str:
        """Name that is unique to this store's rows; a model's `state_dict` carries it."""

    @property
    def tablet_bits(self) -> int:
        """The key space is cut into 2^tablet_bits ranges."""

    def ensure_tables(self, tables: Sequence[TableConfig]) -> None:
        """Make the tables exist; idempotent. Raises: TableConflictError naming the field; nothing is changed."""

    def tables(self) -> tuple[TableConfig, ...]:
        """Configurations of the tables there are."""

    def prepare_push(self, keys: TableKeys, occurrences: npt.NDArray[np.uint32]) -> object | None:
        """`Push.prepared` of a later push: what can be done before there are gradients, by another thread than the one
        that pushes. None where nothing is gained. Changes nothing; what is wrong with the keys is told by the push."""

    def exchange(self, push: Push | None, pull: Pull | None) -> Exchange:
        """Apply the push, then read the rows; both in one call a shard.

        Raises: TypeError for arrays of another dtype or shape than `Push` and `TableKeys` say; nothing is changed."""

    def assign(
        self,
        keys: TableKeys,
        weights: npt.NDArray[np.float32],
        state: npt.NDArray[np.float32] | None = None,
        *,
        if_absent: bool = False,
    ) -> int:
        """Rows set; see `TableGroup.assign`."""

    def erase(self, keys: TableKeys) -> int:
        """Rows removed."""

    def evict(
        self, now: int, max_rows: int | None = None, tablets: npt.NDArray[np.bool_] | None = None
    ) -> dict[str, int]:
        """Rows removed per table by the tables' eviction policies.

        max_rows: rows that each process with rows looks at; the next call goes on after them. None: all rows.
        tablets:  (2^t,) instead, the tablets whose rows are looked at: the same ones whatever there was before, and
                  however many processes hold rows.
        Raises: ValueError for max_rows below 1, or both."""

    def stats(self) -> dict[str, TableStats]:
        """Rows and bytes per table."""

    def drop_table(self, name: str) -> None:
        """Remove a table with its rows."""

    def snapshot(self, tablet: int, since_version: int | None = None) -> TabletSnapshot:
        """Consistent copy of one tablet with its applied memory."""

    def restore(self, snapshot: TabletSnapshot) -> None:
        """Replace (or merge a delta into) one tablet."""

    def cut(self, tablet: int) -> int:
        """Bump the tablet's version, so that a later delta knows what changed since."""

    @property
    def wants_checkpoint(self) -> bool:
        """Whether a push log has outgrown its limit; a committed checkpoint lets it be trimmed."""

    def begin_checkpoint(self) -> int:
        """Number of a checkpoint that snapshots from here on may make up; pushes and other snapshots may go on.

        One that was begun before and is not committed yet is given up."""

    def commit_checkpoint(self, checkpoint: str, taken: TakenSnapshots | None = None) -> bool:
        """The checkpoint at this path is complete and holds the snapshots `taken`: push logs are trimmed to it, and
        shards start again from it. None only asks whether they do.

        False: a shard was started again since `begin_checkpoint`, or takes another checkpoint by now; it still goes on
        from an older one, which must not be removed before the next one is committed."""

    def complete_unit(self, unit: int) -> None:
        """Let the tablets drop their applied memory of a finished work unit."""

    def close(self) -> None:
        """Release threads, sockets and memory; idempotent."""
