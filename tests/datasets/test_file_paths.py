"""Paths, globs and directories to files."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from embershard.datasets import ClickLog, ClickLogError, ColumnSpec, DataFileError, EmptyClickLogError
from embershard.datasets.file_paths import find_files


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (
        "day=2024-01-02/b.parquet",
        "day=2024-01-01/a.parquet",
        "day=2024-01-01/hour=7/c.parquet",
        "day=__HIVE_DEFAULT_PARTITION__/d.parquet",
        "day=a%2Fb/e.parquet",
        "_temporary/x.parquet",
        "_SUCCESS",
        ".hidden.parquet",
        "notes.md",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": [ord(path.stem[-1])]}), path)
    return tmp_path


def names(root: Path, paths: object) -> list[str]:
    return [str(Path(file.path).relative_to(root)) for file in find_files(paths)]  # type: ignore[arg-type]


def test_a_directory_gives_its_data_files_by_name_without_hidden_ones(tree: Path) -> None:
    assert names(tree, tree) == [
        "day=2024-01-01/a.parquet",
        "day=2024-01-01/hour=7/c.parquet",
        "day=2024-01-02/b.parquet",
        "day=__HIVE_DEFAULT_PARTITION__/d.parquet",
        "day=a%2Fb/e.parquet",
    ]


def test_globs_are_sorted_and_kept_in_the_order_given(tree: Path) -> None:
    assert names(tree, [tree / "day=2024-01-02" / "*.parquet", tree / "day=2024-01-01" / "*"]) == [
        "day=2024-01-02/b.parquet",
        "day=2024-01-01/a.parquet",
    ]
    assert len(names(tree, str(tree / "**" / "c.parquet"))) == 1


@pytest.mark.parametrize("pattern", ["*.parquet", "day=*/*.parquet", "**/*.parquet", "day=2024-01-0[12]/?.parquet"])
def test_globs_on_another_filesystem_match_what_they_match_locally(tree: Path, pattern: str) -> None:
    local = {str(Path(file.path).relative_to(tree)) for file in found(str(tree / pattern), None)}
    other = {file.path for file in found(pattern, fs.SubTreeFileSystem(str(tree), fs.LocalFileSystem()))}
    assert local == other


def found(pattern: str, filesystem: fs.FileSystem | None) -> list[object]:
    try:
        return list(find_files(pattern, filesystem))
    except EmptyClickLogError:
        return []


def test_folders_named_key_value_are_columns(tree: Path) -> None:
    log = ClickLog(tree, run=0)
    columns = [
        ColumnSpec("id", pa.int64()),
        ColumnSpec("day", pa.string()),
        ColumnSpec("hour", pa.int64(), required=False),
    ]
    rows = [row for unit in log.units(0) for batch in log.records(unit, columns, 10) for row in batch.to_pylist()]
    assert [(chr(row["id"]), row["day"], row["hour"]) for row in rows] == [
        ("a", "2024-01-01", None),
        ("c", "2024-01-01", 7),
        ("b", "2024-01-02", None),
        ("d", None, None),
        ("e", "a/b", None),
    ]
    with pytest.raises(DataFileError, match=r"expected int64 in the folder's name, got '2024-01-01'.*column 'day'"):
        list(log.records(log.units(0)[0], [ColumnSpec("day", pa.int64())], 10))


def test_a_uri_names_its_filesystem(tree: Path) -> None:
    (file,) = find_files(f"file://{tree}/day=2024-01-02/b.parquet")
    assert ClickLog(file.path).rows() == 1
    assert len(find_files(f"file://{tree}/day=2024-01-01/*.parquet")) == 1


def test_a_path_listed_twice_is_read_twice_but_overlapping_globs_are_an_error(tree: Path) -> None:
    path = tree / "day=2024-01-02" / "b.parquet"
    assert ClickLog([path, path, path]).rows() == 3
    with pytest.raises(ClickLogError, match="expected each file once"):
        find_files([tree / "day=2024-01-02" / "*.parquet", tree / "**" / "b.parquet"])


@pytest.mark.parametrize("paths", [[], "nothing.parquet", "nothing/*.parquet", "empty"])
def test_no_file_is_an_error_at_once(tmp_path: Path, paths: list[str] | str) -> None:
    (tmp_path / "empty").mkdir()
    began = time.perf_counter()
    with pytest.raises(EmptyClickLogError):
        ClickLog(str(tmp_path / paths) if isinstance(paths, str) else paths)
    assert time.perf_counter() - began < 1


def test_files_without_rows_are_an_error_when_units_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("id\n")
    log = ClickLog(tmp_path / "log.csv")
    with pytest.raises(EmptyClickLogError, match="got none in "):
        log.units(0)


def test_a_format_there_is_not_and_a_file_that_tells_none_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "log.bin"
    path.write_bytes(b"what is it")
    with pytest.raises(DataFileError, match="expected a name or content that tells the format"):
        ClickLog(path)
    with pytest.raises(ClickLogError, match="expected a format of parquet, csv"):
        ClickLog(path, format="orc")
    pq.write_table(pa.table({"id": [1]}), path)
    assert ClickLog(path).rows() == 1
