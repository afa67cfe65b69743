"""A key that stands twice in a request is found in requests of every size, wherever its two places are."""

from __future__ import annotations

import numpy as np
import pytest

from embershard.embedding.errors import DuplicateKeyError
from embershard.embedding.native_table_group import NativeTableGroup
from embershard.embedding.table_config import ColumnBlock, TableConfig
from embershard.embedding.table_group import TableKeys, UpdateStep

SIZES = (2, 100, 255, 256, 8192, 40_000, 131_072)


def group_and_keys(size: int, threads: int = 1) -> tuple[NativeTableGroup, np.ndarray]:
    """An empty table, and keys spread over all its tablets."""
    group = NativeTableGroup(8, threads)
    group.ensure_table(TableConfig(name="user", blocks=(ColumnBlock(dim=1),)))
    keys = np.arange(size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return group, np.random.default_rng(size).permutation(keys)


@pytest.mark.parametrize("size", SIZES)
def test_distinct_keys_are_read(size: int) -> None:
    group, keys = group_and_keys(size)
    assert len(group.lookup(TableKeys.of("user", keys))) == size


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("places", [(0, -1), (0, 1), (-2, -1), (0.3, 0.7)])
def test_one_key_twice_is_named_and_nothing_is_done(size: int, places: tuple[float, float], threads: int) -> None:
    group, keys = group_and_keys(size, threads)
    push(group, keys[: size // 2])
    rows = group.stats()["user"].rows
    first, second = (int(place * size) if isinstance(place, float) else place % size for place in places)
    second += first == second  # in a request of two keys
    keys[second] = keys[first]
    with pytest.raises(DuplicateKeyError, match=str(keys[first])):
        push(group, keys)
    with pytest.raises(DuplicateKeyError, match=str(keys[first])):
        group.erase(TableKeys.of("user", keys))
    with pytest.raises(DuplicateKeyError, match=str(keys[first])):
        group.assign(TableKeys.of("user", keys), np.ones(size, np.float32))
    assert group.stats()["user"].rows == rows
    snapshots = [group.snapshot(tablet).tables["user"] for tablet in range(1 << 8)]
    assert sum(int(snapshot.count.sum()) for snapshot in snapshots) == rows


def push(group: NativeTableGroup, keys: np.ndarray) -> None:
    size = len(keys)
    group.apply_gradients(TableKeys.of("user", keys), np.ones(size, np.float32), np.ones(size, np.uint32), UpdateStep())
