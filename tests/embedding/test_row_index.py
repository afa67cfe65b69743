"""Rows are found, erased and reused rightly where the index and the row memory are at their edges."""

from __future__ import annotations

import numpy as np
import pytest

from embershard.embedding.errors import DuplicateKeyError
from embershard.embedding.native_table_group import NativeTableGroup
from embershard.embedding.policies import scan_hash
from embershard.embedding.table_config import ColumnBlock, MinCount, Sgd, TableConfig, Ttl, Zeros
from embershard.embedding.table_group import TableKeys, UpdateStep

INVERSE_GOLDEN = np.uint64(pow(0x9E3779B97F4A7C15, -1, 2**64))


def keys_with_hashes(hashes: np.ndarray) -> np.ndarray:
    """The keys whose `scan_hash` these are."""
    mixed = hashes * INVERSE_GOLDEN
    keys = mixed ^ (mixed >> np.uint64(32))
    assert np.array_equal(scan_hash(keys), hashes)
    return keys


CLUSTERS = {
    "last bucket": np.uint64(2**64 - 1) - np.arange(64, dtype=np.uint64),
    "first bucket": np.arange(64, dtype=np.uint64),
    "one bucket in the middle": np.uint64(2**63) + np.arange(64, dtype=np.uint64),
    "both ends": np.concatenate([np.arange(32, dtype=np.uint64), ~np.arange(32, dtype=np.uint64)]),
}


def counting_group(tablet_bits: int = 0, **fields: object) -> NativeTableGroup:
    """A group whose one weight a row is minus the number of pushes it got."""
    group = NativeTableGroup(tablet_bits)
    block = ColumnBlock(dim=1, initializer=Zeros(), optimizer=Sgd(lr=1))
    group.ensure_table(TableConfig(name="user", blocks=(block,), **fields))
    return group


def push(group: NativeTableGroup, keys: np.ndarray, gradients: np.ndarray | None = None, **step: int) -> None:
    flat = np.ones(len(keys), np.float32) if gradients is None else gradients.astype(np.float32)
    group.apply_gradients(TableKeys.of("user", keys), flat, np.ones(len(keys), np.uint32), UpdateStep(**step))


def read(group: NativeTableGroup, keys: np.ndarray) -> list[float]:
    return group.lookup(TableKeys.of("user", keys), "zeros").tolist()


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_keys_that_crowd_a_bucket_are_found_erased_and_put_back(cluster: str) -> None:
    keys = keys_with_hashes(CLUSTERS[cluster])
    group, numbers = counting_group(), np.arange(1, len(keys) + 1)
    for key, number in zip(keys, numbers, strict=True):
        push(group, np.array([key]), -np.array([number]))
        known = keys[:number]
        assert read(group, known) == numbers[:number].tolist()
    order = np.random.default_rng(0).permutation(len(keys))
    for done, at in enumerate(order, start=1):
        assert group.erase(TableKeys.of("user", keys[[at]])) == 1
        left = order[done:]
        assert read(group, keys[left]) == numbers[left].tolist()
        assert not any(read(group, keys[order[:done]]))
    push(group, keys)
    assert read(group, keys) == [-1.0] * len(keys)
    push(group, keys)  # finds the rows that are there, and makes no others
    assert group.stats()["user"].rows == len(keys)
    assert read(group, keys) == [-2.0] * len(keys)


def test_old_and_new_keys_of_a_push_into_growing_parts_are_each_updated_once() -> None:
    """Parts grow while later keys of the push are on their way, and take over the index memory others gave back."""
    rng = np.random.default_rng(5)
    group, pushes = counting_group(tablet_bits=6), {}
    keys = rng.integers(0, 2**64, 6000, np.uint64)
    for known in range(100, len(keys), 400):
        chosen = rng.permutation(np.concatenate([keys[:known][-1500:], keys[known : known + 400]]))
        push(group, chosen)
        for key in chosen.tolist():
            pushes[key] = pushes.get(key, 0) - 1.0
        assert group.stats()["user"].rows == len(pushes)
        assert read(group, np.array(list(pushes), np.uint64)) == list(pushes.values())


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_eviction_in_small_bites_visits_every_row_once(cluster: str) -> None:
    keys = keys_with_hashes(CLUSTERS[cluster])
    group = counting_group(eviction=(Ttl(ttl_seconds=10),))
    push(group, keys, now=5)
    assert sum(group.evict(14, 3)["user"] for _ in range(100)) == 0
    # A round of 64 rows in bites of 3 may stop at its end, so it takes up to 22 calls, and one more to start again.
    assert sum(group.evict(15, 3)["user"] for _ in range(44)) == 64
    assert group.stats()["user"].rows == 0


def test_rows_of_a_dropped_tablet_serve_others_one_at_a_time() -> None:
    """Runs and freed rows go back to the table once: no two keys, in whatever tablet, ever share a row."""
    rng = np.random.default_rng(3)
    group, expected = counting_group(tablet_bits=2), {}
    for number in range(1, 41):
        tablet = int(rng.integers(0, 4))
        low, high = tablet << 62, (tablet << 62) + 700
        if number % 3 == 0:
            group.drop_tablet(tablet)
            expected = {key: value for key, value in expected.items() if not low <= key < high}
        else:
            keys = np.uint64(low) + rng.choice(700, int(rng.integers(1, 300)), replace=False).astype(np.uint64)
            group.assign(TableKeys.of("user", keys), np.full(len(keys), number, np.float32))
            expected |= dict.fromkeys(keys.tolist(), float(number))
            gone = keys[:: int(rng.integers(2, 6))]
            assert group.erase(TableKeys.of("user", gone)) == len(gone)
            expected = {key: value for key, value in expected.items() if key not in set(gone.tolist())}
        assert group.stats()["user"].rows == len(expected)
        assert read(group, np.array(list(expected), np.uint64)) == list(expected.values())


def test_a_duplicate_is_found_at_any_two_places() -> None:
    group = counting_group()
    for n in (2, 3, 7, 33):
        keys = np.arange(100, 100 + n, dtype=np.uint64)
        for first in range(n):
            for second in range(first + 1, n):
                twice = keys.copy()
                twice[second] = twice[first]
                with pytest.raises(DuplicateKeyError, match=str(twice[first])):
                    group.erase(TableKeys.of("user", twice))
        assert read(group, keys) == [0.0] * n


def test_counters_of_other_keys_survive_an_admission() -> None:
    """Admission takes keys out of a crowded map of counters; those that stay must still be found there."""
    group = counting_group(admission=MinCount(count=3))
    keys = np.unique(np.random.default_rng(7).integers(0, 2**64, 3000, np.uint64))
    push(group, keys)
    push(group, keys)
    some = keys[::3]
    push(group, some)
    rows = group.snapshot(0).tables["user"]
    assert np.array_equal(rows.keys, some)
    assert np.array_equal(rows.admission_keys, np.setdiff1d(keys, some))
    assert set(rows.admission_counts.tolist()) == {2}
    push(group, keys)
    assert np.array_equal(group.snapshot(0).tables["user"].keys, keys)
