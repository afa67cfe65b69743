"""Work units of an epoch shared out among a fixed number of readers, so that each row is read by one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .errors import ClickLogError
from .row_order import mix
from .work_unit import WorkUnit


@dataclass(frozen=True, slots=True)
class UnitShare:
    """Batches `part`, `part` + `parts`, … of a unit; 0 of 1 is the whole unit."""

    unit: WorkUnit
    part: int = 0
    parts: int = 1

    @property
    def id(self) -> int:
        """uint64 that the ids of its batches name as their unit: readers that share a unit have one each, since a store
        takes the batches of one unit in their order alone."""
        return self.unit.id if self.parts == 1 else mix(self.unit.id, self.part, self.parts)


def shares(units: Sequence[WorkUnit], shard: int, shards: int) -> list[UnitShare]:
    """What reader `shard` of `shards` reads, in order.

    Whole units go round in turn; those of the last, incomplete round (all of them where there are fewer units than
    readers) are read by several readers each, batch by batch in turn, so that nobody is left without work while there
    are batches."""
    if not 0 <= shard < shards:
        raise ClickLogError(f"expected a shard in [0, {shards}), got {shard}")
    whole = len(units) // shards * shards
    mine = [UnitShare(unit) for unit in units[shard:whole:shards]]
    rest = units[whole:]
    if rest:
        unit = rest[shard % len(rest)]
        parts = len(range(shard % len(rest), shards, len(rest)))
        mine.append(UnitShare(unit, shard // len(rest), parts))
    return mine
