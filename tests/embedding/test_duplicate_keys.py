"""A key that stands twice in a request is found in requests of every size, wherever its two places are."""

from __future__ import annotations

import numpy as np
import pytest

from embershard.embedding.errors import DuplicateKeyError
from embershard.embedding.native_table_group import NativeTableGroup
from embershard.embedding.table_config import ColumnBlock, TableConfig
from embershard.embedding.table_group import TableKeys, UpdateStep

SIZES = (2, 100, 8191, 8192, 40_000, 131_072)


def group_and_keys(size: int) -> tuple[NativeTableGroup, np.ndarray]:
    group = NativeTableGroup()
    group.ensure_table(TableConfig(name="user", blocks=(ColumnBlock(dim=1),)))
    return group, np.random.default_rng(size).permutation(np.arange(size, dtype=np.uint64) << np.uint64(32))


@pytest.mark.parametrize("size", SIZES)
def test_distinct_keys_are_read(size: int) -> None:
    group, keys = group_and_keys(size)
    assert len(group.lookup(TableKeys.of("user", keys))) == size


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("places", [(0, -1), (0, 1), (-2, -1), (0.3, 0.7)])
def test_one_key_twice_is_named_and_nothing_is_done(size: int, places: tuple[float, float]) -> None:
    group, keys = group_and_keys(size)
    first, second = (int(place * size) if isinstance(place, float) else place % size for place in places)
    second += first == second  # in a request of two keys
    keys[second] = keys[first]
    with pytest.raises(DuplicateKeyError, match=str(keys[first])):
        group.apply_gradients(
            TableKeys.of("user", keys), np.ones(size, np.float32), np.ones(size, np.uint32), UpdateStep()
        )
    assert group.stats()["user"].rows == 0
