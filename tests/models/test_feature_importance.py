"""Dealing a feature's values anew keeps everything else of a batch."""

from __future__ import annotations

import itertools

import numpy as np

from embershard.feature_map import FeatureBatch
from embershard.models.feature_importance import _deal_columns, _deal_keys


def batch() -> FeatureBatch:
    random = np.random.default_rng(5)
    lengths = np.concatenate([np.ones(50, np.int64), random.integers(0, 4, 50), np.ones(50, np.int64)])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    keys = random.integers(0, 1 << 63, offsets[-1]).astype(np.uint64)
    return FeatureBatch(
        size=50,
        features=("a", "tags", "b"),
        keys=keys,
        offsets=offsets,
        scalar=(True, False, True),
        dense=random.normal(size=(50, 3)).astype(np.float32),
        weights=keys.astype(np.float32),
    )


def bags(of: FeatureBatch, feature: str) -> list[tuple[int, ...]]:
    index = of.features.index(feature)
    starts = of.offsets[index * of.size : (index + 1) * of.size + 1]
    return [tuple(of.keys[a:b].tolist()) for a, b in itertools.pairwise(starts)]


def test_bags_of_one_feature_are_dealt_anew_and_the_others_stay() -> None:
    old = batch()
    new = _deal_keys(old, "tags", np.random.default_rng(0))
    assert bags(new, "a") == bags(old, "a")
    assert bags(new, "b") == bags(old, "b")
    assert bags(new, "tags") != bags(old, "tags")
    assert sorted(bags(new, "tags")) == sorted(bags(old, "tags"))
    assert new.weights is not None
    np.testing.assert_array_equal(new.weights, new.keys.astype(np.float32))


def test_dense_columns_are_dealt_together_and_the_others_stay() -> None:
    old = batch()
    new = _deal_columns(old, slice(1, 3), np.random.default_rng(0))
    np.testing.assert_array_equal(new.dense[:, 0], old.dense[:, 0])
    assert not np.array_equal(new.dense, old.dense)
    np.testing.assert_array_equal(np.sort(new.dense[:, 1]), np.sort(old.dense[:, 1]))
    pairs = {tuple(row) for row in old.dense[:, 1:].tolist()}
    assert {tuple(row) for row in new.dense[:, 1:].tolist()} == pairs
