"""A table whose rows count: every push of key k with gradient 1 takes 1 from its only weight."""

from __future__ import annotations

import numpy as np

from embershard.embedding.store import Pull, Push
from embershard.embedding.table_config import ColumnBlock, Sgd, TableConfig, Zeros
from embershard.embedding.table_group import TableKeys

BITS = 4
COUNTER = TableConfig(name="counter", blocks=(ColumnBlock(dim=1, initializer=Zeros(), optimizer=Sgd(lr=1.0)),))


def keys_of(numbers):
    return np.asarray(numbers, np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def push_of(numbers, token=None, gradient=1.0, table="counter", width=1, **options):
    keys = TableKeys.of(table, keys_of(numbers))
    count = len(keys.keys)
    gradients = np.full(count * width, gradient, np.float32)
    return Push(token, keys, gradients, np.ones(count, np.uint32), 1, 1, 0, **options)


def read(store, numbers):
    return store.exchange(None, Pull(TableKeys.of("counter", keys_of(numbers)))).rows.values.tolist()
