"""Batch kernels: native against the NumPy twin, bit for bit, and both against plain statements of what they do."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embershard.embedding import batch_rows as native
from embershard.embedding import batch_rows_reference as twin
from embershard.embedding.batch_rows import Bags, InteractionGradient, Pooling, RowColumns, pooled_fields

BOTH = pytest.mark.parametrize("kernels", [native, twin], ids=["native", "twin"])


@st.composite
def keyed_features(draw: Any) -> tuple[Any, ...]:
    tables = draw(st.integers(1, 4))
    table_of = draw(st.lists(st.integers(0, tables - 1), min_size=1, max_size=6))
    # A few values spread over the whole range: many duplicates, all 64-bit patterns valid.
    pool = draw(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=12))
    per_feature = [draw(st.lists(st.sampled_from(pool), max_size=30)) for _ in table_of]
    keys = np.array([key for part in per_feature for key in part], np.uint64)
    starts = np.concatenate([[0], np.cumsum([len(part) for part in per_feature])]).astype(np.int64)
    return keys, starts, np.array(table_of, np.int32), tuple(f"t{i}" for i in range(tables))


@given(keyed_features())
def test_deduplicate_equals_twin(request: tuple[Any, ...]) -> None:
    got, want = native.deduplicate(*request), twin.deduplicate(*request)
    np.testing.assert_array_equal(got.keys.keys, want.keys.keys)
    np.testing.assert_array_equal(got.keys.splits, want.keys.splits)
    np.testing.assert_array_equal(got.inverse, want.inverse)
    np.testing.assert_array_equal(got.occurrences, want.occurrences)


@BOTH
def test_deduplicate_draws_as_in_its_docstring(kernels: Any) -> None:
    keys = np.array([7, 8, 7, 1, 2, 1, 3, 1, 3], np.uint64)
    got = kernels.deduplicate(keys, np.array([0, 3, 6, 9]), np.array([0, 1, 1], np.int32), ("user", "item"))
    assert got.keys.keys.tolist() == [7, 8, 1, 2, 3]
    assert got.keys.splits.tolist() == [0, 2, 5]
    assert got.inverse.tolist() == [0, 1, 0, 2, 3, 2, 4, 2, 4]
    assert got.occurrences.tolist() == [2, 1, 3, 1, 2]


@given(keyed_features(), st.data())
def test_count_clicks_equals_twin_and_stays_within_occurrences(request: tuple[Any, ...], data: Any) -> None:
    keys, starts, table_of, _ = request
    unique, examples = native.deduplicate(*request), data.draw(st.integers(1, 5))
    cuts = [
        np.sort(data.draw(st.lists(st.integers(int(a), int(b)), min_size=examples - 1, max_size=examples - 1)))
        for a, b in itertools.pairwise(starts)
    ]
    bags = [np.concatenate([[start], cut]) for start, cut in zip(starts[:-1], cuts, strict=True)]
    offsets = np.concatenate([*bags, [len(keys)]]).astype(np.int64)
    clicked = np.array(data.draw(st.lists(st.booleans(), min_size=examples, max_size=examples)))
    features = np.array(sorted(data.draw(st.sets(st.integers(0, len(table_of) - 1)))), np.int64)
    got = native.count_clicks(unique, offsets, features, clicked)
    np.testing.assert_array_equal(got, twin.count_clicks(unique, offsets, features, clicked))
    assert (got <= unique.occurrences).all()
    everything = native.count_clicks(unique, offsets, np.arange(len(table_of)), np.ones(examples, np.bool_))
    np.testing.assert_array_equal(everything, unique.occurrences)


@BOTH
def test_count_clicks_counts_keys_of_clicked_examples_in_the_features_asked_for(kernels: Any) -> None:
    """Three examples, the first and the last clicked: user [7] [8] [7], tags [1 1] [1] [2]."""
    keys, starts = np.array([7, 8, 7, 1, 1, 1, 2], np.uint64), np.array([0, 3, 7])
    unique = native.deduplicate(keys, starts, np.array([0, 1], np.int32), ("user", "tags"))
    offsets, clicked = np.array([0, 1, 2, 3, 5, 6, 7]), np.array([True, False, True])
    assert unique.keys.keys.tolist() == [7, 8, 1, 2]
    assert kernels.count_clicks(unique, offsets, np.array([0, 1]), clicked).tolist() == [2, 0, 2, 1]
    assert kernels.count_clicks(unique, offsets, np.array([1]), clicked).tolist() == [0, 0, 2, 1]
    assert kernels.count_clicks(unique, offsets, np.array([], np.int64), clicked).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("offsets", "features", "inverse", "message"),
    [
        ([0, 1, 2], [1], [0, 1], "number of bags at least 4, got 2"),
        ([0, 1, 2], [-1], [0, 1], "feature number at least 0, got -1"),
        ([0, 3, 2], [0], [0, 1], "ascending offset at least 3, got 2"),
        ([0, 1, 3], [0], [0, 1], "length of inverse at least 3, got 2"),
        ([0, 1, 2], [0], [0, 2], "number of unique keys at least 3, got 2"),
        ([0, 1, 2], [0], [0, -1], "place at least 0, got -1"),
    ],
)
def test_count_clicks_refuses_arrays_that_do_not_fit(
    offsets: list[int], features: list[int], inverse: list[int], message: str
) -> None:
    unique = native.deduplicate(np.array([5, 6], np.uint64), np.array([0, 2]), np.zeros(1, np.int32), ("t",))
    wrong = replace(unique, inverse=np.array(inverse, np.int32))
    with pytest.raises(ValueError, match=message):
        native.count_clicks(wrong, np.array(offsets), np.array(features), np.array([True, True]))


@BOTH
def test_same_key_in_two_tables_stays_two_keys(kernels: Any) -> None:
    got = kernels.deduplicate(np.array([5, 5], np.uint64), np.array([0, 1, 2]), np.array([1, 0], np.int32), ("a", "b"))
    assert got.keys.keys.tolist() == [5, 5]
    assert got.inverse.tolist() == [1, 0]


def test_deduplicate_many_keys_whose_low_bits_agree() -> None:
    keys = np.repeat(np.arange(20_000, dtype=np.uint64) << np.uint64(44), 3)
    got = native.deduplicate(keys, np.array([0, len(keys)]), np.zeros(1, np.int32), ("t",))
    np.testing.assert_array_equal(got.keys.keys, keys[::3])
    assert (got.occurrences == 3).all()


@pytest.mark.parametrize(
    ("starts", "table_of", "message"),
    [
        ([0, 2], [0], "last start 3, got 2"),
        ([1, 3], [0], "first start 0, got 1"),
        ([0, 3], [1], "number of tables at least 2, got 1"),
        ([0, 3], [-1], "table number at least 0, got -1"),
        ([0, 5, 3], [0, 0], "ascending start at least 5, got 3"),
        ([0, 3], [0, 0], "length of starts 3, got 2"),
    ],
)
def test_deduplicate_refuses_arrays_that_do_not_fit(starts: list[int], table_of: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        native.deduplicate(np.arange(3, dtype=np.uint64), np.array(starts), np.array(table_of, np.int32), ("t",))


@st.composite
def pooled_batch(draw: Any) -> tuple[np.ndarray, RowColumns, Bags, int, int, np.random.Generator]:
    """Rows of one layout, a block of them, bags over them, examples, output columns."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    examples, features = draw(st.integers(0, 6)), draw(st.integers(1, 4))
    dim = draw(st.sampled_from([1, 3, 8, 16, 17]))
    first, after, row_start = draw(st.integers(0, 2)), draw(st.integers(0, 2)), draw(st.integers(0, 3))
    count = draw(st.integers(1, 8))
    rows = rng.standard_normal((count, first + dim + after)).astype(np.float32)
    scalar = draw(st.lists(st.booleans(), min_size=features, max_size=features))
    lengths = np.concatenate([np.ones(examples) if one else rng.integers(0, 4, examples) for one in scalar])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    inverse = rng.integers(row_start, row_start + count, offsets[-1]).astype(np.int32)
    # Quarters, zeros and negatives: divisors of exactly 0 occur.
    weights = rng.integers(-2, 5, len(inverse)).astype(np.float32) / 4 if draw(st.booleans()) else None
    used = draw(st.lists(st.sampled_from(range(features)), min_size=1, max_size=features, unique=True))
    pooling = [draw(st.sampled_from(list(Pooling))) for _ in used]
    fields = pooled_fields(used, [k * dim for k in range(len(used))], pooling, [scalar[f] for f in used])
    return (
        rows,
        RowColumns(first, dim, row_start),
        Bags(inverse, offsets, weights, fields),
        examples,
        len(used) * dim,
        rng,
    )


def _wide(rng: np.random.Generator, examples: int, columns: int) -> np.ndarray:
    """(examples, columns) whose rows are further apart than they are long, as a view into an MLP's input is."""
    return rng.standard_normal((examples, columns + 3)).astype(np.float32)[:, :columns]


@settings(max_examples=200)
@given(pooled_batch())
def test_pool_and_sum_equal_twin(batch: tuple[Any, ...]) -> None:
    rows, block, bags, examples, columns, rng = batch
    got, want = _wide(rng, examples, columns), np.empty((examples, columns), np.float32)
    native.pool_rows(rows, block, bags, got)
    twin.pool_rows(rows, block, bags, want)
    np.testing.assert_array_equal(got, want)

    gradient = _wide(rng, examples, columns)
    before = rng.standard_normal(rows.shape).astype(np.float32)
    got_sum = native.sum_row_gradients(rows, block, bags, gradient, before.copy())
    want_sum = twin.sum_row_gradients(rows, block, bags, gradient, before.copy())
    np.testing.assert_array_equal(got_sum, want_sum)
    inside = slice(block.first, block.first + block.dim)
    np.testing.assert_array_equal(np.delete(got_sum, inside, axis=1), np.delete(before, inside, axis=1))


@settings(max_examples=200)
@given(pooled_batch(), st.booleans(), st.sets(st.sampled_from(["pooled", "first_order", "second_order"])))
def test_interaction_equals_twin(batch: tuple[Any, ...], with_linear: bool, present: set[str]) -> None:
    rows, block, bags, examples, columns, rng = batch
    linear = (block.first - 1) if with_linear and block.first > 0 else None
    pooled = _wide(rng, examples, columns)
    got = native.pool_interaction(rows, block, linear, bags, pooled)
    want = twin.pool_interaction(rows, block, linear, bags, np.empty((examples, columns), np.float32))
    for name in ("pooled", "first_order", "second_order", "factor_sums"):
        np.testing.assert_array_equal(getattr(got, name), getattr(want, name))

    gradient = InteractionGradient(
        _wide(rng, examples, columns + 2) if "pooled" in present else None,
        rng.standard_normal(examples).astype(np.float32) if "first_order" in present else None,
        rng.standard_normal(examples).astype(np.float32) if "second_order" in present else None,
    )
    args = (rows, block, linear, bags)
    got_sum = native.sum_interaction_gradients(*args, forward=got, gradient=gradient, out=np.zeros_like(rows))
    want_sum = twin.sum_interaction_gradients(*args, forward=want, gradient=gradient, out=np.zeros_like(rows))
    np.testing.assert_array_equal(got_sum, want_sum)


@BOTH
@pytest.mark.parametrize("pooling", list(Pooling))
def test_empty_bag_gives_zeros_and_no_gradient_b19(kernels: Any, pooling: Pooling) -> None:
    rows = np.array([[1.0, -2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)
    bags = Bags(  # [[1], [], [2, 3], []]
        np.array([0, 1, 2], np.int32), np.array([0, 1, 1, 3, 3]), None, pooled_fields([0], [0], [pooling], [False])
    )
    block = RowColumns(0, 2)
    out = kernels.pool_rows(rows, block, bags, np.full((4, 2), np.nan, np.float32))
    third = {
        Pooling.SUM: [8, 10],
        Pooling.MEAN: [4, 5],
        Pooling.SQRTN: np.float32([8, 10]) / np.sqrt(np.float32(2)),
        Pooling.MAX: [5, 6],
    }[pooling]
    np.testing.assert_array_equal(out, np.float32([[1, -2], [0, 0], third, [0, 0]]))
    gradient = np.full((4, 2), np.nan, np.float32)
    gradient[[0, 2]] = 1
    assert np.isfinite(kernels.sum_row_gradients(rows, block, bags, gradient, np.zeros_like(rows))).all()


@BOTH
def test_gradients_of_equal_keys_are_summed_b14(kernels: Any) -> None:
    bags = Bags(
        np.array([0, 1, 1, 2, 2, 0, 1, 3, 3, 2], np.int32),
        np.arange(11),
        None,
        pooled_fields([0], [0], [Pooling.SUM], [True]),
    )
    rows = np.zeros((4, 1), np.float32)
    ones = np.ones((10, 1), np.float32)
    total = kernels.sum_row_gradients(rows, RowColumns(0, 1), bags, ones, np.zeros_like(rows))
    assert total.ravel().tolist() == [2, 3, 3, 2]


@BOTH
def test_weighted_mean_divides_by_the_sum_of_weights(kernels: Any) -> None:
    rows = np.array([[1.0], [5.0]], np.float32)
    weights = np.array([3.0, 1.0], np.float32)
    for pooling, want in [(Pooling.MEAN, 2.0), (Pooling.SQRTN, 8 / np.sqrt(np.float32(10))), (Pooling.SUM, 8.0)]:
        bags = Bags(np.array([0, 1], np.int32), np.array([0, 2]), weights, pooled_fields([0], [0], [pooling], [False]))
        assert kernels.pool_rows(rows, RowColumns(0, 1), bags, np.empty((1, 1), np.float32))[0, 0] == np.float32(want)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inverse": np.array([0, 9], np.int32)}, "number of rows at least 10, got 2"),
        ({"inverse": np.array([-1, 0], np.int32)}, "row number at least 0, got -1"),
        ({"offsets": np.array([0, 2, 1])}, "negative length"),
        ({"offsets": np.array([0, 1, 3])}, "length of inverse at least 3, got 2"),
        ({"weights": np.ones(3, np.float32)}, "length of weights 2, got 3"),
        ({"fields": pooled_fields([1], [0], [Pooling.SUM], [False])}, "number of bags at least 4, got 2"),
        ({"fields": pooled_fields([0], [1], [Pooling.SUM], [False])}, "columns of the output at least 3, got 2"),
        ({"fields": np.array([[0, 0, 7, 0]])}, "pooling at most 3, got 7"),
    ],
)
def test_pool_refuses_numbers_out_of_range_b13(change: dict[str, Any], message: str) -> None:
    fields = pooled_fields([0], [0], [Pooling.SUM], [False])
    parts = {"inverse": np.array([0, 1], np.int32), "offsets": np.array([0, 1, 2]), "weights": None, "fields": fields}
    with pytest.raises(ValueError, match=message):
        native.pool_rows(
            np.zeros((2, 2), np.float32), RowColumns(0, 2), Bags(**{**parts, **change}), np.zeros((2, 2), np.float32)
        )


def test_kernels_refuse_another_dtype_instead_of_copying() -> None:
    fields = pooled_fields([0], [0], [Pooling.SUM], [True])
    bags = Bags(np.array([0], np.int32), np.array([0, 1]), None, fields)
    with pytest.raises(TypeError):
        native.pool_rows(np.zeros((1, 1)), RowColumns(0, 1), bags, np.zeros((1, 1), np.float32))
    with pytest.raises(TypeError):
        native.deduplicate(np.zeros(1, np.int64), np.array([0, 1]), np.zeros(1, np.int32), ("t",))


@pytest.fixture
def batch_threads() -> Iterator[None]:
    before = native.batch_threads()
    yield
    native.set_batch_threads(before)


def large_batch(weighted: bool) -> tuple[np.ndarray, RowColumns, Bags]:
    """Rows with a linear column before the factors; features 0 and 3 share a table, feature 2 is a list, 4 is empty."""
    rng = np.random.default_rng(3)
    examples, tables = 8_000, [(0, 40), (40, 2_040), (2_040, 2_050), (0, 40), (2_050, 2_051)]
    lengths = [np.full(examples, 1), np.full(examples, 1), rng.integers(0, 4, examples), np.full(examples, 1)]
    lengths.append(np.zeros(examples, np.int64))
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)
    inverse = np.concatenate([rng.integers(*table, n.sum()) for table, n in zip(tables, lengths, strict=True)])
    weights = rng.random(len(inverse)).astype(np.float32) if weighted else None
    pooling = [Pooling.SUM, Pooling.MEAN, Pooling.MAX, Pooling.SUM, Pooling.SQRTN]
    fields = pooled_fields(range(5), [16 * f for f in range(5)], pooling, [True, True, False, True, False])
    rows = rng.standard_normal((2_051, 17)).astype(np.float32)
    return rows, RowColumns(1, 16), Bags(inverse.astype(np.int32), offsets, weights, fields)


def pooled_and_summed(rows: np.ndarray, block: RowColumns, bags: Bags) -> list[np.ndarray]:
    rng = np.random.default_rng(4)
    pooled = native.pool_rows(rows, block, bags, np.empty((8_000, 80), np.float32))
    summed = native.sum_row_gradients(rows, block, bags, pooled, np.ones_like(rows))
    forward = native.pool_interaction(rows, block, 0, bags, np.empty((8_000, 80), np.float32))
    per_example = [rng.standard_normal(8_000).astype(np.float32) for _ in range(2)]
    gradient = InteractionGradient(_wide(rng, 8_000, 80), *per_example)
    out = native.sum_interaction_gradients(
        rows, block, 0, bags, forward=forward, gradient=gradient, out=np.ones_like(rows)
    )
    return [pooled, summed, forward.first_order, forward.second_order, forward.factor_sums, out]


@pytest.mark.usefixtures("batch_threads")
@pytest.mark.parametrize("weighted", [False, True])
def test_no_bit_of_a_large_batch_depends_on_the_number_of_threads(weighted: bool) -> None:
    batch = large_batch(weighted)
    native.set_batch_threads(1)
    want = pooled_and_summed(*batch)
    for threads in (2, 3, 7):
        native.set_batch_threads(threads)
        for _ in range(5):
            for got, expected in zip(pooled_and_summed(*batch), want, strict=True):
                np.testing.assert_array_equal(got, expected)


@pytest.mark.usefixtures("batch_threads")
def test_large_batches_from_many_threads_at_once_are_the_same() -> None:
    batch = large_batch(weighted=True)
    native.set_batch_threads(1)
    want = pooled_and_summed(*batch)
    native.set_batch_threads(3)
    wrong: list[int] = []

    def work() -> None:
        for turn in range(5):
            got = pooled_and_summed(*batch)
            if not all(np.array_equal(a, b) for a, b in zip(got, want, strict=True)):
                wrong.append(turn)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    native.set_batch_threads(2)  # while they are at work
    for thread in threads:
        thread.join()
    assert wrong == []


FORKED = """
import os, signal, sys
import numpy as np
from embershard.embedding import batch_rows as native
rows = np.ones((10, 4), np.float32)
fields = native.pooled_fields([0, 1, 2], [0, 4, 8], [native.Pooling.SUM] * 3, [True] * 3)
bags = native.Bags(np.zeros(30_000, np.int32), np.arange(30_001), None, fields)
def pool(): return native.pool_rows(rows, native.RowColumns(0, 4), bags, np.empty((10_000, 12), np.float32)).sum()
native.set_batch_threads(3)
pool()
child = os.fork()
if child == 0:
    signal.alarm(20)
    same = pool() == 120_000
    native.set_batch_threads(2)
    sys.exit(0 if same and pool() == 120_000 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_pools_although_its_parents_threads_are_not_there() -> None:
    assert subprocess.run([sys.executable, "-c", FORKED], timeout=60, check=False).returncode == 0


def test_threads_below_one_are_refused() -> None:
    before = native.batch_threads()
    with pytest.raises(ValueError, match="expected threads at least 1, got 0"):
        native.set_batch_threads(0)
    assert native.batch_threads() == before


def test_deduplicate_from_many_threads_at_once_is_the_same() -> None:
    rng = np.random.default_rng(0)
    batches = [rng.integers(0, size, 20_000).astype(np.uint64) for size in (10, 1_000, 100_000, 2**63)]
    want = [twin.deduplicate(b, np.array([0, len(b)]), np.zeros(1, np.int32), ("t",)).inverse for b in batches]
    wrong: list[int] = []

    def work(index: int) -> None:
        for _ in range(20):
            got = native.deduplicate(batches[index], np.array([0, len(batches[index])]), np.zeros(1, np.int32), ("t",))
            if not np.array_equal(got.inverse, want[index]):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
