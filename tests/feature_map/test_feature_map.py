"""The feature map end to end: batches of records in, keys and floats out, as the contract says."""

from __future__ import annotations

import os
import subprocess
import sys

import mmh3
import numpy as np
import psutil
import pyarrow as pa
import pytest

from embershard.feature_map import (
    Categorical,
    ColumnTypeError,
    Cross,
    FeatureMap,
    LabelError,
    MissingColumnError,
    Numeric,
)

MASK = (1 << 64) - 1


def mix64(h: int) -> int:
    h ^= h >> 33
    h = h * 0xFF51AFD7ED558CCD & MASK
    h ^= h >> 33
    h = h * 0xC4CEB9FE1A85EC53 & MASK
    return h ^ h >> 33


def expected_key(space: str, *hashes: int) -> int:
    key = mmh3.hash64(space.encode(), signed=False)[0]
    for h in hashes:
        key = mix64(key ^ (h & MASK))
    return key


def text_hash(text: str) -> int:
    return mmh3.hash64(text.encode(), signed=False)[0]


@pytest.fixture
def features() -> FeatureMap:
    return FeatureMap(
        [
            Categorical("user", dim=16),
            Categorical("word", id="text"),
            Categorical("tags", id="text", is_list=True),
            Cross("user_word", of=("user", "word")),
            Numeric("price", transform="log1p"),
        ],
        label="click",
    )


@pytest.fixture
def records() -> pa.Table:
    return pa.table(
        {
            "click": [0, 1, 0],
            "user": [5, None, 2**62],
            "word": ["a", "", None],
            "tags": [["x", "y"], None, []],
            "price": [1.0, None, float("nan")],
        }
    )


def test_keys_follow_the_documented_formula(features: FeatureMap, records: pa.Table) -> None:
    batch = features.encode(records)
    missing = text_hash("embershard/missing")
    assert batch.keys_of("user").tolist() == [expected_key("user", h) for h in (5, missing, 2**62)]
    assert batch.keys_of("word").tolist() == [expected_key("word", h) for h in (text_hash("a"), text_hash(""), missing)]
    assert batch.keys_of("tags").tolist() == [expected_key("tags", text_hash(t)) for t in "xy"]
    assert batch.keys_of("user_word").tolist() == [
        expected_key("user_word", 5, text_hash("a")),
        expected_key("user_word", missing, text_hash("")),
        expected_key("user_word", 2**62, missing),
    ]
    assert batch.bag_lengths("tags").tolist() == [2, 0, 0]
    assert batch.scalar == (True, True, False, True)
    np.testing.assert_array_equal(batch.dense[:, 0], np.float32([np.log1p(1.0), 0, 0]))
    assert batch.label is not None
    assert batch.label.tolist() == [0, 1, 0]


def test_encode_one_gives_the_keys_of_the_batch(features: FeatureMap, records: pa.Table) -> None:
    batch = features.encode(records.slice(0, 1))
    one = features.encode_one({"user": 5, "word": "a", "tags": ["x", "y"], "price": 1})
    assert one.keys.tolist() == batch.keys.tolist()
    assert one.dense.tolist() == batch.dense.tolist()
    assert one.label is None


def test_key_and_value_are_inverse(features: FeatureMap) -> None:
    for value in (0, -1, 5, 2**63 - 1, -(2**63)):
        assert features.value("user", features.key("user", value)) == value
    assert features.value("user", features.key("user", None)) is None


def test_saved_map_loads_equal(features: FeatureMap, tmp_path: pytest.TempPathFactory) -> None:
    path = tmp_path / "features.yaml"  # type: ignore[operator]
    features.save(path)
    loaded = FeatureMap.load(path)
    assert loaded == features
    assert loaded.hash == features.hash


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"click": [2.0]}, LabelError, r"column 'click': expected a label in \[0, 1\], got 2 \(row 0\)"),
        ({"click": [None]}, LabelError, r"column 'click': expected a label, got null or NaN \(row 0\)"),
        ({"user": [1.5]}, ColumnTypeError, r"column 'user': expected int64 ids, got float64"),
        ({"price": ["x"]}, ValueError, r"column 'price': expected a number, got 'x' \(row 0\)"),
        ({"user": ["5x"]}, ValueError, r"column 'user': expected an int64 id, got '5x' \(row 0\)"),
    ],
)
def test_bad_column_is_named(features: FeatureMap, change: dict, error: type[Exception], message: str) -> None:
    good = {"click": [0], "user": [5], "word": ["a"], "tags": [["x"]], "price": [1.0]}
    with pytest.raises(error, match=message):
        features.encode(pa.table({**good, **change}))


def test_missing_column_is_named(features: FeatureMap) -> None:
    with pytest.raises(MissingColumnError, match=r"column 'user': expected it in the records, got columns \['a'\]"):
        features.encode(pa.table({"a": [1]}))


def test_memory_of_batches_is_reused() -> None:
    features = FeatureMap([Categorical("a"), Categorical("b", id="text"), Numeric("c")])
    table = pa.table({"a": range(200_000), "b": [str(i) for i in range(200_000)], "c": [0.5] * 200_000})
    process = psutil.Process()

    def encode_for_a_while() -> int:
        for _ in range(30):
            features.encode(table)
        return int(process.memory_info().rss)

    settled = encode_for_a_while()
    assert encode_for_a_while() - settled < 30_000_000  # one batch is 8 MB of arrays


def test_arrays_live_as_long_as_they_are_held() -> None:
    features = FeatureMap([Categorical("a")])
    held = [features.encode(pa.table({"a": [i] * 5000})).keys for i in range(40)]
    for i, keys in enumerate(held):
        assert set(keys.tolist()) == {features.key("a", i)}


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_can_encode_while_other_threads_do() -> None:
    program = """
import os, sys, threading, warnings
import pyarrow as pa
from embershard.feature_map import Categorical, FeatureMap
warnings.simplefilter("ignore")
features = FeatureMap([Categorical("a")])
table = pa.table({"a": list(range(3000))})
expected = features.encode(table).keys.tolist()
stop = threading.Event()
def work():
    while not stop.is_set():
        features.encode(table)
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
for _ in range(30):
    child = os.fork()
    if child == 0:
        os._exit(0 if features.encode(table).keys.tolist() == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
stop.set()
for thread in threads: thread.join()
print("done")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "done\n", done.stderr
