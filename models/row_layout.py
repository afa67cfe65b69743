"""Which features read which columns of which rows: the plan of an embedding collection. No torch, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..embedding.batch_rows import Pooling, RowColumns, UniqueKeys, count_clicks, deduplicate, pooled_fields
from ..embedding.table_config import TableConfig
from ..feature_map.batch import FeatureBatch
from .errors import FeatureMismatchError

CLICK_LABEL = np.float32(0.5)
"""An example is clicked where its first label is at least this."""

POOLINGS = {"sum": Pooling.SUM, "mean": Pooling.MEAN, "sqrtn": Pooling.SQRTN, "max": Pooling.MAX}


class FeatureDefinition(Protocol):
    """What a layout reads of a categorical feature."""

    @property
    def name(self) -> str: ...

    @property
    def table(self) -> str: ...

    @property
    def pooling(self) -> str: ...


@dataclass(frozen=True, slots=True)
class FeatureSlot:
    """A categorical feature: its place in a batch, its table, how bags become vectors (None: they stay sequences)."""

    name: str
    index: int
    table: str
    pooling: Pooling | None


@dataclass(frozen=True)
class RowGroup:
    """Tables whose rows have the same column blocks; a pull gives their rows as one (n, width) matrix.

    first_table, table_count: which of the layout's tables.   blocks: name → columns in the row.
    slots: pooled features.   sequences: features with pooling `none`.
    """

    first_table: int
    table_count: int
    width: int
    blocks: Mapping[str, RowColumns]
    slots: tuple[FeatureSlot, ...]
    sequences: tuple[FeatureSlot, ...]

    @cached_property
    def whole(self) -> RowColumns:
        """All columns of the row."""
        return RowColumns(0, self.width)

    @cached_property
    def _fields(self) -> dict[tuple[int, tuple[bool, ...]], npt.NDArray[np.int64]]:
        return {}

    def fields(self, dim: int, scalar: tuple[bool, ...]) -> npt.NDArray[np.int64]:
        """`Bags.fields` that puts the pooled features side by side, `dim` columns each; `scalar` as in the batch."""
        known = self._fields.get((dim, scalar))
        if known is None:
            indices = [slot.index for slot in self.slots]
            known = pooled_fields(
                indices,
                [dim * place for place in range(len(indices))],
                [slot.pooling for slot in self.slots if slot.pooling is not None],
                [scalar[index] for index in indices],
            )
            self._fields[(dim, scalar)] = known
        return known


class RowLayout:
    """Tables in the order that requests name them, group after group, and the groups.

    Thread safety: immutable but for a cache that only grows by equal values.
    """

    def __init__(self, features: Sequence[FeatureDefinition], tables: Mapping[str, TableConfig]) -> None:
        """features: in batch order.   tables: configuration of each feature's table."""
        slots = []
        for index, feature in enumerate(features):
            if feature.pooling != "none" and feature.pooling not in POOLINGS:
                expected = [*POOLINGS, "none"]
                raise ValueError(f"expected pooling in {expected}, got {feature.pooling!r} (feature {feature.name!r})")
            slots.append(FeatureSlot(feature.name, index, feature.table, POOLINGS.get(feature.pooling)))
        by_blocks: dict[tuple[tuple[str, int], ...], list[str]] = {}
        for slot in slots:
            config = tables[slot.table]
            members = by_blocks.setdefault(tuple((block.name, block.dim) for block in config.blocks), [])
            if slot.table not in members:
                members.append(slot.table)
        self.features = tuple(slot.name for slot in slots)
        self.slots = {slot.name: slot for slot in slots}
        self.tables = tuple(table for members in by_blocks.values() for table in members)
        self.configs = tuple(tables[table] for table in self.tables)
        number = {table: place for place, table in enumerate(self.tables)}
        self.table_of = np.array([number[slot.table] for slot in slots], np.int32)
        keeping = [slot.index for slot in slots if tables[slot.table].keeps_clicks]
        self._click_features = np.array(keeping, np.int64)
        self.groups = tuple(
            _group(blocks, members, number, [slot for slot in slots if slot.table in members])
            for blocks, members in by_blocks.items()
        )

    def group_of(self, feature: str) -> int:
        """Number of the group that holds the feature's rows."""
        table = int(self.table_of[self.slots[feature].index])
        return next(
            place
            for place, group in enumerate(self.groups)
            if group.first_table <= table < group.first_table + group.table_count
        )

    def deduplicate(self, batch: FeatureBatch) -> UniqueKeys:
        """Each key of the batch once a table. Raises: FeatureMismatchError if the batch has other features."""
        if tuple(batch.features) != self.features:
            raise FeatureMismatchError(
                f"expected a batch with features {list(self.features)}, got {list(batch.features)}; "
                "encode with the feature map the collection was made with"
            )
        starts = np.ascontiguousarray(batch.offsets[:: batch.size]) if batch.size else np.zeros(1, np.int64)
        if len(starts) != len(self.features) + 1:
            starts = np.zeros(len(self.features) + 1, np.int64)
        return deduplicate(batch.keys, starts, self.table_of, self.tables)

    def clicks(self, batch: FeatureBatch, unique: UniqueKeys) -> npt.NDArray[np.uint32] | None:
        """(n,) uint32 occurrences of the batch's unique keys in clicked examples, 0 for tables that keep no clicks.

        None where no table keeps them, or the batch has no labels. The first label is the click."""
        if not len(self._click_features) or batch.label is None:
            return None
        label = batch.label if batch.label.ndim == 1 else batch.label[:, 0]
        return count_clicks(unique, batch.offsets, self._click_features, label >= CLICK_LABEL)


def _group(
    blocks: tuple[tuple[str, int], ...], tables: list[str], number: Mapping[str, int], slots: list[FeatureSlot]
) -> RowGroup:
    columns, first = {}, 0
    for name, dim in blocks:
        columns[name] = RowColumns(first, dim)
        first += dim
    return RowGroup(
        number[tables[0]],
        len(tables),
        first,
        columns,
        tuple(slot for slot in slots if slot.pooling is not None),
        tuple(slot for slot in slots if slot.pooling is None),
    )
