"""Files of one log whose columns differ: what is declared rules, and keys do not depend on the file."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import embershard as es
from embershard.datasets import ClickLog, ColumnSpec, MissingColumnError, RandomPart

LABEL = pa.array([0.0, 1.0])


def keys(log: ClickLog, features: es.FeatureMap, feature: str = "id", batch_size: int = 3) -> list[list[int]]:
    """Keys of each row, in file order."""
    rows: list[list[int]] = []
    for batch in log.batches(features, batch_size, epoch=0):
        ends = np.cumsum(batch.bag_lengths(feature))[:-1]
        rows += [part.tolist() for part in np.split(batch.keys_of(feature), ends)]
    return rows


def write(path: Path, **columns: pa.Array) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def test_b66_all_null_not_null_int32_and_empty_files_give_the_same_keys_in_any_order(tmp_path: Path) -> None:
    not_null = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    files = {"null": write(tmp_path / "1.parquet", id=pa.nulls(2))}
    files["int64"] = tmp_path / "2.parquet"
    pq.write_table(pa.table({"id": pa.array([5, 6])}, schema=not_null), files["int64"])
    files["int32"] = write(tmp_path / "3.parquet", id=pa.array([5, None], pa.int32()))
    files["empty"] = write(tmp_path / "4.parquet", id=pa.array([], pa.int64()))
    features = es.FeatureMap([es.Categorical("id")])
    five, six, missing = features.key("id", 5), features.key("id", 6), features.key("id", None)
    expected = {"null": [[missing]] * 2, "int64": [[five], [six]], "int32": [[five], [missing]], "empty": []}
    for order in itertools.permutations(files):
        rows = keys(ClickLog([files[name] for name in order]), features)
        assert rows == [row for name in order for row in expected[name]]


def test_b67_text_of_every_arrow_type_gives_the_same_keys(tmp_path: Path) -> None:
    texts = ["a", "ü", None, "a"]
    types = [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int8(), pa.string()), pa.string_view()]
    features = es.FeatureMap([es.Categorical("id", id="text")])
    expected = [[features.key("id", text)] for text in texts]
    for number, type_ in enumerate(types):
        array = pa.array(texts).dictionary_encode().cast(type_) if pa.types.is_dictionary(type_) else pa.array(texts)
        pq.write_table(pa.table({"id": array.cast(type_)}), tmp_path / f"{number}.parquet")
    rows = keys(ClickLog(tmp_path), features)
    assert rows == expected * len(types)


def test_b67_text_of_more_than_2_gb_is_batched_without_joining_its_chunks() -> None:
    chunk = pa.array(["x" * (1 << 20)] * 256 + ["end"])
    table = pa.table({"id": pa.chunked_array([chunk] * 9)})
    assert table.nbytes > 2**31
    lengths = []
    log = ClickLog.from_table(table, unit_rows=512)
    for unit in log.units(0):
        for batch in log.records(unit, [ColumnSpec("id")], 100):
            lengths += pc.binary_length(batch.column("id")).to_pylist()
    assert lengths == ([1 << 20] * 256 + [3]) * 9


def test_b67_a_batch_with_more_text_than_32_bit_offsets_reach_takes_the_large_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("embershard.datasets.record_batches._MAX_OFFSET", 1_000)
    table = pa.table({"id": pa.chunked_array([["x" * 600], ["y" * 600], ["z"]])})
    log = ClickLog.from_table(table)
    (batch,) = log.records(log.units(0)[0], [ColumnSpec("id")], 10)
    assert batch.column("id").type == pa.large_string()
    assert batch.column("id").to_pylist() == ["x" * 600, "y" * 600, "z"]


def test_b44_a_column_added_later_reads_as_missing_before_with_one_notice_a_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = write(tmp_path / "1.parquet", id=pa.array([1, 2]))
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("ad_cat", pa.int64(), nullable=False)])
    new = tmp_path / "2.parquet"
    pq.write_table(pa.table({"id": [3, 4], "ad_cat": [7, 8]}, schema=schema), new)
    turned = write(tmp_path / "3.parquet", extra=pa.array(["x"]), ad_cat=pa.array([9]), id=pa.array([5]))
    features = es.FeatureMap([es.Categorical("id"), es.Categorical("ad_cat", required=False)])
    expected = {old: [None, None], new: [7, 8], turned: [9]}
    for order in itertools.permutations(expected):
        with caplog.at_level(logging.WARNING, "embershard.datasets"):
            rows = keys(ClickLog(list(order)), features, "ad_cat", batch_size=1)
        assert rows == [[features.key("ad_cat", value)] for path in order for value in expected[path]]
        notices = [record.getMessage() for record in caplog.records]
        assert notices == [f"column 'ad_cat' is not in file {str(old)!r}: its rows read as null"]
        caplog.clear()


def test_b44_a_csv_column_added_later_reads_as_missing_before(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("id\n1\n2\n")
    (tmp_path / "2.csv").write_text("ad_cat,id\n7,3\n,4\n")
    features = es.FeatureMap([es.Categorical("id"), es.Categorical("ad_cat", required=False)])
    rows = keys(ClickLog(tmp_path), features, "ad_cat")
    assert rows == [[features.key("ad_cat", value)] for value in (None, None, 7, None)]


def test_a_required_column_that_a_file_lacks_is_an_error_that_names_both(tmp_path: Path) -> None:
    path = write(tmp_path / "1.parquet", other=pa.array([1]))
    with pytest.raises(MissingColumnError, match=r"expected column 'id', got columns \['other'\].*1\.parquet"):
        keys(ClickLog(path), es.FeatureMap([es.Categorical("id")]))


def test_b23_lists_read_as_slice_copy_chunks_and_single_rows_are_the_same(tmp_path: Path) -> None:
    lists = pa.array([[1], [1, 2], [1, 2, 3], [4]])
    features = es.FeatureMap([es.Categorical("id")])
    expected = [[features.key("id", value) for value in row] for row in ([1, 2], [1, 2, 3], [4])]
    whole = pa.table({"id": lists})
    copy = pa.table({"id": pa.array([[1, 2], [1, 2, 3], [4]])})
    chunks = pa.table({"id": pa.chunked_array([lists.slice(1, 1), lists.slice(2, 2)])})
    for table in (whole.slice(1), copy, chunks):
        for batch_size in (1, 2, 3):
            assert keys(ClickLog.from_table(table), features, batch_size=batch_size) == expected
    pq.write_table(whole, tmp_path / "log.parquet")
    assert keys(ClickLog(tmp_path / "log.parquet", unit_rows=1), features)[1:] == expected


def test_dictionaries_that_differ_from_chunk_to_chunk_are_joined_by_value() -> None:
    small = pa.dictionary(pa.int8(), pa.string())
    texts = [[f"{part}-{i}" for i in range(100)] for part in range(3)]
    chunks = [pa.array(part).dictionary_encode().cast(small) for part in texts]
    log = ClickLog.from_table(pa.table({"id": pa.chunked_array(chunks)}))
    (batch,) = log.records(log.units(0)[0], [ColumnSpec("id")], 300)
    assert batch.column("id").to_pylist() == [text for part in texts for text in part]


def test_the_same_value_has_one_key_in_every_format(tmp_path: Path) -> None:
    ids = [5, None, 2**53 + 1, -1]
    table = pa.table({"id": pa.array(ids)})
    pq.write_table(table, tmp_path / "log.parquet")
    with pa.OSFile(str(tmp_path / "log.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write(table)
    (tmp_path / "log.csv").write_text("id,x\n5,\n,\n9007199254740993,\n-1,\n")
    (tmp_path / "log.jsonl").write_text(
        '{"id": 5}\n{"id": null}\n{"id": "9007199254740993"}\n{"id": -1}\n'.replace(
            '"9007199254740993"', "9007199254740993"
        )
    )
    features = es.FeatureMap([es.Categorical("id")])
    expected = [[features.key("id", value)] for value in ids]
    for name in ("log.parquet", "log.arrow", "log.csv", "log.jsonl"):
        assert keys(ClickLog(tmp_path / name), features) == expected
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    for frame in (pandas.DataFrame({"id": pandas.array(ids, "Int64")}), polars.DataFrame({"id": ids}), {"id": ids}):
        assert keys(ClickLog.from_table(frame), features) == expected
    assert keys(ClickLog.from_batches(table.to_batches), features) == expected


def test_text_with_few_values_is_decoded_as_a_dictionary_for_batches_and_as_text_for_records(tmp_path: Path) -> None:
    few = [f"text {i % 50}" if i % 7 else None for i in range(5_000)]
    many = [f"text {i * 7919}" for i in range(5_000)]
    path = write(tmp_path / "log.parquet", few=pa.array(few), many=pa.array(many), number=pa.array(range(5_000)))
    specs = (ColumnSpec("few", pa.string()), ColumnSpec("many", pa.string()), ColumnSpec("number", pa.int64()))

    class Types:
        columns = specs

        def encode(self, records: pa.RecordBatch, id: es.BatchId | None = None) -> list[pa.DataType]:
            return records.schema.types

    log = ClickLog(path, run=0)
    as_text = [pa.string(), pa.string(), pa.int64()]
    assert next(iter(log.batches(Types(), 100))) == [pa.dictionary(pa.int32(), pa.string()), *as_text[1:]]
    assert next(log.records(log.units(0)[0], specs, 100)).schema.types == as_text
    by_few = ClickLog(path, stages=[es_split("few")], run=0)
    assert next(iter(by_few.batches(Types(), 100))) == as_text  # a stage sees the form it declares
    features = es.FeatureMap([es.Categorical("few", id="text"), es.Categorical("many", id="text")])
    plain = features.encode(pa.record_batch({"few": pa.array(few), "many": pa.array(many)}))
    for shuffle in (False, True):
        for name in ("few", "many"):
            rows = [
                int(key)
                for batch in log.batches(features, 128, shuffle=shuffle, epoch=0)
                for key in batch.keys_of(name)
            ]
            expected = plain.keys_of(name).tolist()
            assert rows == expected if not shuffle else sorted(rows) == sorted(expected)


def es_split(column: str) -> RandomPart:
    return RandomPart("train", 0.0, by=ColumnSpec(column, pa.string()))


@pytest.mark.parametrize("shuffle", [False, True])
def test_views_give_the_keys_of_plain_columns(tmp_path: Path, shuffle: bool) -> None:
    """Polars and DuckDB write text as views; Arrow's take has none for them."""
    texts, tags = ["a", "größe", None, "x" * 40], [["a"], [], ["b", "x" * 40], ["c"]]
    plain = pa.table({"id": pa.array(texts), "tags": pa.array(tags)})
    views = pa.table({"id": pa.array(texts, pa.string_view()), "tags": pa.array(tags, pa.list_(pa.string_view()))})
    features = es.FeatureMap([es.Categorical("id", id="text"), es.Categorical("tags", id="text")])
    with pa.ipc.new_file(tmp_path / "views.arrow", views.schema) as writer:
        writer.write_table(views)
    logs = [ClickLog.from_table(plain), ClickLog.from_table(views), ClickLog(tmp_path / "views.arrow")]
    found = [next(iter(log.batches(features, 4, epoch=0, shuffle=shuffle))) for log in logs]
    assert found[0].keys.tolist() == found[1].keys.tolist() == found[2].keys.tolist()
    assert len(found[0].keys) > 7


def test_columns_without_views_are_left_as_they_are() -> None:
    schema = pa.schema(
        [
            pa.field(
                "tags", pa.list_(pa.field("item", pa.int64(), nullable=False)), nullable=False, metadata={"a": "b"}
            ),
            pa.field("word", pa.dictionary(pa.int32(), pa.string())),
        ]
    )
    table = pa.table({"tags": [[1], [2]], "word": ["a", "b"]}).cast(schema)
    (batch,) = ClickLog.from_table(table).records(
        ClickLog.from_table(table).units(0)[0], [ColumnSpec("tags"), ColumnSpec("word")], 10
    )
    assert batch.schema.equals(schema, check_metadata=True)


def test_a_list_view_gives_the_keys_of_a_list() -> None:
    features = es.FeatureMap([es.Sequence("tags", id="int64")])
    found = []
    for kind in (pa.list_(pa.int64()), pa.list_view(pa.int64()), pa.large_list_view(pa.int64())):
        log = ClickLog.from_table(pa.table({"tags": pa.array([[1, 2], [], None, [3]], kind)}))
        found.append(next(iter(log.batches(features, 4, epoch=0))).keys.tolist())
    assert len(found[0]) == 3
    assert found[0] == found[1] == found[2]
