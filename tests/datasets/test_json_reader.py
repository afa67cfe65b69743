"""JSON lines: declared types, exact ids, errors that name the object."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from embershard.datasets import ClickLog, ColumnSpec, DataFileError, MissingColumnError

INT = ColumnSpec("id", pa.int64())


def read(tmp_path: Path, text: str, *columns: ColumnSpec) -> dict[str, list[object]]:
    path = tmp_path / "log.jsonl"
    path.write_text(text, encoding="utf-8")
    log = ClickLog(path, run=0)
    batches = [batch for unit in log.units(0) for batch in log.records(unit, columns, 1_000)]
    return pa.Table.from_batches(batches).to_pydict()


def test_b08_b09_ids_of_any_size_beside_nulls_and_absent_fields_are_exact(tmp_path: Path) -> None:
    text = '{"id": 9007199254740993}\n{"id": null}\n{}\n{"id": -1}\n{"id": 9223372036854775807}\n'
    assert read(tmp_path, text, INT)["id"] == [9007199254740993, None, None, -1, 2**63 - 1]
    unsigned = ColumnSpec("id", pa.uint64())
    assert read(tmp_path, '{"id": 18446744073709551615}\n', unsigned)["id"] == [2**64 - 1]


def test_a_whole_number_written_as_a_string_is_the_number_where_one_is_declared(tmp_path: Path) -> None:
    assert read(tmp_path, '{"id": "9007199254740993"}\n{"id": "5"}\n', INT)["id"] == [9007199254740993, 5]
    with pytest.raises(DataFileError, match=r"expected int64, got 'x'.*row 2, column 'id'"):
        read(tmp_path, '{"id": "5"}\n{"id": "x"}\n', INT)


def test_a_number_where_text_is_declared_keeps_its_own_type_for_the_feature_map_to_judge(tmp_path: Path) -> None:
    assert read(tmp_path, '{"id": 5}\n', ColumnSpec("id", pa.string()))["id"] == [5]


def test_a_fraction_in_an_integer_column_is_an_error_with_its_row(tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match=r"expected int64, got 1\.5.*row 3, column 'id'"):
        read(tmp_path, '{"id": 1}\n\n{"id": 2, "x": 1.5}\n{"x": 7, "id": 1.5}\n', INT)


def test_lists_and_texts_with_escapes_and_line_ends(tmp_path: Path) -> None:
    text = '{"id": [1, 2], "t": "a\\nb"}\r\n{"id": [], "t": "ü"}\n{"id": null}'
    columns = (ColumnSpec("id", pa.list_(pa.int64())), ColumnSpec("t", pa.string()))
    assert read(tmp_path, text, *columns) == {"id": [[1, 2], [], None], "t": ["a\nb", "ü", None]}


def test_a_column_without_a_declared_type_takes_the_files_own(tmp_path: Path) -> None:
    assert read(tmp_path, '{"id": 1, "x": "a"}\n{"id": 2}\n', INT, ColumnSpec("x"))["x"] == ["a", None]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"id": 1}\n{"id": \n', "expected one JSON object a line.*row 2"),
        ('{"id": 1}\n{"id": 2} {"id": 3}\n', "expected 2 objects, one a line"),
        ('{"id": 1}\n{"id": [1]}\n', "got an array.*row 2, column 'id'"),
        ('{"id": 1}\n{"id": 1, "id": 2}\n', "expected one JSON object a line.*row 2"),
    ],
)
def test_what_is_no_object_a_line_is_an_error_with_its_row(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataFileError, match=message):
        read(tmp_path, text, INT)


def test_numbers_written_as_strings_and_true_or_false_are_numbers_where_one_is_declared(tmp_path: Path) -> None:
    number = ColumnSpec("id", pa.float64())
    assert read(tmp_path, '{"id": "1.5"}\n{"id": "2"}\n{"id": null}\n', number)["id"] == [1.5, 2.0, None]
    with pytest.raises(DataFileError, match=r"expected double, got 'x'.*row 2, column 'id'"):
        read(tmp_path, '{"id": "1.5"}\n{"id": "x"}\n', number)
    assert read(tmp_path, '{"id": true}\n{"id": false}\n', number)["id"] == [True, False]


def test_texts_beside_numbers_name_the_type_that_was_declared(tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match=r"expected string, got a number.*row 2, column 'id'"):
        read(tmp_path, '{"id": "5"}\n{"id": 6}\n', ColumnSpec("id", pa.string()))


def test_a_required_column_that_no_object_has_is_an_error_and_one_that_is_not_required_is_null(tmp_path: Path) -> None:
    text = '{"id": 1, "ü": 2}\n{"id": 3, "ü": 4}\n'
    with pytest.raises(MissingColumnError, match=r"expected column 'idd', got fields \['id', 'ü'\].*log.jsonl"):
        read(tmp_path, text, ColumnSpec("idd", pa.int64()))
    assert read(tmp_path, text, ColumnSpec("idd", pa.int64(), required=False), ColumnSpec("ü", pa.int64())) == {
        "idd": [None, None],
        "ü": [2, 4],
    }
    assert read(tmp_path, '{"id": 1, "\\u00fc": 2}\n', ColumnSpec("ü", pa.int64()))["ü"] == [2]
    assert read(tmp_path, '{}\n{"id": 1}\n', INT)["id"] == [None, 1]  # in a later object is soon enough
