"""A trained store with integer, unsigned, text and crossed keys, and its feature map."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

from embershard.embedding.reference import ReferenceTableGroup
from embershard.embedding.store import Push, PushToken
from embershard.embedding.table_config import Adagrad, ColumnBlock, Sgd, TableConfig
from embershard.embedding.table_group import TableKeys
from embershard.feature_map import Categorical, Cross, FeatureMap, Numeric, Sequence
from embershard.ps_server.local_store import LocalStore

INT64_IDS = [(1 << 24) + 1, (1 << 53) + 1, (1 << 63) - 1, -(1 << 63), -1, 0, 1, 17]
UINT64_IDS = [(1 << 24) + 1, (1 << 53) + 1, (1 << 63) - 1, (1 << 63) + 1, (1 << 64) - 1, 0]
TEXTS = ["", "nan", "None", "größe", "a\0b", "x" * 300]


@dataclass
class Trained:
    """A store, its feature map, and how to train more."""

    store: LocalStore
    features: FeatureMap
    pushes: int = 0

    def push(self, table: str, keys: np.ndarray, occurrences: int = 1, now: int = 100) -> None:
        keys = np.unique(np.asarray(keys, np.uint64))
        dim = next(config.dim for config in self.store.tables() if config.name == table)
        self.pushes += 1
        gradients = np.random.default_rng(self.pushes).standard_normal(len(keys) * dim).astype(np.float32)
        counts = np.full(len(keys), occurrences, np.uint32)
        token = PushToken(1, 1, self.pushes)
        request = TableKeys.of(table, keys)
        self.store.exchange(Push(token, request, gradients, counts, examples=1, step=1, now=now), None)

    def weights(self, table: str) -> dict[int, np.ndarray]:
        """Stored weights by key."""
        found = {}
        for tablet in range(1 << self.store.tablet_bits):
            rows = self.store.snapshot(tablet).tables[table]
            found.update(zip(rows.keys.tolist(), rows.weights, strict=True))
        return found

    def dictionary(self) -> pa.Table:
        """The texts behind the keys of `word`."""
        return pa.table({"value": TEXTS, "key": self.features.encode_values("word", pa.array(TEXTS))})


@pytest.fixture
def trained() -> Trained:
    features = FeatureMap(
        [
            Categorical("user", id="int64"),
            Categorical("user_b", id="int64", table="user", missing="skip"),
            Categorical("ad", id="uint64", key_space="ad-v1"),
            Categorical("word", id="text"),
            Sequence("history", id="uint64", table="ad", key_space="ad-v1"),
            Cross("user_word", of=["user", "word"]),
            Numeric("age"),
        ],
        dim=4,
    )
    tables = [
        TableConfig(
            name="user",
            blocks=(ColumnBlock(name="linear", dim=1, optimizer=Sgd(lr=1.0)), ColumnBlock(name="factors", dim=3)),
        ),
        TableConfig(name="ad", key_space="ad-v1", blocks=(ColumnBlock(dim=4, optimizer=Adagrad()),)),
        TableConfig(name="word", blocks=(ColumnBlock(dim=4),)),
        TableConfig(name="user_word", blocks=(ColumnBlock(dim=4),)),
    ]
    store = LocalStore(tables=ReferenceTableGroup(4))
    store.ensure_tables(tables)
    made = Trained(store, features)
    rng = np.random.default_rng(0)
    many = rng.integers(-(1 << 63), 1 << 63, 200, np.int64)
    user_ids = pa.array([*INT64_IDS, *many.tolist()], pa.int64())
    made.push("user", features.encode_values("user", user_ids), occurrences=3)
    made.push("user", np.array([features.key("user", None)], np.uint64))
    made.push("ad", features.encode_values("ad", pa.array(UINT64_IDS, pa.uint64())), occurrences=2)
    made.push("word", features.encode_values("word", pa.array(TEXTS)))
    made.push("user_word", np.array([features.key("user_word", (17, "größe"))], np.uint64))
    return made
