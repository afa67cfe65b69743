"""Which new keys of a push get rows, and which rows make room for them: the definition of `plan_part` in
`native/policies.h`. Decisions about single keys and rows are in `policies.py`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from . import policies
from .reference_table import MOST, U32, U64, Mask, ReferenceTable
from .table_config import MinCount, Probability
from .table_group import UpdateStep


@dataclass(frozen=True, slots=True)
class PartPlan:
    """updated: (n,) bool, keys that have a row now.   held_back: positions of keys that are not admitted.
    counts: fields of `TableUpdate`."""

    updated: Mask
    held_back: npt.NDArray[np.int64]
    counts: dict[str, int]


def plan_part(
    table: ReferenceTable, tablet: int, keys: U64, occurrences: U32, step: UpdateStep, version: int
) -> PartPlan:
    """Plan for the tablet's `keys` (ascending); makes the new rows."""
    part = table.parts[tablet]
    has_row = np.array([key in part.rows for key in keys.tolist()], np.bool_)
    new = np.flatnonzero(~has_row)
    admitted, counted = admit(table, tablet, keys[new], occurrences[new], step)
    held_back = new[~admitted]
    new, counted = new[admitted], counted[admitted]
    room, evicted = make_room(table, tablet, len(new), set(keys.tolist()), version)
    updated = has_row.copy()
    for position, before in zip(new[:room].tolist(), counted[:room].tolist(), strict=True):
        key = int(keys[position])
        table.create(tablet, key).count = before
        part.admission.pop(key, None)
        updated[position] = True
    counts = {"created": room, "over_limit": len(new) - room, "not_admitted": len(held_back), "evicted": evicted}
    return PartPlan(updated, held_back, counts)


def admit(
    table: ReferenceTable, tablet: int, keys: U64, occurrences: U32, step: UpdateStep
) -> tuple[Mask, npt.NDArray[np.int64]]:
    """(n,) admitted; (n,) occurrences counted before this push. Counts those that are not admitted yet."""
    admission, before = table.config.admission, np.zeros(len(keys), np.int64)
    if isinstance(admission, Probability):
        return policies.is_thrown_in(admission, table.streams(keys), occurrences, step), before
    if not isinstance(admission, MinCount):
        return np.ones(len(keys), np.bool_), before
    counters = table.parts[tablet].admission
    before = np.array([counters.get(key, 0) for key in keys.tolist()], np.int64)
    after = np.minimum(before + occurrences, MOST)
    for key, count, seen in zip(keys.tolist(), after.tolist(), before.tolist(), strict=True):
        if seen:
            counters[key] = count
    admitted: Mask = after >= admission.count
    unknown = [position for position in np.flatnonzero(~admitted).tolist() if not before[position]]
    quota = policies.counter_quota(admission, tablet, table.tablet_bits)
    if len(counters) + len(unknown) > quota:
        halves = {key: count // 2 for key, count in counters.items() if count >= 2}
        counters.clear()
        counters.update(halves)
    for position in unknown[: max(0, quota - len(counters))]:
        counters[int(keys[position])] = int(after[position])
    return admitted, before


def make_room(table: ReferenceTable, tablet: int, wanted: int, touched: set[int], version: int) -> tuple[int, int]:
    """(how many of the `wanted` new rows there is room for, rows evicted to make it); none of `touched` leaves."""
    part, quota = table.parts[tablet], table.quotas[tablet]
    if quota is None or len(part.rows) + wanted <= quota:
        return wanted, 0
    order, evicted = policies.capacity_order(table.config), 0
    if order is not None:
        excess = len(part.rows) + wanted - quota + quota // 8
        leaving = sorted(
            (row.touched_at if order == "lru" else row.count, key)
            for key, row in part.rows.items()
            if key not in touched
        )[:excess]
        for _, key in leaving:
            part.remove(key, version)
        evicted = len(leaving)
    return min(wanted, max(0, quota - len(part.rows))), evicted
