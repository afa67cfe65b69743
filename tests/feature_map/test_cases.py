"""Cases from the field: what broke elsewhere stays whole here. A test's name carries the number of its case."""

from __future__ import annotations

from pathlib import Path

import mmh3
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embershard.feature_map import (
    Categorical,
    ColumnTypeError,
    Cross,
    FeatureMap,
    Label,
    LabelError,
    Numeric,
    Sequence,
    ValueEncodeError,
)
from embershard.feature_map._native import unmix64

IDS = FeatureMap([Categorical("id")])
TEXTS = FeatureMap([Categorical("id", id="text")])


def keys(features: FeatureMap, values: object, kind: pa.DataType | None = None) -> list[int]:
    return features.encode(pa.table({"id": pa.array(values, kind)})).keys.tolist()


def test_b01_hashes_are_64_bit_and_unsigned_and_the_page_for_others_says_so() -> None:
    page = (Path(__file__).parents[2] / "docs" / "keys.md").read_text(encoding="utf-8")
    assert "seed 0, unsigned" in page
    assert "signed=False" in page
    texts = ["foo", "abc", *map(str, range(1000))]
    expected = [mmh3.hash64(text, seed=0, signed=False)[0] for text in texts]
    salt = mmh3.hash64("id", seed=0, signed=False)[0]
    found = keys(TEXTS, texts)
    assert [unmix64(key) ^ salt for key in found] == expected
    assert sum(h >> 63 for h in expected) > 400  # half of them would read as negative
    assert min(found) >= 0
    assert FeatureMap([Categorical("id", id="text")]).encode(pa.table({"id": texts})).keys.dtype == np.uint64


def test_b05_null_is_no_text_and_no_text_is_null() -> None:
    found = keys(TEXTS, [None, "", "nan", "None", "0", "inf", "null", "NA"])
    assert len(set(found)) == 8
    assert found[0] == TEXTS.key("id", None)
    marked = FeatureMap([Categorical("id", id="text", null_values=("nan", "NA"))])
    assert [k == found[0] for k in keys(marked, ["nan", "None", "NA", ""])] == [True, False, True, False]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64(), pa.float16()])
def test_b05_float_ids_are_refused_by_name(kind: pa.DataType) -> None:
    for features in (IDS, TEXTS):
        with pytest.raises(
            ColumnTypeError, match=r"column 'id': expected .* ids, got float.*do not pass through float"
        ):
            features.encode(pa.table({"id": pa.array(np.array([1.0, 2.0], np.float16)).cast(pa.float32()).cast(kind)}))
    with pytest.raises(ColumnTypeError, match="column 'id'"):
        IDS.encode_one({"id": 1.0})


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.timestamp("ns", "UTC"), pa.decimal128(10, 2)])
def test_times_and_decimals_need_a_named_transform(kind: pa.DataType) -> None:
    with pytest.raises(ColumnTypeError, match=r"column 'id': expected int64 ids, got .*needs a named transform"):
        IDS.encode(pa.table({"id": pa.nulls(1, kind)}))


def test_b07_lists_keep_their_values_whole() -> None:
    features = FeatureMap([Categorical("id", id="text", is_list=True)])
    batch = features.encode(pa.table({"id": [["Action", "Comedy"], ["Action"]]}))
    assert batch.keys.tolist() == keys(TEXTS, ["Action", "Comedy", "Action"])


def test_b07_the_missing_key_is_no_other_values_key() -> None:
    texts = [f"value {number}" for number in range(100_000)]
    found = keys(TEXTS, [*texts, None])
    assert len(set(found)) == 100_001
    assert found[-1] == TEXTS.key("id", None)
    skipping = FeatureMap([Categorical("id", id="text", missing="skip")])
    assert keys(skipping, ["a", None, "b"]) == keys(TEXTS, ["a", "b"])  # padding is the absence of a key, not a key


def test_b08_large_ids_beside_a_null_stay_exact(tmp_path: Path) -> None:
    values = [9007199254740992, 9007199254740993, None, 4873214862074861312, 4873214862074861313]
    pq.write_table(pa.table({"id": pa.array(values, pa.int64())}), tmp_path / "ids.parquet")
    found = IDS.encode(pq.read_table(tmp_path / "ids.parquet")).keys.tolist()
    assert len(set(found)) == 5
    assert [IDS.value("id", key) for key in found] == values
    frame = pd.DataFrame({"id": pd.array(values, dtype="Int64")})
    assert IDS.encode(pa.Table.from_pandas(frame)).keys.tolist() == found
    with pytest.raises(ColumnTypeError, match="float64"):  # pandas without an integer type with nulls
        IDS.encode(pa.Table.from_pandas(pd.DataFrame({"id": [1, None]})))


def test_b09_unsigned_ids_are_themselves() -> None:
    features = FeatureMap([Categorical("id", id="uint64")])
    values = [0, 2**63 - 1, 2**63, 2**63 + 5, 2**64 - 1, None]
    found = keys(features, values, pa.uint64())
    assert len(set(found)) == 6
    assert [features.value("id", key) for key in found] == values
    assert [features.encode_one({"id": v}).keys.tolist()[0] for v in values] == found


def test_b09_ids_of_the_other_sign_are_refused_with_the_row() -> None:
    with pytest.raises(ValueEncodeError, match=r"an id in -2\^63 … 2\^63-1, got 9223372036854775808 \(row 1\)"):
        keys(IDS, [1, 2**63], pa.uint64())
    unsigned = FeatureMap([Categorical("id", id="uint64")])
    with pytest.raises(ValueEncodeError, match=r"an id in 0 … 2\^64-1, got -1 \(row 2\)"):
        keys(unsigned, [0, None, -1], pa.int64())
    garbage = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\x01"), pa.py_buffer(np.array([5, -1]))])
    assert len(unsigned.encode(pa.table({"id": garbage})).keys) == 2  # what lies under a null is not looked at


def test_b12_text_that_looks_like_a_number_is_text() -> None:
    values = ["00123", "123", "+123", "-5", "1e5", " 7"]
    assert len(set(keys(TEXTS, values))) == 6
    assert keys(IDS, ["00123", "123", "+123", "-5"]) == keys(IDS, [123, 123, 123, -5])
    for bad in ("1e5", " 7", "7 ", "", "-", "+", "+-3", "0x10", "9223372036854775808", "1.0"):
        with pytest.raises(ValueEncodeError, match=r"column 'id': expected an int64 id, got .* \(row 1\)"):
            keys(IDS, ["1", bad])


def test_b23_slices_copies_and_chunks_agree() -> None:
    features = FeatureMap(
        [Categorical("id", is_list=True), Sequence("last", column="id", max_length=2), Categorical("one")]
    )
    table = pa.table({"id": [[1], [1, 2], [1, 2, 3], [4]], "one": [1, None, 3, 4]})
    part = table.slice(1, 3)
    copy = pa.Table.from_pylist(part.to_pylist(), schema=part.schema)
    chunked = pa.concat_tables([table.slice(1, 1), table.slice(2, 0), table.slice(2, 2)])
    expected = features.encode(copy)
    for records in (part, chunked, part.to_batches()[0], part.combine_chunks().to_batches()[0]):
        found = features.encode(records)
        assert found.keys.tolist() == expected.keys.tolist()
        assert found.offsets.tolist() == expected.offsets.tolist()
    one_by_one = [features.encode(part.slice(i, 1)).keys_of("last").tolist() for i in range(3)]
    assert [k for bag in one_by_one for k in bag] == expected.keys_of("last").tolist()


def test_b25_columns_are_found_by_name() -> None:
    features = FeatureMap([Categorical("a"), Categorical("b", id="text"), Numeric("c")], label="y")
    table = pa.table({"a": [1, 2], "b": ["x", "y"], "c": [0.5, 1.5], "y": [0, 1], "extra": [None, None]})
    expected = features.encode(table)
    permuted = features.encode(table.select(["extra", "y", "c", "b", "a"]))
    assert permuted.keys.tolist() == expected.keys.tolist()
    assert permuted.dense.tolist() == expected.dense.tolist()
    assert permuted.label is not None
    assert permuted.label.tolist() == [0, 1]
    turned = FeatureMap([Numeric("c"), Categorical("b", id="text"), Categorical("a")], label="y").encode(table)
    for name in ("a", "b"):
        assert turned.keys_of(name).tolist() == expected.keys_of(name).tolist()


def test_b66_files_with_other_types_for_one_column() -> None:
    parts = [pa.nulls(2), pa.array([5, 6], pa.int64()), pa.array([5, None], pa.int32()), pa.array([], pa.int16())]
    not_null = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    tables = [pa.table({"id": part}) for part in parts] + [pa.Table.from_arrays([parts[1]], schema=not_null)]
    missing, five, six = IDS.key("id", None), IDS.key("id", 5), IDS.key("id", 6)
    expected = [[missing, missing], [five, six], [five, missing], [], [five, six]]
    assert [IDS.encode(table).keys.tolist() for table in tables] == expected


def test_b66_null_typed_list_column_is_empty_lists() -> None:
    features = FeatureMap(
        [Categorical("id", is_list=True), Sequence("s", column="id"), Categorical("one", missing="skip")]
    )
    batch = features.encode(pa.table({"id": pa.nulls(3), "one": pa.nulls(3)}))
    assert batch.keys.tolist() == []
    assert batch.offsets.tolist() == [0] * 10


def test_b67_text_types_agree_and_big_columns_are_not_joined() -> None:
    values = ["a", None, "bc", "", "ü" * 20]
    expected = keys(TEXTS, values)
    for kind in (pa.large_string(), pa.string_view(), pa.binary(), pa.dictionary(pa.int8(), pa.string())):
        column = pa.array(values).cast(kind)
        assert TEXTS.encode(pa.table({"id": column})).keys.tolist() == expected
    one = pa.array(["x" * 1000] * 1000)
    many = pa.chunked_array([one] * 2500)  # 2.5 GB of text in chunks that share memory
    found = TEXTS.encode(pa.table({"id": many})).keys
    assert len(found) == 2_500_000
    assert set(found[::1000].tolist()) == {TEXTS.key("id", "x" * 1000)}


def test_dictionary_codes_are_not_values_and_unused_entries_do_not_matter() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([2, 0, None, 2], pa.int8()), pa.array(["5", "bad", "7"]))
    assert keys_of_ids(column) == keys(IDS, [7, 5, None, 7])
    used = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["5", "bad"]))
    with pytest.raises(ValueEncodeError, match=r"got 'bad' \(row 1\)"):
        keys_of_ids(used)
    null_entry = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["5", None]))
    assert keys_of_ids(null_entry) == keys(IDS, [5, None])
    large = pa.DictionaryArray.from_arrays(pa.array([99_999, 3], pa.int32()), pa.array(range(100_000)))
    assert keys_of_ids(large) == keys(IDS, [99_999, 3])


def keys_of_ids(column: pa.Array) -> list[int]:
    return IDS.encode(pa.table({"id": column})).keys.tolist()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (2, r"in \[0, 1\], got 2"),
        (-0.5, r"in \[0, 1\], got -0.5"),
        (None, "got null or NaN"),
        (float("nan"), "got null or NaN"),
    ],
)
def test_b70_bad_labels_are_refused_with_row_and_value(value: float | None, message: str) -> None:
    features = FeatureMap([Categorical("id")], label="y")
    with pytest.raises(LabelError, match=rf"column 'y': expected a label.*{message} \(row 1\)"):
        features.encode(pa.table({"id": [1, 2], "y": pa.array([1.0, value], pa.float64())}))


def test_labels_from_other_values() -> None:
    table = pa.table(
        {"id": [1, 2, 3], "rating": [3, 4, 5], "income": [">50K", "<=50K", ">50K."], "y": [0.25, 0.0, 1.0]}
    )
    features = FeatureMap(
        [Categorical("id")],
        label=[Label(column="rating", at_least=4), Label(column="income", positive=(">50K", ">50K.")), "y"],
    )
    label = features.encode(table).label
    assert label is not None
    assert label.tolist() == [[0, 1, 0.25], [1, 0, 0], [1, 1, 1]]
    assert features.labels == ("rating", "income", "y")
    assert features.encode(table.drop(["y"])).label is None
    assert features.without_label().encode(table).label is None


def test_a_cross_of_two_long_lists_is_refused_before_it_fills_the_memory() -> None:
    parts = [Categorical("a", is_list=True), Categorical("b", is_list=True)]
    features = FeatureMap([*parts, Cross("x", of=("a", "b"))])
    fits = features.encode(pa.table({"a": [[1], list(range(1024))], "b": [[1], list(range(1024))]}))
    assert len(fits.keys_of("x")) == 1 + 1024 * 1024
    with pytest.raises(
        ValueEncodeError, match=r"column 'a': expected at most 1048576 combinations.*got 1049600 \(row 1\)"
    ):
        features.encode(pa.table({"a": [[1], list(range(1025))], "b": [[1], list(range(1024))]}))


@pytest.mark.parametrize("value", [2**70, object(), [1, "a"]])
def test_a_value_that_arrow_cannot_hold_is_refused_by_column(value: object) -> None:
    with pytest.raises(ValueEncodeError, match="column 'id': expected a value of int64, got"):
        IDS.encode_one({"id": value})
    with pytest.raises(ValueEncodeError, match="column 'id'"):
        TEXTS.encode_one({"id": "\ud800"})
    with pytest.raises(TypeError, match="expected a pyarrow RecordBatch or Table, got DataFrame"):
        IDS.encode(pd.DataFrame({"id": [1]}))  # type: ignore[arg-type]
