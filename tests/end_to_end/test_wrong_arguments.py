"""Arguments of the Python interface that are of no use are refused at once, saying what was expected and what came."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import embershard as es
from embershard.embedding.store import Push
from embershard.embedding.table_group import TableKeys


@pytest.fixture
def log(tmp_path: Path) -> es.ClickLog:
    pq.write_table(pa.table({"user": [1, 2], "click": [0, 1]}), tmp_path / "clicks.parquet")
    return es.ClickLog(tmp_path)


@pytest.fixture
def features() -> es.FeatureMap:
    return es.FeatureMap([es.Categorical("user", id="int64", dim=2)], label="click")


@pytest.fixture
def embeddings(features: es.FeatureMap) -> Iterator[es.EmbeddingCollection]:
    with es.LocalStore() as store:
        yield es.EmbeddingCollection(features, store)


def refused(call: Callable[[], Any], message: str, kind: type[Exception] = TypeError) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert message in str(caught.value)


@pytest.mark.parametrize("path", [None, 5])
def test_click_log_of_no_path(path: Any) -> None:
    refused(lambda: es.ClickLog(path), f"expected a path, a glob or a list of them, got {path}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 2.5}, "expected a whole number as batch_size, got 2.5"),
        ({"batch_size": "4"}, "expected a whole number as batch_size, got '4'"),
        ({"seed": "a"}, "expected a whole number as seed, got 'a'"),
        ({"epoch": 1.0}, "expected a whole number as epoch, got 1.0"),
        ({"features": None}, "expected a feature map, or what else has columns and encodes, got None"),
    ],
)
def test_batches(log: es.ClickLog, features: es.FeatureMap, options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"features": features, "batch_size": 2, **options}
    refused(lambda: log.batches(**given), message)
    for size in (0, 1 << 31):
        limits = f"expected batch_size from 1 to 2147483647, got {size}"
        refused(lambda: log.batches(features, size), limits, ValueError)  # noqa: B023


def test_click_log_numbers(tmp_path: Path, log: es.ClickLog) -> None:
    refused(lambda: es.ClickLog(tmp_path, run="1"), "expected a whole number as run, got '1'")  # type: ignore[arg-type]
    refused(lambda: es.ClickLog(tmp_path, unit_rows=9.5), "expected a whole number as unit_rows, got 9.5")  # type: ignore[arg-type]


@pytest.mark.parametrize("threads", [0, -1, 257])
def test_store_of_no_threads(threads: int) -> None:
    refused(lambda: es.LocalStore(threads=threads), f"expected threads in 1..256, got {threads}", ValueError)


def test_store_of_numbers_that_are_none() -> None:
    refused(lambda: es.LocalStore("8"), "expected a whole number as tablet_bits, got '8'")  # type: ignore[arg-type]
    refused(lambda: es.LocalStore(threads=1.5), "expected a whole number as threads, got 1.5")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("keys", "kind", "message"),
    [
        ([1, 1.5], TypeError, "expected keys that are whole numbers, got 1.5"),
        (np.ones(2), TypeError, "expected keys that are whole numbers, got dtype('float64')"),
        (["a"], TypeError, "expected keys that are whole numbers, got 'a'"),
        ([[1, 2]], ValueError, "expected (n,) keys, got shape (1, 2)"),
        ([-1], OverflowError, "expected keys from 0 to 2^64 - 1, got -1 to -1"),
        ([1, 1 << 64], OverflowError, "expected keys from 0 to 2^64 - 1, got 1 to 18446744073709551616"),
    ],
)
def test_keys(keys: Any, kind: type[Exception], message: str) -> None:
    refused(lambda: TableKeys.of("user", keys), message, kind)


def test_keys_of_every_pattern() -> None:
    assert TableKeys.of("user", [0, (1 << 64) - 1]).keys.tolist() == [0, (1 << 64) - 1]
    assert TableKeys.of("user", np.array([-1, 5])).keys.tolist() == [(1 << 64) - 1, 5]
    assert TableKeys.of("user", []).keys.dtype == np.uint64


def test_arrays_of_other_types(embeddings: es.EmbeddingCollection) -> None:
    store, keys = embeddings.store, TableKeys.of("user", [1, 2])
    wrong: list[tuple[Any, str]] = [(np.ones(4), "float64 (4,)"), (np.ones((2, 2), np.float32), "float32 (2, 2)")]
    for values, got in wrong:
        refused(lambda: store.assign(keys, values), f"got weights {got}")  # noqa: B023
        push = Push(None, keys, values, np.ones(2, np.uint32), 1, 1, 0)
        with pytest.raises((TypeError, ValueError), match=r"^expected"):
            store.exchange(push, None)
    push = Push(None, keys, np.ones(4, np.float32), np.ones(2, np.int64), 1, 1, 0)  # type: ignore[arg-type]
    refused(lambda: store.exchange(push, None), "occurrences int64 (2,)")
    refused(lambda: store.evict(0, tablets=np.ones(256, np.int64)), "expected (256,) bool tablets", ValueError)  # type: ignore[arg-type]


def test_addresses() -> None:
    refused(lambda: es.connect(None), "expected an address or a list of them, got None")  # type: ignore[arg-type]


def test_collection(features: es.FeatureMap, embeddings: es.EmbeddingCollection) -> None:
    refused(lambda: es.EmbeddingCollection(None, embeddings.store), "expected a FeatureMap, got None")  # type: ignore[arg-type]
    refused(lambda: es.EmbeddingCollection(features, "local"), "expected a store (LocalStore, or")  # type: ignore[arg-type]
    for batch in (None, 5, {"user": [1]}):
        kind = type(batch).__name__
        refused(lambda: embeddings(batch), f"TensorBatch or a KeyedJaggedTensor, got {kind}")  # noqa: B023


def test_prefetch(embeddings: es.EmbeddingCollection) -> None:
    refused(lambda: es.prefetch(None, embeddings), "expected an iterable of batches, got None")  # type: ignore[arg-type]
    refused(lambda: es.prefetch([], None), "expected an EmbeddingCollection, got None")  # type: ignore[arg-type]
    refused(lambda: es.prefetch([], embeddings, depth=1.5), "expected a whole number as depth, got 1.5")  # type: ignore[arg-type]
    refused(
        lambda: list(es.prefetch([7], embeddings)), "expected a FeatureBatch, as a feature map encodes them, got int"
    )  # type: ignore[list-item]
