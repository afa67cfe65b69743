"""Makes the golden checkpoint: `python tests/embedding/checkpoint/golden_checkpoint.py FOLDER`.

Run once for each format version; what it wrote is committed and read by every later version.
"""

from __future__ import annotations

import sys

import numpy as np

from embershard.embedding.checkpoint import TrainingState, write_checkpoint
from embershard.embedding.reference import ReferenceTableGroup
from embershard.embedding.store import Push, PushToken
from embershard.embedding.table_config import Adagrad, ColumnBlock, Ftrl, Sgd, TableConfig, Zeros
from embershard.embedding.table_group import TableKeys
from embershard.ps_server.local_store import LocalStore

TABLES = (
    TableConfig(
        name="user",
        blocks=(
            ColumnBlock(name="linear", dim=1, initializer=Zeros(), optimizer=Ftrl()),
            ColumnBlock(name="factors", dim=3, optimizer=Adagrad()),
        ),
    ),
    TableConfig(name="shop/area", blocks=(ColumnBlock(dim=2, optimizer=Sgd()),), seed=7),
)
KEYS = np.array([0, 1, 1 << 62, (1 << 63) + 5, (1 << 64) - 1], np.uint64)


def trained_store() -> LocalStore:
    """Three pushes and an erasure, the same on every machine."""
    store = LocalStore(tables=ReferenceTableGroup(2))
    store.ensure_tables(TABLES)
    for step in range(3):
        keys = TableKeys.concat({"user": KEYS[step:], "shop/area": KEYS[: step + 1]})
        widths = np.repeat([4, 2], [len(KEYS) - step, step + 1]).sum()
        gradients = (np.arange(widths, dtype=np.float32) - np.float32(step)) / np.float32(8)
        push = Push(
            PushToken(9, 1, step), keys, gradients, np.full(len(keys.keys), step + 1, np.uint32), 4, step + 1, 100
        )
        store.exchange(push, None)
    store.erase(TableKeys.of("user", KEYS[1:2]))
    return store


def training_state() -> TrainingState:
    """Something in every field."""
    return TrainingState(
        step=3,
        generation=1,
        feature_map={"format_version": 1, "features": []},
        config={"model": {"class": "fm"}},
        cursor={"epoch": 0, "unit": (1 << 64) - 1},
        scalars={"auc": 0.75},
        dense={"model/bias": np.array([0.5, -0.25], np.float32), "optimizer/step": np.array(3, np.int64)},
        log_positions={"0": 17},
    )


if __name__ == "__main__":
    write_checkpoint(sys.argv[1], trained_store(), training_state())
