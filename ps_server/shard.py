"""Shard: a set of tablets with their applied memory. Requests in, decisions and rows out; no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..embedding.store import Exchange, Pull, Push, PushReport, PushToken, Rows
from ..embedding.table_config import TableConfig, unknown_table
from ..embedding.table_group import (
    TableGroup,
    TableKeys,
    TableStats,
    TabletSnapshot,
    TableUpdate,
    UpdateReport,
    UpdateStep,
)
from .errors import GenerationError, HalfChangedError, WrongShardError
from .mutation import (
    AdoptMap,
    ApplyPush,
    AssignRows,
    CompleteUnit,
    CutTablet,
    DropTable,
    DropTablet,
    EnsureTables,
    EraseRows,
    EvictRows,
    ImportTablet,
    Mutation,
    RaiseLowestLease,
    RefusePush,
)
from .tablets import TabletMask, check_evict, keys_per_tablet, tablets_of
from .unit_memory import UnitMemory, Verdict

REFUSALS = (ValueError, LookupError, TypeError, OverflowError)
"""What a mutation raises that cannot be applied; nothing was changed."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class StalenessLimit:
    """A push whose rows were pulled more than `max_staleness` pushes ago is refused once, in the tablets where it is.

    The worker recomputes the batch from fresh rows and sends the token again; if it is still too old, it is accepted
    with its learning rate multiplied by `staleness_lr`.
    """

    max_staleness: int
    staleness_lr: float = 0.5


@dataclass(frozen=True, slots=True)
class PushDecision:
    """What a shard will do with a push: `mutation` applies it (None: nothing to apply); `stale` tablets refuse it.

    refusal: what the refusing tablets have to remember (None: nothing new); it goes before `mutation`.
    prepared: of the push.
    """

    mutation: ApplyPush | None
    verdict: Verdict
    stale: TabletMask
    refusal: RefusePush | None = None
    prepared: object | None = None


@dataclass(frozen=True, slots=True)
class TabletLoad:
    """Load of each tablet since the shard started, (2^t,) int64 each. Key counts are estimated from sampled calls."""

    pushes: npt.NDArray[np.uint64]
    pulled_keys: npt.NDArray[np.int64]
    pushed_keys: npt.NDArray[np.int64]


class Shard:
    """Tablets of one process: decides what a push may do, applies mutations, reads rows.

    Thread safety: `read`, `stats` and `load` from any thread; all other methods from one caller at a time (the lane of
    `LocalStore`, the mutation lock of a shard server), so that decide → log → apply is one step.
    Invariants: 1. a token is applied at most once in each tablet. 2. the same mutations in the same order give the same
    bits. 3. a request that touches a tablet that is not owned changes nothing. 4. after a mutation that stopped half
    way there is no other one, and no snapshot.
    """

    def __init__(
        self,
        tables: TableGroup,
        *,
        owned: TabletMask | None = None,
        epoch: int = 0,
        generation: int = 0,
        staleness: StalenessLimit | None = None,
        load_sampling: int = 0,
    ) -> None:
        """owned: tablets this shard has (None: all).   load_sampling: count the keys of each tablet in every n-th call
        (0: in none)."""
        self._tables = tables
        self.tablet_bits = tables.tablet_bits
        count = 1 << self.tablet_bits
        self._all = np.ones(count, np.bool_)
        self._none = np.zeros(count, np.bool_)
        self._owned: TabletMask = np.array(self._all if owned is None else owned, np.bool_)
        self._owns_all = bool(self._owned.all())
        self.epoch = epoch
        self.generation = generation
        self.staleness = staleness
        self._memory = UnitMemory(count)
        self._sampling = load_sampling
        self._calls = 0
        self._pulled_keys = np.zeros(count, np.int64)
        self._pushed_keys = np.zeros(count, np.int64)
        self._writable: set[tuple[str, ...]] = set()
        self.half_changed: str | None = None
        """What stopped half way, if something did."""

    # --- what the shard is --------------------------------------------------------------------------------------------

    @property
    def owned(self) -> TabletMask:
        """(2^t,) flags of the tablets this shard has; a copy."""
        owned: TabletMask = self._owned.copy()
        return owned

    @property
    def remembered_units(self) -> int:
        """Work units in the applied memory."""
        return self._memory.units

    @property
    def completed_units(self) -> tuple[tuple[int, int], ...]:
        """Completed units whose late pushes are fenced, oldest first; no tablet's snapshot has them."""
        return self._memory.completed_units

    @property
    def lowest_lease(self) -> int:
        """Pushes of leases below are fenced; no tablet's snapshot has it."""
        return self._memory.lowest_lease

    def tables(self) -> tuple[TableConfig, ...]:
        """Configurations of the tables there are."""
        return self._tables.tables()

    def state_width(self, table: str) -> int:
        """`S` of a table. Raises: UnknownTableError."""
        return self._tables.state_width(table)

    def push_counts(self) -> npt.NDArray[np.uint64]:
        """(2^t,) uint64 pushes applied to each tablet so far."""
        return self._tables.push_counts()

    def check_tablet(self, tablet: int) -> None:
        """Raises: WrongShardError if the tablet is not owned, ValueError if there is no such tablet."""
        if not 0 <= tablet < len(self._owned):
            raise ValueError(f"expected a tablet from 0 to {len(self._owned) - 1}, got {tablet}")
        if not self._owned[tablet]:
            raise WrongShardError([tablet], self.epoch)

    def check_generation(self, generation: int) -> None:
        """Raises: GenerationError if the caller belongs to another generation."""
        if generation != self.generation:
            raise GenerationError(self.generation, generation)

    # --- data ---------------------------------------------------------------------------------------------------------

    def exchange(self, push: Push | None, pull: Pull | None) -> Exchange:
        """Apply the push, then read the rows. A push without a token is the caller's to name: ValueError.

        Raises: UnknownTableError for a table of the pull too, before the push is applied."""
        for table in () if pull is None else pull.keys.tables:
            self._tables.state_width(table)  # raises for an unknown one
        report = None
        if push is not None:
            decision = self.decide(push)
            report = self.push_report(decision, self.apply_push(decision))
        return Exchange(report, None if pull is None else self.read(pull))

    def read(self, pull: Pull, out: npt.NDArray[Any] | None = None) -> Rows:
        """Rows of the pull and the push counters they were read at. out: see `TableGroup.lookup`.

        Raises: WrongShardError, UnknownTableError; nothing was read."""
        if not self._owns_all:
            self._check_owned(pull.keys.keys)
        if self._is_sampled():
            self._pulled_keys += self._sampling * keys_per_tablet(pull.keys.keys, self.tablet_bits)
        # Counters first: a push that lands in between then makes the rows look older, never newer, than they are.
        pushes = self._tables.push_counts()
        return Rows(pull.keys, self._tables.lookup(pull.keys, pull.absent, out), pushes)

    def decide(self, push: Push, tablets: TabletMask | None = None) -> PushDecision:
        """What each tablet will do with the push; changes nothing.

        tablets: the tablets this push speaks for (None: all that are owned). A tablet that it covers counts the
        batch as applied even if no key lies in it.
        Raises: WrongShardError; ValueError for keys outside `tablets`, a push without a token, or one to a table of
        unknown rows."""
        if push.token is None:
            raise ValueError("expected a push with a token, got None; the store names it before the shard sees it")
        self._check_writable(push.keys.tables)
        covered = self._covered(push.keys, tablets)
        verdict = self._memory.judge(push.token, covered, recomputed=push.recomputed)
        fresh, late, stale = verdict.fresh, self._none, verdict.waiting
        late_lr = 1.0
        if self.staleness is not None and push.seen_pushes is not None:
            age = (self._tables.push_counts() - push.seen_pushes).astype(np.int64)
            old = fresh & (age > self.staleness.max_staleness)
            if old.any():
                fresh = fresh & ~old
                if push.recomputed:
                    late, late_lr = old, self.staleness.staleness_lr
                else:
                    stale = stale | old
        refusal = RefusePush(push.token, stale) if stale.any() else None
        if not (fresh.any() or late.any()):
            return PushDecision(None, verdict, stale, refusal)
        step = UpdateStep(push.examples, push.step, push.now, push.lr_scale, push.token.unit, push.token.batch)
        mutation = ApplyPush(
            push.token, push.keys, push.gradients, push.occurrences, step, fresh, late, late_lr, push.clicks
        )
        return PushDecision(mutation, verdict, stale, refusal, push.prepared)

    def prepare_push(
        self, keys: TableKeys, occurrences: npt.NDArray[np.uint32], tablets: TabletMask | None = None
    ) -> object | None:
        """`Push.prepared` of a push that speaks for `tablets`: what can be done before there are gradients. None for
        nothing, as where the push will be refused. Any thread."""
        if not self._owns_all or (tablets is not None and not tablets.all()):
            return None
        try:
            return self._tables.prepare(keys, occurrences)
        except REFUSALS:
            return None

    def apply_push(self, decision: PushDecision) -> UpdateReport:
        """Carry out the decision; its refusal and its mutation must be the next ones applied."""
        if decision.refusal is not None:
            self.apply(decision.refusal)
        if decision.mutation is None:
            return UpdateReport()
        if self._is_sampled():
            self._pushed_keys += self._sampling * keys_per_tablet(decision.mutation.keys.keys, self.tablet_bits)
        mutation = decision.mutation
        return self._carry_out(mutation, lambda: self._apply_push(mutation, decision.prepared))

    @staticmethod
    def push_report(decision: PushDecision, update: UpdateReport) -> PushReport:
        """The decision and what came of it, as the caller is told."""
        verdict, mutation = decision.verdict, decision.mutation
        applied = 0 if mutation is None else int(np.count_nonzero(mutation.tablets | mutation.late))
        return PushReport(
            applied,
            int(np.count_nonzero(verdict.duplicate)),
            int(np.count_nonzero(verdict.fenced)),
            int(np.count_nonzero(decision.stale)),
            update.tables,
            update.non_finite_keys,
        )

    # --- mutations ----------------------------------------------------------------------------------------------------

    def decide_assign(
        self,
        token: PushToken,
        keys: TableKeys,
        weights: npt.NDArray[np.float32],
        state: npt.NDArray[np.float32] | None,
        *,
        if_absent: bool,
        now: int,
        tablets: TabletMask | None = None,
    ) -> AssignRows | None:
        """The mutation that sets the rows, or None where every tablet had the token already.

        Raises: as `decide`."""
        self._check_writable(keys.tables)
        fresh = self._fresh(token, keys, tablets)
        return AssignRows(token, keys, weights, state, if_absent, now, fresh) if fresh.any() else None

    def decide_erase(self, token: PushToken, keys: TableKeys, tablets: TabletMask | None = None) -> EraseRows | None:
        """The mutation that removes the rows, or None where every tablet had the token already.

        Raises: as `decide`."""
        self._check_writable(keys.tables)
        fresh = self._fresh(token, keys, tablets)
        return EraseRows(token, keys, fresh) if fresh.any() else None

    def decide_evict(
        self, token: PushToken, now: int, max_rows: int | None = None, tablets: TabletMask | None = None
    ) -> EvictRows | None:
        """The mutation that evicts, or None where the token was carried out already or no row has to go.

        max_rows: rows to look at; the next call goes on after them.   tablets: those whose rows are looked at.
        Raises: ValueError for max_rows below 1, or both."""
        tablets = check_evict(now, max_rows, tablets, self.tablet_bits)
        if not self._memory.judge(token, self._owned).fresh.any():
            return None
        keys = self._tables.expired(now, max_rows, tablets)
        return EvictRows(token, keys) if len(keys.keys) else None

    def decide_cut(self, token: PushToken, tablet: int) -> CutTablet | None:
        """The mutation that cuts the tablet, or None where it had the token already. Raises: WrongShardError."""
        self.check_tablet(tablet)
        return CutTablet(token, tablet) if self._memory.judge(token, self._only(tablet)).fresh.any() else None

    def decide_drop_table(self, token: PushToken, name: str) -> DropTable | None:
        """The mutation that drops the table, or None where the token was carried out already."""
        return DropTable(name, token) if self._memory.judge(token, self._owned).fresh.any() else None

    def decide_complete(self, unit: int) -> CompleteUnit:
        """The mutation that completes a unit: by the leases that are known of it, or for all where none is."""
        lease = self._memory.lease_of(unit)
        return CompleteUnit(unit) if lease is None else CompleteUnit(unit, lease)

    def decide_import(self, token: PushToken, snapshot: TabletSnapshot) -> ImportTablet | None:
        """The mutation that restores an owned tablet, or None where it had the token already.

        A first try that is still on its way when its repeat was answered would else undo what came after.
        Raises: WrongShardError."""
        self.check_tablet(snapshot.tablet)
        tablet = self._only(snapshot.tablet)
        return ImportTablet(snapshot, token) if self._memory.judge(token, tablet).fresh.any() else None

    def apply(self, mutation: Mutation) -> UpdateReport | int | dict[str, int] | None:
        """What the mutation did: a report, a number of rows, or nothing. Decides nothing: replay calls it too.

        Raises: what refuses it (nothing was changed); HalfChangedError."""
        return self._carry_out(mutation, lambda: self._apply(mutation))

    def _carry_out(self, mutation: Mutation, apply: Callable[[], Result]) -> Result:
        self._check_whole()
        try:
            return apply()
        except (MemoryError, RuntimeError) as error:
            what = type(error).__name__ + (f": {error}" if str(error) else "")
            self.half_changed = f"stopped half way in {_in_words(mutation)} with {what}"
            self._check_whole(error)
            raise

    def _check_whole(self, cause: Exception | None = None) -> None:
        if self.half_changed is not None:
            raise HalfChangedError(
                f"expected rows that are changed whole, got a store that {self.half_changed}: some of these rows are "
                "changed, others are not, and it counts as not applied; restore a checkpoint into a new store"
            ) from cause

    def _apply(self, mutation: Mutation) -> UpdateReport | int | dict[str, int] | None:
        match mutation:
            case ApplyPush():
                return self._apply_push(mutation)
            case RefusePush(token, tablets):
                self._memory.remember_refusal(token, tablets)
            case AssignRows(token, keys, weights, state, if_absent, now, tablets):
                mask = None if tablets.all() else tablets
                rows = self._tables.assign(keys, weights, state, if_absent=if_absent, now=now, tablets=mask)
                self._memory.remember(token, tablets)
                return rows
            case EraseRows(token, keys, tablets):
                rows = self._tables.erase(keys, None if tablets.all() else tablets)
                self._memory.remember(token, tablets)
                return rows
            case EvictRows(token, keys):
                parts = ((table, keys.keys_of(index)) for index, table in enumerate(keys.tables))
                evicted = {table: self._tables.erase(TableKeys.of(table, part)) for table, part in parts}
                self._memory.remember(token, self._owned)
                return evicted
            case EnsureTables(tables):
                self._ensure_tables(tables)
            case DropTable(name, token):
                self._tables.drop_table(name)
                if token is not None:
                    self._memory.remember(token, self._owned)
            case CutTablet(token, tablet):
                version = self._tables.cut(tablet)
                self._memory.remember(token, self._only(tablet))
                return version
            case ImportTablet(snapshot, token):
                self._import_tablet(snapshot)
                if token is not None:
                    self._memory.remember(token, self._only(snapshot.tablet))
            case DropTablet(tablet):
                self._drop_tablet(tablet)
            case CompleteUnit(unit, lease):
                self._memory.complete(unit, lease)
            case RaiseLowestLease(lease):
                self._memory.raise_lowest_lease(lease)
            case AdoptMap(owned, epoch, generation):
                self._set_owned(owned)
                self.epoch, self.generation = epoch, generation
        return None

    # --- tablets ------------------------------------------------------------------------------------------------------

    def snapshot(self, tablet: int, since_version: int | None = None) -> TabletSnapshot:
        """Consistent copy of one tablet with its applied memory. Raises: WrongShardError, HalfChangedError."""
        self.check_tablet(tablet)
        self._check_whole()
        return replace(self._tables.snapshot(tablet, since_version), applied=self._memory.export_tablet(tablet))

    def stats(self) -> dict[str, TableStats]:
        """Rows and bytes per table."""
        return self._tables.stats()

    def load(self) -> TabletLoad:
        """Pushes, and keys pulled and pushed (estimated from sampled calls), of each tablet."""
        return TabletLoad(self._tables.push_counts(), self._pulled_keys.copy(), self._pushed_keys.copy())

    # --- inside -------------------------------------------------------------------------------------------------------

    def _apply_push(self, push: ApplyPush, prepared: object | None = None) -> UpdateReport:
        on_time, late = bool(push.tablets.any()), bool(push.late.any())
        report = UpdateReport()
        if on_time:
            mask = None if push.tablets.all() else push.tablets
            report = self._apply_gradients(push, push.step, mask, prepared if mask is None else None)
        if late:
            step = replace(push.step, lr_scale=push.step.lr_scale * push.late_lr)
            more = self._apply_gradients(push, step, push.late)
            report = merge_updates([report, more]) if on_time else more
        self._memory.remember(push.token, push.tablets | push.late if late else push.tablets)
        return report

    def _apply_gradients(
        self, push: ApplyPush, step: UpdateStep, tablets: TabletMask | None, prepared: object | None = None
    ) -> UpdateReport:
        return self._tables.apply_gradients(
            push.keys, push.gradients, push.occurrences, step, tablets, push.clicks, prepared
        )

    def _check_writable(self, tables: tuple[str, ...]) -> None:
        if tables in self._writable:
            return
        owners = {unknown_table(table).name: table.name for table in self.tables() if table.unseen == "unknown_row"}
        for table in tables:
            if table in owners:
                raise ValueError(
                    f"expected a table with rows of its own, got {table!r}: it holds the unknown rows of table "
                    f"{owners[table]!r} and is trained by the keys of that one"
                )
        self._writable.add(tables)

    def _ensure_tables(self, tables: Sequence[TableConfig]) -> None:
        self._writable.clear()
        known = {table.name for table in self._tables.tables()}
        # Tables that exist are checked first, so that a conflict leaves no half of the list behind.
        for table in sorted(tables, key=lambda table: table.name not in known):
            self._tables.ensure_table(table)

    def _import_tablet(self, snapshot: TabletSnapshot) -> None:
        if snapshot.tablet_bits != self.tablet_bits:
            raise ValueError(f"expected a snapshot with tablet_bits {self.tablet_bits}, got {snapshot.tablet_bits}")
        self._tables.import_tablet(snapshot)
        self._memory.import_tablet(snapshot.tablet, snapshot.applied)
        self._set_owned(self._owned | self._only(snapshot.tablet))

    def _drop_tablet(self, tablet: int) -> None:
        self._tables.drop_tablet(tablet)
        self._memory.drop_tablet(tablet)
        self._set_owned(self._owned & ~self._only(tablet))

    def _fresh(self, token: PushToken, keys: TableKeys, tablets: TabletMask | None) -> TabletMask:
        verdict = self._memory.judge(token, self._covered(keys, tablets))
        return verdict.fresh

    def _covered(self, keys: TableKeys, tablets: TabletMask | None) -> TabletMask:
        if tablets is None:
            if not self._owns_all:
                self._check_owned(keys.keys)
            return self._owned
        strangers = tablets & ~self._owned
        if strangers.any():
            raise WrongShardError(np.flatnonzero(strangers).tolist(), self.epoch)
        if not tablets.all():
            outside = ~tablets[tablets_of(keys.keys, self.tablet_bits)]
            if outside.any():
                raise ValueError(
                    f"expected keys inside the {tablets.sum()} tablets of the push, got {outside.sum()} outside"
                )
        return tablets

    def _check_owned(self, keys: npt.NDArray[np.uint64]) -> None:
        tablets = tablets_of(keys, self.tablet_bits)
        if not self._owned[tablets].all():
            raise WrongShardError(np.unique(tablets[~self._owned[tablets]]).tolist(), self.epoch)

    def _set_owned(self, owned: TabletMask) -> None:
        self._owned = owned.copy()
        self._owns_all = bool(owned.all())

    def _only(self, tablet: int) -> TabletMask:
        mask: TabletMask = self._none.copy()
        mask[tablet] = True
        return mask

    def _is_sampled(self) -> bool:
        self._calls += 1
        return self._sampling > 0 and self._calls % self._sampling == 0


def _in_words(mutation: Mutation) -> str:
    words = type(mutation).__name__
    if isinstance(mutation, ApplyPush | AssignRows | EraseRows | EvictRows):
        tables = ", ".join(map(repr, mutation.keys.tables))
        words += f" of {len(mutation.keys.keys):,} rows (tables {tables}; {mutation.token})"
    return words


def merge_updates(reports: Sequence[UpdateReport]) -> UpdateReport:
    """Sum of reports over disjoint sets of rows, as of the shards of one push."""
    tables: dict[str, TableUpdate] = {}
    keys: dict[str, tuple[int, ...]] = {}
    for report in reports:
        for name, update in report.tables.items():
            known = tables.get(name, TableUpdate())
            tables[name] = TableUpdate(
                known.applied + update.applied,
                known.created + update.created,
                known.not_admitted + update.not_admitted,
                known.non_finite + update.non_finite,
                known.over_limit + update.over_limit,
                known.evicted + update.evicted,
            )
        for name, refused in report.non_finite_keys.items():
            keys[name] = (keys.get(name, ()) + refused)[:16]
    return UpdateReport(tables, keys)
