"""Requests cut by shard and put together again."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from embershard.embedding.table_group import TableKeys, split_rows
from embershard.ps_server.partition import RowLayout, split_keys
from embershard.ps_server.tablet_map import TabletMap


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 4)), max_size=6),
    st.integers(1, 5),
    st.integers(0, 2**32),
)
def test_parts_hold_every_key_once_and_rows_come_back_in_place(tables, shards, seed):
    random = np.random.default_rng(seed)
    widths = {f"t{index}": width for index, (_, width) in enumerate(tables)}
    keys = TableKeys.concat(
        {f"t{index}": random.integers(0, 1 << 64, count, dtype=np.uint64) for index, (count, _) in enumerate(tables)}
    )
    layout = RowLayout(keys, widths)
    flat = random.normal(size=layout.size).astype(np.float32)
    tablet_map = TabletMap.even([f"unix:/{index}" for index in range(shards)], 3)
    back = np.full_like(flat, np.nan)
    seen = []
    for part in split_keys(keys, tablet_map):
        assert (tablet_map.shard_of_keys(part.keys.keys) == part.shard).all()
        assert part.keys.tables == keys.tables
        assert part.keys.splits[-1] == len(part.keys.keys)
        rows = layout.take(flat, part.positions)
        assert layout.count(part.positions) == len(rows)
        dims = [widths[table] for table in keys.tables]
        for index, view in enumerate(split_rows(part.keys, rows, dims)):
            mine = np.isin(keys.keys_of(index), part.keys.keys_of(index))
            assert np.array_equal(view, split_rows(keys, flat, dims)[index][mine])
        layout.put(back, part.positions, rows)
        seen += part.positions.tolist()
    assert sorted(seen) == list(range(len(keys.keys)))
    assert back.tobytes() == flat.tobytes()


def test_only_the_positions_asked_for_are_cut():
    keys = TableKeys.of("t", np.arange(8, dtype=np.uint64) << np.uint64(61))
    tablet_map = TabletMap.even(["unix:/a", "unix:/b"], 3)
    parts = split_keys(keys, tablet_map, np.array([1, 5, 6], np.intp))
    assert [(part.shard, part.positions.tolist()) for part in parts] == [(0, [1]), (1, [5, 6])]
