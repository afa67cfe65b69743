"""libsvm and feasign:slot lines."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from embershard.datasets import ClickLog, ColumnSpec, DataFileError

NAMES = ("label", "qid", "indices", "values")
SLOTS = Path(__file__).parents[2].parent / "shared" / "data" / "slot-feasign-uint64" / "demo_10.txt"


def read(path: Path, *names: str, format: str | None = None) -> dict[str, list[object]]:
    log = ClickLog(path, format=format, run=0)
    columns = [ColumnSpec(name, required=False) for name in names]
    batches = [batch for unit in log.units(0) for batch in log.records(unit, columns, 1_000)]
    return pa.Table.from_batches(batches).to_pydict()


def log(tmp_path: Path, text: str, name: str = "log.libsvm") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_libsvm_lines_become_label_indices_and_values(tmp_path: Path) -> None:
    text = "1 3:0.5 7:1\n-1\t9007199254740993:2.5  8:-1e-3 \n\n0\n+1 1:1 # note 5:5\n"
    assert read(log(tmp_path, text), *NAMES) == {
        "label": [1.0, -1.0, 0.0, 1.0],
        "qid": [None] * 4,
        "indices": [[3, 7], [9007199254740993, 8], [], [1]],
        "values": [[0.5, 1.0], [2.5, pytest.approx(-1e-3)], [], [1.0]],
    }


def test_libsvm_query_ids_are_a_column_of_their_own(tmp_path: Path) -> None:
    columns = read(log(tmp_path, "1 qid:7 3:0.5\n0 4:1\n0 qid:8\n"), *NAMES)
    assert columns["qid"] == [7, None, 8]
    assert columns["indices"] == [[3], [4], []]
    assert columns["values"] == [[0.5], [1.0], []]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 3:1\nx 3:1\n", r"expected a number, got 'x'.*row 2, column 'label'"),
        ("1 3:1\n1 3:1 b:2\n", r"expected int64 on the left of ':', got 'b'.*row 2"),
        ("1 3:1\n\n1 3:1 4:y\n", r"expected float on the right of ':', got 'y'.*row 2"),
        ("1 3:1\n1 3:1\n1 3\n", r"expected tokens of the form a:b.*row 3"),
        ("1 3:1\n# only a note\n1 3:1\n", "expected a label on each line"),
    ],
)
def test_a_bad_libsvm_token_is_an_error_with_its_row(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataFileError, match=message):
        read(log(tmp_path, text), *NAMES)


def test_slots_become_lists_of_unsigned_ids(tmp_path: Path) -> None:
    text = "1:1 18446744073709551615:3 5:29 6:29\n0:1 7:29 9223372036854775813:3 8:3\n"
    columns = read(log(tmp_path, text, "log.txt"), "label", "3", "29", "102", format="feasign_slot")
    assert columns == {
        "label": [1.0, 0.0],
        "3": [[2**64 - 1], [2**63 + 5, 8]],
        "29": [[5, 6], [7]],
        "102": [[], []],
    }


def test_a_line_without_label_or_with_a_bad_feasign_is_an_error_with_its_row(tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match=r"slot '1'.*row 2, column 'label'"):
        read(log(tmp_path, "1:1 2:3\n2:3\n", "log.txt"), "label", format="feasign_slot")
    with pytest.raises(DataFileError, match=r"expected uint64 .*got '18446744073709551616'.*row 2"):
        read(log(tmp_path, "1:1 2:3\n0:1 18446744073709551616:3\n", "log.txt"), "3", format="feasign_slot")


@pytest.mark.skipif(not SLOTS.exists(), reason="needs ../shared/data")
def test_a_real_slot_log_agrees_with_splitting_each_line() -> None:
    lines = [[token.split(":") for token in line.split()] for line in SLOTS.read_text().splitlines() if line.strip()]
    slots = sorted({slot for line in lines for _, slot in line})
    columns = read(SLOTS, *slots, format="feasign_slot")
    for slot in slots:
        assert columns[slot] == [[int(sign) for sign, other in line if other == slot] for line in lines]
