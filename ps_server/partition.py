"""Requests cut by shard, and rows put back in the order they were asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..embedding.table_group import TableKeys
from .tablet_map import TabletMap


class RowLayout:
    """Where the values of each key lie in a flat buffer of rows of several tables: `width` values a row of each table.

    Neighbouring tables of one width are handled as one block, so the usual case is one gather.
    """

    def __init__(self, keys: TableKeys, widths: Mapping[str, int]) -> None:
        self._blocks: list[tuple[int, int, int, int]] = []
        start = 0
        for index, table in enumerate(keys.tables):
            first, last, width = int(keys.splits[index]), int(keys.splits[index + 1]), widths[table]
            if self._blocks and self._blocks[-1][3] == width:
                block = self._blocks[-1]
                self._blocks[-1] = (block[0], last, block[2], width)
            else:
                self._blocks.append((first, last, start, width))
            start += (last - first) * width
        self.size = start

    def take(self, flat: npt.NDArray[np.float32], positions: npt.NDArray[np.intp]) -> npt.NDArray[np.float32]:
        """Rows at `positions` (ascending key numbers), flat in the same table order."""
        parts = [
            flat[start : start + (last - first) * width]
            .reshape(last - first, width)[positions[low:high] - first]
            .ravel()
            for first, last, start, width, low, high in self._cut(positions)
        ]
        return np.concatenate(parts) if parts else np.empty(0, np.float32)

    def put(
        self, flat: npt.NDArray[np.float32], positions: npt.NDArray[np.intp], part: npt.NDArray[np.float32]
    ) -> None:
        """Write the rows of `part` to `positions` of `flat`; the other way round of `take`."""
        offset = 0
        for first, last, start, width, low, high in self._cut(positions):
            size = (high - low) * width
            view = flat[start : start + (last - first) * width].reshape(last - first, width)
            view[positions[low:high] - first] = part[offset : offset + size].reshape(high - low, width)
            offset += size

    def count(self, positions: npt.NDArray[np.intp]) -> int:
        """Values of the rows at `positions`."""
        return sum((high - low) * width for _, _, _, width, low, high in self._cut(positions))

    def _cut(self, positions: npt.NDArray[np.intp]) -> list[tuple[int, int, int, int, int, int]]:
        ends = np.searchsorted(positions, [last for _, last, _, _ in self._blocks]).tolist()
        lows = [0, *ends[:-1]]
        return [(*block, low, high) for block, low, high in zip(self._blocks, lows, ends, strict=True) if high > low]


@dataclass(frozen=True, slots=True)
class KeyPart:
    """The keys of a request that one shard owns: positions (m,) in the request, ascending."""

    shard: int
    positions: npt.NDArray[np.intp]
    keys: TableKeys


def split_keys(keys: TableKeys, tablet_map: TabletMap, positions: npt.NDArray[np.intp] | None = None) -> list[KeyPart]:
    """The request (or its keys at `positions`) cut by owner, shards ascending; shards without a key are left out."""
    wanted = keys.keys if positions is None else keys.keys[positions]
    shards = tablet_map.shard_of_keys(wanted)
    order = np.argsort(shards, kind="stable")
    bounds = np.searchsorted(shards[order], np.arange(tablet_map.shards + 1)).tolist()
    parts = []
    for shard in range(tablet_map.shards):
        chosen = order[bounds[shard] : bounds[shard + 1]]
        if len(chosen):
            mine = chosen if positions is None else positions[chosen]
            parts.append(KeyPart(shard, mine, take_keys(keys, mine)))
    return parts


def take_keys(keys: TableKeys, positions: npt.NDArray[np.intp]) -> TableKeys:
    """The keys at `positions` (ascending), tables in the same order."""
    splits = np.searchsorted(positions, keys.splits).astype(np.int64)
    return TableKeys(keys.tables, keys.keys[positions], splits)
