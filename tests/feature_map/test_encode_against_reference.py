"""The native plan against its definition in plain Python, on random columns of every Arrow type it takes."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embershard.feature_map import (
    Bucketize,
    Categorical,
    Constant,
    Cross,
    CrossPart,
    FeatureMap,
    Lookup,
    Numeric,
    Sequence,
    SoftBuckets,
)
from embershard.feature_map.reference import reference_encode

TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
INT64 = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-3, 3))
UINT64 = st.one_of(st.integers(0, (1 << 64) - 1), st.integers(0, 3))
FINITE = st.floats(allow_nan=True, allow_infinity=True, width=64)
TEXT_TYPES = [
    pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.uint32(), pa.large_string()),
]  # fmt: skip
LIST_TYPES = [pa.list_, pa.large_list, pa.list_view, pa.large_list_view]


def assert_same(features: FeatureMap, records: pa.RecordBatch | pa.Table) -> None:
    got, expected = features.encode(records), reference_encode(features, records)
    assert got.features == expected.features
    np.testing.assert_array_equal(got.offsets, expected.offsets)
    np.testing.assert_array_equal(got.keys, expected.keys)
    assert got.scalar == expected.scalar
    if expected.weights is None:
        assert got.weights is None
    else:
        np.testing.assert_array_equal(got.weights, expected.weights)
    assert got.dense.shape == expected.dense.shape
    assert np.isfinite(got.dense).all()
    np.testing.assert_array_max_ulp(got.dense, expected.dense, maxulp=1)


def cut(records: pa.Table, cuts: list[int]) -> pa.Table:
    """The same rows as chunks that are slices of one parent."""
    bounds = [0, *sorted(c % (records.num_rows + 1) for c in cuts), records.num_rows]
    return pa.concat_tables([records.slice(a, b - a) for a, b in itertools.pairwise(bounds)])


@st.composite
def text_columns(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(0, 40))
    kind = draw(st.sampled_from(TEXT_TYPES))
    inner = draw(st.sampled_from([t for t in TEXT_TYPES if not pa.types.is_dictionary(t)]))
    make_list = draw(st.sampled_from(LIST_TYPES))
    values = draw(st.lists(st.one_of(st.none(), TEXT), min_size=rows, max_size=rows))
    lists = draw(
        st.lists(st.one_of(st.none(), st.lists(st.one_of(st.none(), TEXT), max_size=4)), min_size=rows, max_size=rows)
    )
    joined = [None if bag is None else "|".join(v or "" for v in bag) for bag in lists]
    data = {
        "a": pa.array(values, pa.string()).cast(kind) if pa.types.is_dictionary(kind) else pa.array(values, kind),
        "b": pa.array(lists, make_list(inner)),
        "c": pa.array(joined, pa.string()),
    }
    return pa.table(data)


@settings(max_examples=30, deadline=None)
@given(text_columns(), st.lists(st.integers(0, 100), max_size=4))
def test_text_columns_of_every_type(records: pa.Table, cuts: list[int]) -> None:
    features = FeatureMap(
        [
            Categorical("a", id="text", null_values=("nan",)),
            Categorical("a_skip", id="text", column="a", missing="skip"),
            Categorical("a_default", id="text", column="a", default="none"),
            Categorical("b", id="text", is_list=True),
            Sequence("b_last", id="text", column="b", max_length=2, null_elements="learn"),
            Sequence("b_first", id="text", column="b", max_length=2, keep="first"),
            Categorical("c", id="text", delimiter="|"),
            Categorical("c_learn", id="text", column="c", delimiter="|", null_elements="learn"),
            Cross("a_b", of=("a", "b")),
            Cross("b_a_c", of=("b_last", "a_skip", "c")),
            Constant("bias"),
        ],
        null_values=("0",),
    )
    assert_same(features, records)
    assert_same(features, cut(records, cuts))


@st.composite
def integer_columns(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(0, 40))
    small = draw(st.sampled_from([pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()]))

    def column(values: st.SearchStrategy[int]) -> list[int | None]:
        return draw(st.lists(st.one_of(st.none(), values), min_size=rows, max_size=rows))

    lists = draw(
        st.lists(st.one_of(st.none(), st.lists(st.one_of(st.none(), INT64), max_size=4)), min_size=rows, max_size=rows)
    )
    fixed = draw(st.lists(st.one_of(st.none(), st.tuples(INT64, INT64).map(list)), min_size=rows, max_size=rows))
    pairs = [[(k, 0.5 * i) for i, k in enumerate(bag or []) if k is not None] for bag in lists]
    return pa.table(
        {
            "small": pa.array(column(st.integers(0, 100)), small),
            "signed": pa.array(column(INT64), pa.int64()),
            "unsigned": pa.array(column(UINT64), pa.uint64()),
            "flag": pa.array(
                draw(st.lists(st.sampled_from([None, True, False]), min_size=rows, max_size=rows)), pa.bool_()
            ),
            "code": pa.array(column(INT64), pa.int64()).dictionary_encode(),
            "list": pa.array(lists, draw(st.sampled_from(LIST_TYPES))(pa.int64())),
            "fixed": pa.array(fixed, pa.list_(pa.int64(), 2)),
            "map": pa.array(pairs, pa.map_(pa.int64(), pa.float32())),
            "text": pa.array([None if v is None else str(v) for v in column(INT64)], pa.string()),
        }
    )


@settings(max_examples=30, deadline=None)
@given(integer_columns(), st.lists(st.integers(0, 100), max_size=4))
def test_integer_columns_of_every_type(records: pa.Table, cuts: list[int]) -> None:
    features = FeatureMap(
        [
            Categorical("small"),
            Categorical("small_text", id="text", column="small"),
            Categorical("signed", null_values=(-1,)),
            Categorical("signed_skip", column="signed", missing="skip"),
            Categorical("signed_text", id="text", column="signed", default="?"),
            Categorical("unsigned", id="uint64", null_values=(2,)),
            Categorical("flag"),
            Categorical("code", default=7),
            Categorical("list"),
            Categorical("fixed", pooling="mean"),
            Categorical("map"),
            Categorical("text"),
            Cross("signed_unsigned", of=("signed", "unsigned")),
            Cross("plain", of=(CrossPart(column="small"), CrossPart(column="flag"), CrossPart(column="map"))),
            Lookup("looked_up", of=("signed",), entries=((0, 10), (1, 11), (-1, 12))),
            Lookup("looked_up_text", of=("list",), id="text", entries=((0, "zero"), (1, "one")), missing="skip"),
            Lookup("matched", of=("small", "flag"), entries=((0, 1, 5), (1, 0, 6))),
        ]
    )
    assert_same(features, records)
    assert_same(features, cut(records, cuts))


@st.composite
def number_columns(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(0, 40))

    def column(values: st.SearchStrategy[float]) -> list[float | None]:
        return draw(st.lists(st.one_of(st.none(), values), min_size=rows, max_size=rows))

    small = st.floats(-10, 10, width=16)
    return pa.table(
        {
            "x": pa.array(column(FINITE), pa.float64()),
            "y": pa.array(column(small), draw(st.sampled_from([pa.float16(), pa.float32(), pa.float64()]))),
            "n": pa.array(column(INT64), pa.int64()),
            "t": pa.array([None if v is None else repr(v) for v in column(FINITE)], pa.string()),
            "v": pa.array(
                draw(st.lists(st.one_of(st.none(), st.tuples(FINITE, FINITE).map(list)), min_size=rows, max_size=rows)),
                pa.list_(pa.float64()),
            ),
        }
    )


@settings(max_examples=30, deadline=None)
@given(number_columns(), st.lists(st.integers(0, 100), max_size=4))
def test_number_columns(records: pa.Table, cuts: list[int]) -> None:
    edges = (-5.0, 0.0, 0.5, 3.0)
    features = FeatureMap(
        [
            Numeric("x"),
            Numeric("x_log", column="x", transform="log1p", fill=3.0, missing_indicator=True),
            Numeric("x_signed", column="x", transform="signed_log1p"),
            Numeric("y", clip=(-2.0, 5.0), transform=("log1p", "standardise"), mean=0.5, std=2.0),
            Numeric("y_scaled", column="y", transform="min_max", low=-10.0, high=10.0, null_values=(1,)),
            Numeric("n", transform="signed_log1p"),
            Numeric("t"),
            Numeric("v", width=2, missing_indicator=True, fill=-1.0),
            Bucketize("y_bucket", column="y", edges=edges),
            Bucketize("y_bucket_skip", column="y", edges=edges, missing="skip"),
            Bucketize("n_bucket_fill", column="n", edges=edges, fill=0.0),
            SoftBuckets("y_soft", column="y", centres=edges),
        ]
    )
    assert_same(features, records)
    assert_same(features, cut(records, cuts))


@pytest.mark.parametrize("rows", [4095, 4096, 4097, 9000])
def test_blocks_join_without_a_seam(rows: int) -> None:
    random = np.random.default_rng(3)
    ids = pa.array(random.integers(-5, 5, rows), mask=random.random(rows) < 0.2)
    offsets = np.concatenate([[0], np.cumsum(random.integers(0, 3, rows))])
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(random.integers(0, 9, offsets[-1])))
    features = FeatureMap([Categorical("i"), Categorical("i_skip", column="i", missing="skip"), Categorical("l")])
    assert_same(features, pa.table({"i": ids, "l": lists}).slice(3))


def test_weights_in_columns_and_text() -> None:
    records = pa.table(
        {
            "tags": [["a", None, "b"], [], None, ["c"]],
            "tag_weights": [[0.5, 2.0, 3.0], [], None, [1.5]],
            "user": [1, 2, None, 4],
            "user_weight": [0.1, 0.2, 0.3, 0.4],
            "kv": ["a:0.5|b|:3", "", None, "http://c:2"],
        }
    )
    features = FeatureMap(
        [
            Categorical("plain", column="user"),
            Categorical("tags", id="text", weights="tag_weights"),
            Categorical("user", weights="user_weight", missing="skip"),
            Categorical("kv", id="text", delimiter="|", weight_delimiter=":"),
            Cross("both", of=("tags", "user")),
        ]
    )
    assert_same(features, records)
    batch = features.encode(records)
    assert batch.weights is not None
    slices = [batch.weights[batch.feature_slice(i)].tolist() for i in range(5)]
    assert slices[0] == [1, 1, 1, 1]
    assert slices[1] == [0.5, 3.0, 1.5]
    assert slices[3] == [0.5, 1.0, 2.0]
