"""Mutations with their effective arguments: what a shard applies, what its push log holds, what replay repeats."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..embedding.row_types import Stored
from ..embedding.store import PushToken
from ..embedding.table_config import TableConfig
from ..embedding.table_group import TableKeys, TabletSnapshot, UpdateStep
from .tablets import TabletMask


@dataclass(frozen=True, slots=True)
class ApplyPush:
    """Gradients of one batch for the tablets that accepted them.

    tablets: apply at `step.lr_scale`.   late: apply at `step.lr_scale · late_lr` (too stale, recomputed once).
    Keys of other tablets are left out. gradients, occurrences, clicks: laid out as `keys` says; clicks None: none.
    gradients: in the bits in which they came, see `TableGroup.apply_gradients`.
    """

    token: PushToken
    keys: TableKeys
    gradients: Stored
    occurrences: npt.NDArray[np.uint32]
    step: UpdateStep
    tablets: TabletMask
    late: TabletMask
    late_lr: float = 1.0
    clicks: npt.NDArray[np.uint32] | None = None


@dataclass(frozen=True, slots=True)
class RefusePush:
    """A push refused as stale in `tablets`: they wait for its token to come again before later batches of its unit."""

    token: PushToken
    tablets: TabletMask


@dataclass(frozen=True, slots=True)
class AssignRows:
    """Rows set to weights (and state, flat, or initial state) in `tablets`."""

    token: PushToken
    keys: TableKeys
    weights: npt.NDArray[np.float32]
    state: npt.NDArray[np.float32] | None
    if_absent: bool
    now: int
    tablets: TabletMask


@dataclass(frozen=True, slots=True)
class EraseRows:
    """Rows removed from `tablets`."""

    token: PushToken
    keys: TableKeys
    tablets: TabletMask


@dataclass(frozen=True, slots=True)
class EvictRows:
    """Rows removed that the tables' eviction policies named; by key, since a scan that goes on where the last one ended
    is no function of the rows."""

    token: PushToken
    keys: TableKeys


@dataclass(frozen=True, slots=True)
class EnsureTables:
    """Tables made to exist, in this order."""

    tables: tuple[TableConfig, ...]


@dataclass(frozen=True, slots=True)
class DropTable:
    """A table removed with its rows."""

    name: str
    token: PushToken | None = None


@dataclass(frozen=True, slots=True)
class CutTablet:
    """A tablet's version bumped."""

    token: PushToken
    tablet: int


@dataclass(frozen=True, slots=True)
class ImportTablet:
    """A tablet replaced by (or a delta merged from) a snapshot, with its applied memory; the shard owns it from now."""

    snapshot: TabletSnapshot
    token: PushToken | None = None


@dataclass(frozen=True, slots=True)
class DropTablet:
    """A tablet's rows and applied memory forgotten; the shard owns it no more."""

    tablet: int


ALL_LEASES = (1 << 64) - 1
"""Of a completed unit that no lease is known of: every late push of it is fenced."""


@dataclass(frozen=True, slots=True)
class CompleteUnit:
    """A finished work unit: its applied memory is dropped and late pushes of it, by leases up to `lease`, are fenced.

    A higher lease is that of who goes on from a checkpoint taken before."""

    unit: int
    lease: int = ALL_LEASES


@dataclass(frozen=True, slots=True)
class RaiseLowestLease:
    """Leases below are over: their units are forgotten and late pushes of them fenced."""

    lease: int


@dataclass(frozen=True, slots=True)
class AdoptMap:
    """The tablets this shard owns at a map epoch, and the generation it belongs to."""

    owned: TabletMask
    epoch: int
    generation: int


Mutation = (
    ApplyPush
    | RefusePush
    | AssignRows
    | EraseRows
    | EvictRows
    | EnsureTables
    | DropTable
    | CutTablet
    | ImportTablet
    | DropTablet
    | CompleteUnit
    | RaiseLowestLease
    | AdoptMap
)


def restrict(mutation: Mutation, tablets: TabletMask) -> Mutation | None:
    """The part of a mutation that concerns `tablets`; None where nothing of it does. What speaks of no tablet stays."""
    match mutation:
        case ApplyPush():
            part = replace(mutation, tablets=mutation.tablets & tablets, late=mutation.late & tablets)
            return part if part.tablets.any() or part.late.any() else None
        case AssignRows() | EraseRows() | RefusePush():
            mask = mutation.tablets & tablets
            return replace(mutation, tablets=mask) if mask.any() else None
        case CutTablet(tablet=tablet) | DropTablet(tablet=tablet):
            return mutation if tablets[tablet] else None
        case ImportTablet(snapshot=snapshot):
            return mutation if tablets[snapshot.tablet] else None
    return mutation
