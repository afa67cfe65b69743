"""DurableShard: a shard whose mutations are in its push log before they are applied."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..embedding.store import Exchange, Pull, Push, PushReport, PushToken
from ..embedding.table_config import TableConfig
from ..embedding.table_group import TableKeys, TabletSnapshot, UpdateReport
from .checkpoint_base import CheckpointBase, ShardState, write_base
from .errors import CheckpointNotBegunError, HalfChangedError, PushLogFailedError
from .mutation import EnsureTables, Mutation
from .push_log_files import LogFolder
from .push_log_writer import PushLogWriter
from .shard import REFUSALS, PushDecision, Shard
from .tablets import TabletMask

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class DurableLog:
    """A push log that is written: its folder and its writer."""

    folder: LogFolder
    writer: PushLogWriter


@dataclass(slots=True)
class _OpenCheckpoint:
    """A checkpoint that is being taken, and the state and log position it began with."""

    number: int
    state: ShardState
    since: int


class DurableShard:
    """Decide → append → apply, one mutation at a time; the answer waits until its record is durable.

    Without a log (durability none) it is the same, less the append.
    Thread safety: any method from any thread; reads go to `shard` at once.
    Invariants: 1. the log's order is the order of application. 2. a mutation that was refused has no record. 3. nothing
    is answered, a duplicate neither, before all records it rests on are durable. 4. where memory and log may differ
    (the disk failed, memory ran out half way) every later mutation is refused: start again from the log.
    """

    def __init__(self, shard: Shard, log: DurableLog | None = None, base: str | None = None) -> None:
        """A shard that is at the end of `log`, which goes on from checkpoint `base`; `recover` of shard_recovery.py
        makes one from what is on the disk."""
        self.shard = shard
        self._log = log
        self._turn = threading.Lock()
        self._checkpoint: _OpenCheckpoint | None = None
        self._base = base
        self._failure: str | None = None

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def log_bytes(self) -> int:
        """Bytes of the push log; 0 without one."""
        return 0 if self._log is None else self._log.writer.size_bytes

    @property
    def log_end(self) -> int:
        """Records ever appended to the push log; 0 without one."""
        return 0 if self._log is None else self._log.writer.end

    @property
    def wants_checkpoint(self) -> bool:
        """Whether the push log is past its limit."""
        return self._log is not None and self._log.writer.wants_checkpoint

    # --- data ---------------------------------------------------------------------------------------------------------

    def exchange(
        self,
        push: Push | None,
        pull: Pull | None,
        tablets: TabletMask | None = None,
        out: npt.NDArray[Any] | None = None,
    ) -> Exchange:
        """Apply the push, then read the rows; see `Shard.decide` and `Shard.read`."""
        report = None if push is None else self.push(push, tablets)
        return Exchange(report, None if pull is None else self.shard.read(pull, out))

    def push(self, push: Push, tablets: TabletMask | None = None) -> PushReport:
        """What became of the push, durable.

        Raises: as `Shard.decide` and `TableGroup.apply_gradients`; PushLogFullError (no room: nothing was changed, it
        may be sent again), PushLogFailedError."""
        with self._turn:
            self._check()
            decision = self.shard.decide(push, tablets)
            if decision.refusal is not None:
                self._carry_out(decision.refusal)
            update = self._carry_out_push(decision)
            end = self.log_end
        self._wait(end)
        return self.shard.push_report(decision, update)

    def assign(
        self,
        token: PushToken,
        keys: TableKeys,
        weights: npt.NDArray[np.float32],
        state: npt.NDArray[np.float32] | None,
        *,
        if_absent: bool,
        now: int,
        tablets: TabletMask | None = None,
    ) -> int:
        """Rows set, durable; 0 where every tablet had the token already."""
        return _rows(
            self._decide_and_carry_out(
                lambda: self.shard.decide_assign(
                    token, keys, weights, state, if_absent=if_absent, now=now, tablets=tablets
                )
            )
        )

    def erase(self, token: PushToken, keys: TableKeys, tablets: TabletMask | None = None) -> int:
        """Rows removed, durable; 0 where every tablet had the token already."""
        return _rows(self._decide_and_carry_out(lambda: self.shard.decide_erase(token, keys, tablets)))

    def evict(
        self, token: PushToken, now: int, max_rows: int | None = None, tablets: TabletMask | None = None
    ) -> dict[str, int]:
        """Rows removed per table, durable; empty where the token was carried out already or no row had to go."""
        evicted = self._decide_and_carry_out(lambda: self.shard.decide_evict(token, now, max_rows, tablets))
        return evicted if isinstance(evicted, dict) else {}

    def cut(self, token: PushToken, tablet: int) -> int | None:
        """The tablet's new version, durable; None where it had the token already."""
        version = self._decide_and_carry_out(lambda: self.shard.decide_cut(token, tablet))
        return version if isinstance(version, int) else None

    def drop_table(self, token: PushToken, name: str) -> None:
        """Remove a table with its rows, durable. Raises: UnknownTableError."""
        self._decide_and_carry_out(lambda: self.shard.decide_drop_table(token, name))

    def complete_unit(self, unit: int) -> None:
        """Forget a finished work unit, durable."""
        self._decide_and_carry_out(lambda: self.shard.decide_complete(unit))

    def restore(self, token: PushToken, snapshot: TabletSnapshot) -> None:
        """Replace (or merge a delta into) one tablet that is owned, durable. Raises: WrongShardError."""
        self._decide_and_carry_out(lambda: self.shard.decide_import(token, snapshot))

    def ensure_tables(self, tables: Sequence[TableConfig]) -> None:
        """Make the tables exist, durable. Raises: TableConflictError; of several new tables, those before stay."""
        with self._turn:
            self._check()
            known = {table.name: table for table in self.shard.tables()}
            # Tables that exist are checked first, so that a conflict leaves no half of the list behind.
            for table in sorted(tables, key=lambda table: table.name not in known):
                if known.get(table.name) != table:
                    self._carry_out(EnsureTables((table,)))
            end = self.log_end
        self._wait(end)

    def apply(self, mutation: Mutation) -> UpdateReport | int | dict[str, int] | None:
        """What a mutation that needs no decision did, durable."""
        if isinstance(mutation, EnsureTables):
            self.ensure_tables(mutation.tables)
            return None
        return self._decide_and_carry_out(lambda: mutation)

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def snapshot(self, tablet: int, since_version: int | None = None) -> TabletSnapshot:
        """Consistent copy of one tablet, with its position in the log. Raises: as `Shard.snapshot`."""
        with self._turn:
            return replace(self.shard.snapshot(tablet, since_version), log_position=self.log_end)

    def begin_checkpoint(self, number: int = 0) -> int:
        """Log position now. Snapshots taken from here on may make up checkpoint `number`; one begun before is given up.

        number: never the same twice, so that a commit that comes late a second time is not taken for this one's."""
        with self._turn:
            self._checkpoint = _OpenCheckpoint(number, ShardState.of(self.shard), self.log_end)
            if self._log is not None:
                self._try_roll(self._log.writer)
            return self.log_end

    def commit_checkpoint(self, checkpoint: str, positions: npt.NDArray[np.int64], number: int = 0) -> int:
        """Bytes the push log has now that `checkpoint`, which is complete, stands in for its beginning; idempotent.

        positions: (2^t,) log position of each snapshot in the checkpoint, -1 where there is none. They come with the
        commit, as only who wrote the checkpoint knows which of several snapshots of a tablet is in it: calls are
        repeated, and exports take snapshots too.
        Raises: CheckpointNotBegunError; PushLogFullError, OSError (the log stays longer than it needs to be)."""
        with self._turn:
            taking = self._checkpoint
            if taking is None or taking.number != number:
                if checkpoint == self._base:
                    return self.log_bytes
                begun = "none" if taking is None else f"checkpoint {taking.number}"
                raise CheckpointNotBegunError(f"expected checkpoint {number} ({checkpoint}) to be begun, got {begun}")
            owned = taking.state.owned
            missing = np.flatnonzero(owned & ~((positions >= taking.since) & (positions <= self.log_end)))
            if len(missing):
                raise CheckpointNotBegunError(
                    f"expected a snapshot of every owned tablet in checkpoint {number} ({checkpoint}), "
                    f"got none of tablets {missing[:8].tolist()} (log positions {taking.since} to {self.log_end})"
                )
            if self._log is not None:
                base = CheckpointBase(checkpoint, taking.since, np.where(owned, positions, taking.since), taking.state)
                write_base(self._log.folder, base)
                self._base = checkpoint
                self._log.writer.trim(base.since)
            self._base, self._checkpoint = checkpoint, None
            return self.log_bytes

    def close(self) -> None:
        """Sync and close the push log; idempotent. Later mutations are refused."""
        with self._turn:
            self._failure = self._failure or "was closed"
            if self._log is not None:
                self._log.writer.close()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _decide_and_carry_out(
        self, decide: Callable[[], Mutation | None]
    ) -> UpdateReport | int | dict[str, int] | None:
        with self._turn:
            self._check()
            mutation = decide()
            result = None if mutation is None else self._carry_out(mutation)
            end = self.log_end
        self._wait(end)
        return result

    def _carry_out(self, mutation: Mutation) -> UpdateReport | int | dict[str, int] | None:
        generation = self.shard.generation
        result = self._log_and_apply(mutation, lambda: self.shard.apply(mutation))
        if self.shard.generation != generation and self._log is not None:
            self._try_roll(self._log.writer, self.shard.generation)
        return result

    def _carry_out_push(self, decision: PushDecision) -> UpdateReport:
        mutation = decision.mutation
        if mutation is None:
            return UpdateReport()
        return self._log_and_apply(mutation, lambda: self.shard.apply_push(decision))

    def _log_and_apply(self, mutation: Mutation, apply: Callable[[], Result]) -> Result:
        end = None if self._log is None else self._log.writer.append(mutation)
        try:
            return apply()
        except (*REFUSALS, OSError):  # the latter of a file of vectors (`TableConfig.init_from`)
            if self._log is not None and end is not None:
                self._log.writer.rewind(end)
            raise
        except HalfChangedError as error:
            self._failure = self.shard.half_changed
            raise PushLogFailedError(str(error)) from error
        except BaseException as error:
            self._failure = f"stopped half way in a mutation with {type(error).__name__}: {error}"
            raise

    def _try_roll(self, writer: PushLogWriter, generation: int | None = None) -> None:
        # A new segment now lets a trim free all before it; without room for one, trimming comes a segment later.
        try:
            writer.roll(generation)
        except OSError:
            return

    def _wait(self, end: int) -> None:
        if self._log is not None:
            self._log.writer.wait_durable(end)

    def _check(self) -> None:
        if self._failure is not None:
            raise PushLogFailedError(f"expected a shard that goes on, got one that {self._failure}")


def _rows(count: object) -> int:
    return count if isinstance(count, int) else 0
