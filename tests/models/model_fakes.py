"""Feature maps, batches and stores for the model tests, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embershard.datasets.work_unit import BatchId
from embershard.embedding.reference import ReferenceTableGroup
from embershard.embedding.store import Exchange, Pull, Push
from embershard.feature_map.batch import FeatureBatch
from embershard.ps_server import LocalStore


@dataclass(frozen=True)
class Feature:
    name: str
    table: str
    pooling: str = "sum"

    @property
    def key_space(self) -> str:
        return self.table


@dataclass(frozen=True)
class Features:
    """The part of a feature map that a collection reads; raw ids are mapped by adding 1,000."""

    categorical: tuple[Feature, ...]

    @classmethod
    def of(cls, **pooling: str) -> Features:
        return cls(tuple(Feature(name, name, how) for name, how in pooling.items()))

    def encode_values(self, feature: str, values: np.ndarray) -> np.ndarray:
        return values.view(np.uint64) + np.uint64(1000)


def local_store(tablet_bits: int = 2) -> LocalStore:
    """A store over the NumPy definition of the tables."""
    return LocalStore(tables=ReferenceTableGroup(tablet_bits))


class RecordingStore:
    """Passes calls on to a store and keeps what was asked, in order."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self.calls: list[tuple[Push | None, Pull | None]] = []
        self.fail_at: int | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def exchange(self, push: Push | None, pull: Pull | None) -> Exchange:
        if self.fail_at == len(self.calls):
            raise ConnectionError(f"call {self.fail_at} failed")
        self.calls.append((push, pull))
        return self._store.exchange(push, pull)

    @property
    def lane(self) -> list[tuple[int | None, int | None]]:
        """(batch pushed, first key pulled) of each call."""
        return [
            (
                None if push is None or push.token is None else push.token.batch,
                None if pull is None else int(pull.keys.keys[0]),
            )
            for push, pull in self.calls
        ]


def bags(
    lists: dict[str, Sequence[Sequence[int]]],
    *,
    label: Sequence[float] | None = None,
    dense: Sequence[Sequence[float]] | None = None,
    weights: Sequence[float] | None = None,
    id: BatchId | None = None,
    event_time: Sequence[int] | None = None,
) -> FeatureBatch:
    """A batch of bags of keys by feature."""
    size = len(next(iter(lists.values())))
    lengths = [len(bag) for feature in lists.values() for bag in feature]
    return FeatureBatch(
        size=size,
        features=tuple(lists),
        keys=np.array([key for feature in lists.values() for bag in feature for key in bag], np.uint64),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        scalar=tuple(all(len(bag) == 1 for bag in feature) for feature in lists.values()),
        dense=np.array(dense, np.float32) if dense is not None else np.empty((size, 0), np.float32),
        label=None if label is None else np.array(label, np.float32),
        weights=None if weights is None else np.array(weights, np.float32),
        event_time=None if event_time is None else np.array(event_time, np.int64),
        id=id,
    )


def click_batches(
    count: int, *, size: int = 8, ids: int = 20, seed: int = 0, unit: int = 1, dense: int = 0
) -> list[FeatureBatch]:
    """Batches 0 … count − 1 of one work unit; features user, item (scalar), tags (bags); labels of the keys."""
    rng = np.random.default_rng(seed)
    batches = []
    for index in range(count):
        user, item = rng.integers(0, ids, size), rng.integers(0, ids, size)
        tags = [rng.integers(0, ids, rng.integers(0, 3)).tolist() for _ in range(size)]
        label = ((user + item) % 2).tolist()
        batches.append(
            bags(
                {"user": [[int(u)] for u in user], "item": [[int(i)] for i in item], "tags": tags},
                label=label,
                dense=rng.standard_normal((size, dense)).tolist() if dense else None,
                id=BatchId(unit, index),
            )
        )
    return batches


CLICK_FEATURES = Features.of(user="sum", item="sum", tags="mean")
