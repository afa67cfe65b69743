"""Native snapshots ascend by key, however keys are spread over a tablet, and come back whole."""

from __future__ import annotations

import numpy as np
import pytest

from embershard.embedding.native_table_group import NativeTableGroup
from embershard.embedding.table_config import ColumnBlock, TableConfig
from embershard.embedding.table_group import TableKeys

TABLE = TableConfig(name="user", blocks=(ColumnBlock(dim=2),))
TOP = (1 << 64) - 1
RNG = np.random.default_rng(0)
SPREADS = {
    "random": RNG.integers(0, 1 << 64, 3000, np.uint64),
    "counting": np.arange(3000, dtype=np.uint64),
    "from the top": np.uint64(TOP) - np.arange(3000, dtype=np.uint64),
    "both ends": np.concatenate([np.arange(40, dtype=np.uint64), np.uint64(TOP) - np.arange(40, dtype=np.uint64)]),
    "one far from a cluster": np.append(np.arange(1000, dtype=np.uint64), np.uint64(TOP)),
    "powers of two": np.uint64(1) << np.arange(64, dtype=np.uint64),
    "few": np.array([9, 3, TOP], np.uint64),
    "none": np.empty(0, np.uint64),
}


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("tablet_bits", [0, 4])
def test_snapshots_ascend_and_hold_each_row(spread: str, tablet_bits: int) -> None:
    keys = RNG.permutation(np.unique(SPREADS[spread]))
    group = NativeTableGroup(tablet_bits)
    group.ensure_table(TABLE)
    weights = (keys[:, None] >> np.array([3, 40], np.uint64)).astype(np.float32)
    group.assign(TableKeys.of("user", keys), weights.ravel())
    expected = np.sort(keys)
    by_key = dict(zip(keys.tolist(), weights.tolist(), strict=True))
    found = []
    copy = NativeTableGroup(tablet_bits)
    copy.ensure_table(TABLE)
    for tablet in range(1 << tablet_bits):
        snapshot = group.snapshot(tablet)
        rows = snapshot.tables["user"]
        found.append(rows.keys)
        assert rows.weights.tolist() == [by_key[key] for key in rows.keys.tolist()]
        copy.import_tablet(snapshot)
        again = copy.snapshot(tablet).tables["user"]
        assert again.keys.tobytes() == rows.keys.tobytes()
        assert again.weights.tobytes() == rows.weights.tobytes()
    assert np.concatenate(found).tobytes() == expected.tobytes()
    assert copy.stats()["user"].rows == len(keys)
