"""What the tablets of one shard remember of work units: the ground of exactly-once pushes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..embedding.store import PushToken
from ..embedding.table_group import AppliedMemory
from .client_tokens import is_client_token
from .tablets import TabletMask

NO_BATCH = -1
FIRST_AWAITED = -2
"""A batch b that is awaited again stands in a tablet's memory as FIRST_AWAITED − b."""
CLIENTS_REMEMBERED = 4096
COMPLETED_REMEMBERED = 1 << 16


@dataclass(frozen=True, slots=True)
class Verdict:
    """What each tablet says to a token; the four masks share out the covered tablets."""

    fresh: TabletMask
    duplicate: TabletMask
    fenced: TabletMask
    waiting: TabletMask


class _Unit:
    """One unit over all tablets, (T,) each: lease, last batch, and the first and last batch refused as stale and not
    come again yet."""

    __slots__ = ("batch", "has_refused", "last_refused", "lease", "refused")

    def __init__(self, tablets: int) -> None:
        self.lease = np.zeros(tablets, np.uint64)
        self.batch = np.full(tablets, NO_BATCH, np.int64)
        self.refused = np.full(tablets, NO_BATCH, np.int64)
        self.last_refused = np.full(tablets, NO_BATCH, np.int64)
        self.has_refused = False


class UnitMemory:
    """Last batch applied per unit and tablet.

    A lease below the known one is fenced; a batch at or below the last one is a duplicate; anything else is fresh.
    A tablet that refused batch i as stale refuses later batches of the unit too, until i and then each of them has come
    again, recomputed: order is kept and none is lost.

    Invariants: 1. a tablet's last batch of a unit and its lease only grow. 2. a lease below the lowest open one is
    fenced for ever, one up to a completed unit's while that is among the last 65,536. 3. of clients, the 4,096 that
    wrote last are remembered.
    Thread safety: none; one caller at a time. Cost: about ten operations on arrays of one value a tablet.
    """

    def __init__(self, tablets: int) -> None:
        self._tablets = tablets
        self._units: dict[int, _Unit] = {}
        self._clients: OrderedDict[int, _Unit] = OrderedDict()
        self._completed: OrderedDict[int, int] = OrderedDict()
        self._lowest_lease = 0

    def judge(self, token: PushToken, covered: TabletMask, *, recomputed: bool = False) -> Verdict:
        """What the covered tablets say to the token; changes nothing.

        recomputed: the batch was refused before and comes again, in its turn."""
        nowhere = np.zeros(self._tablets, np.bool_)
        over = max(self._lowest_lease - 1, self._completed.get(token.unit, -1))
        if token.lease <= over and not is_client_token(token):
            return Verdict(nowhere, nowhere, covered, nowhere)
        unit = self._find(token)
        if unit is None:
            return Verdict(covered, nowhere, nowhere, nowhere)
        fenced = covered & (unit.lease > token.lease)
        duplicate = covered & ~fenced & (unit.batch >= token.batch)
        fresh = covered & ~(fenced | duplicate)
        if recomputed or not unit.has_refused:
            return Verdict(fresh, duplicate, fenced, nowhere)
        waiting = fresh & (unit.refused >= 0) & (unit.refused < token.batch) & (unit.lease == token.lease)
        return Verdict(fresh & ~waiting, duplicate, fenced, waiting)

    def remember(self, token: PushToken, tablets: TabletMask) -> None:
        """These tablets applied the token."""
        unit = self._find_or_add(token)
        if unit.has_refused:
            open_still = tablets & (unit.last_refused > token.batch) & (unit.lease == token.lease)
            unit.refused[tablets] = NO_BATCH
            unit.refused[open_still] = token.batch + 1
            unit.has_refused = bool((unit.refused >= 0).any())
        unit.lease[tablets] = token.lease
        unit.batch[tablets] = token.batch

    def remember_refusal(self, token: PushToken, tablets: TabletMask) -> None:
        """These tablets refused the token as stale and wait for it to come again."""
        unit = self._find_or_add(token)
        first = tablets & ((unit.refused < 0) | (unit.lease < token.lease))
        unit.refused[first] = token.batch
        unit.last_refused[tablets] = token.batch
        unit.lease[tablets] = token.lease
        unit.has_refused = True

    def lease_of(self, unit: int) -> int | None:
        """The highest lease that is known of a unit, completed ones included; None where there is none."""
        found, completed = self._units.get(unit), self._completed.get(unit)
        if found is None:
            return completed
        return max(int(found.lease.max()), -1 if completed is None else completed)

    def complete(self, unit: int, lease: int) -> None:
        """Forget a finished unit; late pushes of it by leases up to this one are fenced."""
        self._units.pop(unit, None)
        self._completed[unit] = max(lease, self._completed.get(unit, lease))
        if len(self._completed) > COMPLETED_REMEMBERED:
            self._completed.popitem(last=False)

    def raise_lowest_lease(self, lease: int) -> None:
        """Units whose leases are all below the lowest open lease are done: forget them and fence what comes late."""
        if lease <= self._lowest_lease:
            return
        self._lowest_lease = lease
        self._units = {name: unit for name, unit in self._units.items() if int(unit.lease.max()) >= lease}

    def export_tablet(self, tablet: int) -> AppliedMemory:
        """What one tablet remembers, ascending by unit; what it waits for as `AppliedMemory` says."""
        entries: list[tuple[int, int, int]] = []
        for units in (self._units, self._clients):
            for name, unit in units.items():
                lease = int(unit.lease[tablet])
                if unit.batch[tablet] != NO_BATCH:
                    entries.append((name, lease, int(unit.batch[tablet])))
                if unit.refused[tablet] != NO_BATCH:
                    awaited = {int(unit.refused[tablet]), int(unit.last_refused[tablet])}
                    entries += [(name, lease, FIRST_AWAITED - batch) for batch in awaited]
        entries.sort()
        columns = zip(*entries, strict=True) if entries else ((), (), ())
        leading, leases, batches = columns
        return AppliedMemory(np.array(leading, np.uint64), np.array(leases, np.uint64), np.array(batches, np.int64))

    def import_tablet(self, tablet: int, memory: AppliedMemory) -> None:
        """Replace what one tablet remembers."""
        self.drop_tablet(tablet)
        for unit, lease, batch in zip(memory.unit.tolist(), memory.lease.tolist(), memory.batch.tolist(), strict=True):
            entry = self._find_or_add(PushToken(unit, lease, max(batch, 0)))
            entry.lease[tablet] = lease
            if batch > FIRST_AWAITED:
                entry.batch[tablet] = batch
                continue
            awaited = FIRST_AWAITED - batch
            first = entry.refused[tablet]
            entry.refused[tablet] = awaited if first == NO_BATCH else min(first, awaited)
            entry.last_refused[tablet] = max(entry.last_refused[tablet], awaited)
            entry.has_refused = True

    def drop_tablet(self, tablet: int) -> None:
        """Forget what one tablet remembers."""
        for units in (self._units, self._clients):
            for name in list(units):
                unit = units[name]
                unit.lease[tablet] = 0
                unit.batch[tablet] = unit.refused[tablet] = unit.last_refused[tablet] = NO_BATCH
                unit.has_refused = bool((unit.refused >= 0).any())
                if not (unit.batch >= 0).any() and not unit.has_refused:
                    del units[name]

    @property
    def units(self) -> int:
        """Work units that are remembered."""
        return len(self._units)

    @property
    def completed_units(self) -> tuple[tuple[int, int], ...]:
        """(unit, lease) of those that are completed and still remembered as such, oldest first."""
        return tuple(self._completed.items())

    @property
    def lowest_lease(self) -> int:
        """Leases below are over."""
        return self._lowest_lease

    def batches_of(self, unit: int) -> npt.NDArray[np.int64]:
        """(T,) int64 last batch of a unit in each tablet, −1 for none."""
        found = self._units.get(unit)
        return np.full(self._tablets, NO_BATCH, np.int64) if found is None else found.batch.copy()

    def _find(self, token: PushToken) -> _Unit | None:
        return self._clients.get(token.unit) if is_client_token(token) else self._units.get(token.unit)

    def _find_or_add(self, token: PushToken) -> _Unit:
        if not is_client_token(token):
            unit = self._units.get(token.unit)
            if unit is None:
                unit = self._units[token.unit] = _Unit(self._tablets)
            return unit
        client = self._clients.get(token.unit)
        if client is None:
            client = self._clients[token.unit] = _Unit(self._tablets)
            if len(self._clients) > CLIENTS_REMEMBERED:
                self._clients.popitem(last=False)
        else:
            self._clients.move_to_end(token.unit)
        return client
