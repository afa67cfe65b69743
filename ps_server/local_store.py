"""LocalStore: the store of one process, over one shard, without a network."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..datasets.argument_checks import whole_number
from ..embedding.store import Exchange, Pull, Push, TakenSnapshots
from ..embedding.store_checks import (
    check_arrays,
    check_exchange,
    check_keys,
    check_number,
    check_snapshot,
    check_tables,
)
from ..embedding.table_config import TableConfig
from ..embedding.table_group import TableGroup, TableKeys, TableStats, TabletSnapshot
from .client_tokens import ClientTokens
from .errors import SharedStoreNeededError, StoreClosedError
from .gradient_guard import GradientGuard, GuardOptions
from .gradient_norms import GradientNorms
from .lane import Lane
from .mutation import DropTable, EnsureTables, ImportTablet
from .refused_rows import log_refused_rows
from .shard import Shard, StalenessLimit
from .tablets import TabletMask


class LocalStore:
    """Rows of all tables in this process; see `EmbeddingStore`.

    Thread safety: any verb from any thread; calls are carried out one at a time, in call order.
    Raises: SharedStoreNeededError when one process of several uses it (after a fork, or at a world size above 1), since
    each would train rows of its own; `es.connect` is the way out.
    """

    def __init__(
        self,
        tablet_bits: int = 8,
        threads: int = 1,
        *,
        tables: TableGroup | None = None,
        staleness: StalenessLimit | None = None,
        guard: GuardOptions | None = None,
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        """tablet_bits: the key space is cut into 2^tablet_bits ranges.   threads: of the native tables.
        tables: another table group than the native one (tablet_bits and threads are then its own).
        guard: keeps gradients that are not finite or far outside the running norm from the rows.
        clock: seconds, stored as `touched_at` by `assign`; the default keeps runs repeatable."""
        self._process = os.getpid()
        self._check_alone()
        if tables is None:
            from ..embedding.native_table_group import NativeTableGroup

            tables = NativeTableGroup(tablet_bits, threads)
        self._tokens = ClientTokens()
        self._shard = Shard(tables, staleness=staleness)
        self._tablet_bits = self._shard.tablet_bits
        self._guard = None if guard is None else GradientGuard(guard)
        self._norms = GradientNorms()
        self._clock = clock
        self._lane = Lane()
        self._identity = f"local-{secrets.token_hex(8)}"
        self._closed = False

    @property
    def identity(self) -> str:
        """Name that is unique to this store's rows."""
        return self._identity

    @property
    def tablet_bits(self) -> int:
        """The key space is cut into 2^tablet_bits ranges."""
        return self._tablet_bits

    @property
    def shard(self) -> Shard:
        """The shard behind this store, for its statistics."""
        return self._shard

    def ensure_tables(self, tables: Sequence[TableConfig]) -> None:
        """Make the tables exist; idempotent. Raises: TableConflictError naming the field; nothing is changed."""
        tables = check_tables(tables)
        with self._turn():
            self._shard.apply(EnsureTables(tables))

    def tables(self) -> tuple[TableConfig, ...]:
        """Configurations of the tables there are."""
        with self._turn():
            return self._shard.tables()

    def prepare_push(self, keys: TableKeys, occurrences: npt.NDArray[np.uint32]) -> object | None:
        """`Push.prepared` of a later push: its keys by tablet, known to differ. Any thread, beside any verb."""
        self._turn()
        shard: Shard | None = getattr(self, "_shard", None)  # closed in this moment: the push will tell
        return None if shard is None else shard.prepare_push(keys, occurrences)

    def exchange(self, push: Push | None, pull: Pull | None) -> Exchange:
        """Apply the push, then read the rows; calls are carried out one at a time, in call order."""
        check_exchange(push, pull)
        with self._turn():
            if push is not None and push.token is None:
                push = replace(push, token=self._tokens.next())
            if push is None:
                return self._shard.exchange(push, pull)
            if self._guard is None:
                answer = self._shard.exchange(push, pull)
            else:
                answer = self._guarded_exchange(self._guard, push, pull)
            if answer.report is not None and answer.report.non_finite_keys:
                log_refused_rows(answer.report, push.token, answer.report.held_out)
            return answer

    def assign(
        self,
        keys: TableKeys,
        weights: npt.NDArray[np.float32],
        state: npt.NDArray[np.float32] | None = None,
        *,
        if_absent: bool = False,
    ) -> int:
        """Rows set; see `TableGroup.assign`."""
        check_keys(keys)
        check_arrays(weights=weights, state=state)
        with self._turn():
            token, now = self._tokens.next(), self._clock()
            mutation = self._shard.decide_assign(token, keys, weights, state, if_absent=if_absent, now=now)
            return _rows(None if mutation is None else self._shard.apply(mutation))

    def erase(self, keys: TableKeys) -> int:
        """Rows removed."""
        check_keys(keys)
        with self._turn():
            mutation = self._shard.decide_erase(self._tokens.next(), keys)
            return _rows(None if mutation is None else self._shard.apply(mutation))

    def evict(self, now: int, max_rows: int | None = None, tablets: TabletMask | None = None) -> dict[str, int]:
        """Rows removed per table by the tables' eviction policies.

        max_rows: rows to look at; the next call goes on after them. None: all rows.   tablets: (2^t,) those of these
        alone. Raises: ValueError for max_rows below 1, or both."""
        with self._turn():
            mutation = self._shard.decide_evict(self._tokens.next(), now, max_rows, tablets)
            evicted = None if mutation is None else self._shard.apply(mutation)
            return evicted if isinstance(evicted, dict) else {}

    def stats(self) -> dict[str, TableStats]:
        """Rows and bytes per table."""
        with self._turn():
            return self._shard.stats()

    def drop_table(self, name: str) -> None:
        """Remove a table with its rows. Raises: UnknownTableError."""
        with self._turn():
            self._shard.apply(DropTable(name))

    def snapshot(self, tablet: int, since_version: int | None = None) -> TabletSnapshot:
        """Consistent copy of one tablet with its applied memory."""
        tablet = whole_number(tablet, "tablet")
        if since_version is not None:
            check_number(since_version, "since_version", 32)
        with self._turn():
            return self._shard.snapshot(tablet, since_version)

    def restore(self, snapshot: TabletSnapshot) -> None:
        """Replace (or merge a delta into) one tablet."""
        check_snapshot(snapshot)
        with self._turn():
            self._shard.apply(ImportTablet(snapshot))

    def cut(self, tablet: int) -> int:
        """Bump the tablet's version; changes from now on carry the new one, which is returned."""
        tablet = whole_number(tablet, "tablet")
        with self._turn():
            mutation = self._shard.decide_cut(self._tokens.next(), tablet)
            return _rows(None if mutation is None else self._shard.apply(mutation))

    @property
    def wants_checkpoint(self) -> bool:
        """Never: this store has no push log."""
        return False

    def begin_checkpoint(self) -> int:
        """0: there is no push log to trim."""
        return 0

    def commit_checkpoint(self, checkpoint: str, taken: TakenSnapshots | None = None) -> bool:
        """True: there is no push log to trim."""
        return True

    def complete_unit(self, unit: int) -> None:
        """Let the tablets drop their applied memory of a finished work unit; late pushes of it are fenced."""
        check_number(unit, "unit", 64)
        with self._turn():
            self._shard.apply(self._shard.decide_complete(unit))

    def close(self) -> None:
        """Let go of the rows; idempotent. Any later call raises StoreClosedError."""
        if self._process == os.getpid():
            with self._lane:
                self._closed = True
                vars(self).pop("_shard", None)

    def __enter__(self) -> LocalStore:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __deepcopy__(self, memo: dict[int, object]) -> LocalStore:
        raise TypeError(
            "expected one store to one set of rows, got deepcopy of a LocalStore; share it, or make a new one"
        )

    def __reduce__(self) -> str:
        raise TypeError(
            "expected a store to stay in its process, got pickle of a LocalStore; use es.connect in the other one"
        )

    def _guarded_exchange(self, guard: GradientGuard, push: Push, pull: Pull | None) -> Exchange:
        widths = {table.name: table.dim for table in self._shard.tables()}
        if not all(table in widths for table in push.keys.tables):
            return self._shard.exchange(push, pull)  # which refuses it by name
        guarded = guard.inspect(push, widths)
        answer = self._shard.exchange(guarded.push, pull)
        if answer.report is None:
            return answer
        if answer.report.applied:
            self._norms.add(guarded.norms)
            guard.learn(self._norms.summaries(guarded.norms))
        return replace(answer, report=guarded.add_to(answer.report))

    def _turn(self) -> Lane:
        if self._process != os.getpid():
            raise SharedStoreNeededError(
                f"expected process {self._process}, which made this LocalStore, got its fork {os.getpid()}: "
                "the fork has a copy of the rows that nobody else sees; start shards and use es.connect in each process"
            )
        self._check_alone()
        if self._closed:
            raise StoreClosedError("expected an open LocalStore, got one that was closed")
        return self._lane

    @staticmethod
    def _check_alone() -> None:
        size = _world_size()
        if size > 1:
            raise SharedStoreNeededError(
                f"expected world size 1, got {size}: each process would train rows of its own in its LocalStore; "
                "start shards (`embershard cluster up`) and use es.connect in each process"
            )


def _rows(count: object) -> int:
    return count if isinstance(count, int) else 0


def _world_size() -> int:
    # torch is not imported for this: if the process uses torch.distributed, it is loaded already.
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    size = os.environ.get("WORLD_SIZE", "1")
    return int(size) if size.isdigit() else 1
