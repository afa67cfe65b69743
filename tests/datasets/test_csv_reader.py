"""CSV: declared types, nulls, headers, quoting, encodings, and errors that name the cell."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embershard.datasets import ClickLog, ColumnSpec, CsvOptions, DataFileError, MissingColumnError
from embershard.datasets.csv_reader import CsvReader
from embershard.datasets.file_paths import find_files
from embershard.datasets.record_ends import Quoting, record_ends, record_starts

INT = ColumnSpec("id", pa.int64())
TEXT = ColumnSpec("id", pa.string())


def read(path: Path, *columns: ColumnSpec, **options: object) -> dict[str, list[object]]:
    (file,) = find_files(path)
    reader = CsvReader(file, CsvOptions(**options), piece_rows=100)  # type: ignore[arg-type]
    return pa.Table.from_batches(list(reader.read(0, None, columns))).to_pydict()


def log(tmp_path: Path, text: str | bytes, name: str = "log.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


# --- types are declared, never guessed --------------------------------------------------------------------------------


def test_b63_a_late_letter_in_a_column_of_ones_is_text_or_an_error_with_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embershard.datasets.text_file.BLOCK_BYTES", 1 << 10)
    path = log(tmp_path, "id,late\n" + "1,\n" * 20_000 + "A,x\n" + "2,y\n")
    columns = read(path, TEXT, ColumnSpec("late", pa.string()))
    assert columns["id"][-3:] == ["1", "A", "2"]
    assert columns["late"] == [None] * 20_000 + ["x", "y"]
    with pytest.raises(DataFileError, match=r"expected int64, got 'A'.*row 20001, column 'id'") as error:
        read(path, INT)
    assert (error.value.row, error.value.column, error.value.path) == (20_001, "id", str(path))


def test_b63_a_million_rows_are_read_and_the_bad_cell_named_within_seconds(tmp_path: Path) -> None:
    path = log(tmp_path, "id\n" + "1\n" * 1_000_000 + "A\n")
    began = time.perf_counter()
    by_units = ClickLog(path, run=0)
    with pytest.raises(DataFileError, match="row 1000001, column 'id'"):
        list(by_units.records(by_units.units(0)[-1], [INT], 4096))
    assert time.perf_counter() - began < 5


def test_b12_text_keeps_leading_zeros_quoted_or_not_and_numbers_lose_them(tmp_path: Path) -> None:
    path = log(tmp_path, 'id\n00123\n"00123"\n-5\n007\n')
    assert read(path, TEXT)["id"] == ["00123", "00123", "-5", "007"]
    assert read(path, INT)["id"] == [123, 123, -5, 7]


def test_b08_ids_beyond_2_53_stay_exact_beside_nulls(tmp_path: Path) -> None:
    ids = [9007199254740992, 9007199254740993, None, 4873214862074861312, 4873214862074861313, 2**63 - 1, -(2**63)]
    path = log(tmp_path, "id,x\n" + "".join(f"{'' if i is None else i},1\n" for i in ids))
    assert read(path, INT)["id"] == ids


def test_b09_unsigned_ids_up_to_2_64_are_exact_and_one_more_is_an_error(tmp_path: Path) -> None:
    unsigned = ColumnSpec("id", pa.uint64())
    ids = [0, 2**63 - 1, 2**63, 2**63 + 5, 2**64 - 1]
    assert read(log(tmp_path, "id\n" + "\n".join(map(str, ids))), unsigned)["id"] == ids
    for cell, spec in ((2**64, unsigned), (-1, unsigned), (2**63, INT)):
        with pytest.raises(DataFileError, match=f"got '{cell}'.*row 2, column 'id'"):
            read(log(tmp_path, f"id\n1\n{cell}\n"), spec)


def test_an_id_written_as_a_float_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match=r"expected int64, got '5\.0'"):
        read(log(tmp_path, "id\n5\n5.0\n"), INT)


def test_a_column_without_a_declared_type_is_text(tmp_path: Path) -> None:
    assert read(log(tmp_path, "id\n1\n2\n"), ColumnSpec("id"))["id"] == ["1", "2"]


def test_a_list_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match="expected a type a CSV cell can hold, got list"):
        read(log(tmp_path, "id\n1\n"), ColumnSpec("id", pa.list_(pa.int64())))


# --- nulls ------------------------------------------------------------------------------------------------------------


def test_an_unquoted_empty_cell_is_null_and_a_quoted_one_is_text(tmp_path: Path) -> None:
    path = log(tmp_path, 'id,x\n,1\n"",2\nnan,3\nNone,4\nNULL,5\n')
    assert read(path, TEXT)["id"] == [None, "", "nan", "None", "NULL"]
    assert read(path, TEXT, null_values=("", "NULL"))["id"] == [None, "", "nan", "None", None]


def test_a_quoted_empty_cell_of_a_number_column_is_null(tmp_path: Path) -> None:
    path = log(tmp_path, 'id,x\n1,1\n"",2\n3,3\n')
    assert read(path, INT)["id"] == [1, None, 3]
    with pytest.raises(DataFileError, match=r"expected int64, got 'x'.*row 3, column 'id'"):
        read(log(tmp_path, 'id,x\n1,1\n"",2\nx,3\n'), INT)


def test_blanks_around_cells_are_trimmed_where_asked(tmp_path: Path) -> None:
    path = log(tmp_path, "a, 1, ?\nb , ?, x y \n")
    columns = [ColumnSpec("t", pa.string()), ColumnSpec("n", pa.int64()), ColumnSpec("u", pa.string())]
    options = {"column_names": ("t", "n", "u"), "null_values": ("", "?"), "trim": True}
    assert read(path, *columns, **options) == {"t": ["a", "b"], "n": [1, None], "u": [None, "x y"]}


# --- headers, marks, line ends, quotes --------------------------------------------------------------------------------


def test_b64_a_mark_quoted_header_crlf_and_no_last_line_end_read_like_the_clean_file(tmp_path: Path) -> None:
    columns = (ColumnSpec("größe", pa.int64()), ColumnSpec("id", pa.string()))
    clean = read(log(tmp_path, "größe,id\n1,a\n2,b\n", "clean.csv"), *columns)
    exported = '\ufeff"größe","id"\r\n1,a\r\n2,b'
    assert read(log(tmp_path, exported), *columns) == clean == {"größe": [1, 2], "id": ["a", "b"]}
    by_log = ClickLog(tmp_path / "log.csv", run=0)
    assert by_log.column_names() == ("größe", "id")
    (batch,) = by_log.records(by_log.units(0)[0], columns, 10)
    assert batch.to_pydict() == clean


def test_b64_a_mark_before_data_without_header_is_no_part_of_the_first_cell(tmp_path: Path) -> None:
    assert read(log(tmp_path, "\ufeff1,a\n2,b\n"), INT, column_names=("id", "x"))["id"] == [1, 2]


def test_utf_16_without_saying_so_is_an_error_that_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match="encoding: utf-16"):
        read(log(tmp_path, "id\n1\n".encode("utf-16")), INT)


def test_latin_1_read_as_utf_8_names_row_and_column(tmp_path: Path) -> None:
    path = log(tmp_path, "x,id\n1,a\n2,Ã\n3,caf\xe9\n".encode("latin-1"))
    assert read(path, TEXT, encoding="latin-1")["id"] == ["a", "Ã", "café"]
    with pytest.raises(DataFileError, match=r"latin-1.*row 2, column 'id'"):
        read(path, TEXT)


def test_quotes_hide_delimiters_and_line_breaks_and_stray_ones_do_not(tmp_path: Path) -> None:
    path = log(tmp_path, 'x,id\n1,"a,\nb"\n2,5" tall\n3,"say ""x"""\n4,"\n\n"\n5,end\n')
    assert read(path, TEXT)["id"] == ["a,\nb", '5" tall', 'say "x"', "\n\n", "end"]


def test_a_quote_that_never_closes_is_an_error_with_the_row_it_opens_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embershard.datasets.text_file.MAX_RECORD_BYTES", 10_000)
    monkeypatch.setattr("embershard.datasets.text_file.BLOCK_BYTES", 1_000)
    path = log(tmp_path, "x,id\n" + "1,a\n" * 500 + '2,"open\n' + "3,b\n" * 10_000)
    with pytest.raises(DataFileError, match=r"line break outside quotes.*row 501"):
        read(path, TEXT)
    assert len(read(path, TEXT, quote=None)["id"]) == 10_501


def test_blank_lines_are_no_rows(tmp_path: Path) -> None:
    path = log(tmp_path, "\n\nx,id\n\n1,2\n\r\n\n3,4\n\n")
    assert read(path, INT)["id"] == [2, 4]
    assert ClickLog(path).rows() == 2


def test_header_rules(tmp_path: Path) -> None:
    names = ("x", "id")
    assert read(log(tmp_path, "7,8\n9,10\n"), INT, column_names=names)["id"] == [8, 10]
    assert read(log(tmp_path, "x,id\n9,10\n"), INT, column_names=names)["id"] == [10]
    assert read(log(tmp_path, "id,x\n9,10\n"), INT, column_names=names)["id"] == [9]
    assert read(log(tmp_path, "a,b\n9,10\n"), INT, column_names=names, header=True)["id"] == [10]
    assert read(log(tmp_path, "7,8\n"), ColumnSpec("f1", pa.int64()), header=False)["f1"] == [8]


def test_lines_before_the_data_are_passed_over(tmp_path: Path) -> None:
    arff = "% x\n@relation 'r'\n\n@attribute id numeric\n\n@DATA\n1,?\n2,b\n"
    columns = (INT, ColumnSpec("t", pa.string()))
    options = {"skip_to": "@data", "column_names": ("id", "t"), "null_values": ("?",)}
    assert read(log(tmp_path, arff), *columns, **options) == {"id": [1, 2], "t": [None, "b"]}
    assert read(log(tmp_path, "# a\n# b\nid\n4\n"), INT, skip_lines=2)["id"] == [4]
    assert read(log(tmp_path, "|note\nid\n4\n"), INT, comment="|")["id"] == [4]
    with pytest.raises(DataFileError, match="expected a line '@data'"):
        read(log(tmp_path, "id\n4\n"), INT, skip_to="@data")


def test_delimiters_of_several_characters_and_tabs_by_name(tmp_path: Path) -> None:
    assert read(log(tmp_path, "1::a:b\n2::c\n"), TEXT, delimiter="::", column_names=("x", "id"))["id"] == ["a:b", "c"]
    assert read(log(tmp_path, "x\tid\n1\ta,b\n", "log.tsv"), TEXT)["id"] == ["a,b"]


def test_a_short_or_long_row_is_an_error_with_its_number(tmp_path: Path) -> None:
    for line in ("1", "1,2,3"):
        with pytest.raises(DataFileError, match=r"expected 2 columns, got .*row 3"):
            read(log(tmp_path, f"x,id\n1,2\n1,2\n{line}\n1,2\n"), INT)


def test_an_empty_file_and_a_column_given_twice_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match="expected a header line"):
        read(log(tmp_path, ""), INT)
    with pytest.raises(MissingColumnError, match="expected one column 'id', got several"):
        read(log(tmp_path, "id,id\n1,2\n"), INT)
    assert read(log(tmp_path, "id,id,x\n1,2,3\n"), ColumnSpec("x", pa.int64()))["x"] == [3]


# --- cutting at record ends, against a parser that goes byte by byte --------------------------------------------------


def ends_by_state(text: bytes) -> list[int]:
    """Ends of the records of RFC 4180 text, by its state machine."""
    ends, inside, at_field_start, position = [], False, True, 0
    while position < len(text):
        byte = text[position : position + 1]
        if inside:
            if byte == b'"':
                if text[position + 1 : position + 2] == b'"':
                    position += 1
                else:
                    inside = False
            at_field_start = False
        elif byte == b'"' and at_field_start:
            inside, at_field_start = True, False
        elif byte == b"\n" or (byte == b"\r" and text[position + 1 : position + 2] not in (b"\n", b"")):
            ends.append(position)
            at_field_start = True
        else:
            at_field_start = byte == b","
        position += 1
    return ends


@settings(max_examples=1_000, deadline=None)
@given(st.lists(st.sampled_from([b"a", b",", b'"', b'""', b"\n", b"\r\n", b"\r", b' "', b'5"']), max_size=30))
def test_records_end_where_a_byte_by_byte_parser_says(parts: list[bytes]) -> None:
    text = b"".join(parts)
    quoting = Quoting(b",", b'"')
    assert record_ends(text, quoting, is_last=False).tolist() == ends_by_state(text)
    starts = record_starts(text, record_ends(text, quoting, is_last=True))
    assert all(text[start : start + 1] not in (b"\n", b"") for start in starts)


@pytest.mark.parametrize("rows", [1, 5_000])
@pytest.mark.parametrize("tail", ['"b,c\n1,d\n1,e\n', '"', '"x""', '"x\n\n\n'])
def test_a_quote_that_is_never_closed_is_an_error_with_its_row_not_one_huge_cell(
    tmp_path: Path, rows: int, tail: str
) -> None:
    path = log(tmp_path, "n,id\n\n" + '1,"a ""b"""\n' * rows + "2," + tail)
    with pytest.raises(DataFileError, match=rf"expected a closing quote.*row {rows + 1}\)"):
        read(path, TEXT)
    with pytest.raises(DataFileError, match="expected a closing quote"):
        ClickLog(path).units(0)


@pytest.mark.parametrize("tail", ['"b"', '""', '"b""c"', 'b"c', '"b"c"', "'b"])
def test_a_last_cell_with_other_quotes_is_read(tmp_path: Path, tail: str) -> None:
    assert len(read(log(tmp_path, f"n,id\n1,a\n2,{tail}"), TEXT)["id"]) == 2
    escaped = read(log(tmp_path, 'n,id\n1,"a\\"b"'), TEXT, escape="\\")
    assert escaped["id"] == ['a"b']
