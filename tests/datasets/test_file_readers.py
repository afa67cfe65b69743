"""The reader contract, on every format: any slice of a file is that slice of its rows."""

from __future__ import annotations

import gzip
import json
import pickle
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pyarrow import fs

from embershard.datasets import ColumnSpec, DataFileError
from embershard.datasets.csv_options import CsvOptions
from embershard.datasets.file_paths import find_files
from embershard.datasets.file_reader import FileReader
from embershard.datasets.open_reader import open_reader
from embershard.datasets.table_reader import StreamReader, TableReader

ROWS = 1_000
SPECS = (ColumnSpec("id", pa.int64()), ColumnSpec("text", pa.string()), ColumnSpec("number", pa.float64()))


def rows_of_the_log() -> pa.Table:
    """Ids around 2^53 and at the ends of int64, texts that need quoting, nulls in all columns."""
    draw = random.Random(4)
    ids = [draw.choice([2**53 + 1, -1, 2**63 - 1, -(2**63), draw.randrange(10**6)]) for _ in range(ROWS)]
    texts = [draw.choice(["plain", "a,b", 'say "x"', "two\nlines", "\r\n", "", "ü", "nan", "  "]) for _ in range(ROWS)]
    numbers = [draw.random() for _ in range(ROWS)]
    cells = [[None if draw.random() < 0.1 else cell for cell in column] for column in (ids, texts, numbers)]
    return pa.table(
        dict(zip(("id", "text", "number"), cells, strict=True)),
        schema=pa.schema([("id", pa.int64()), ("text", pa.string()), ("number", pa.float64())]),
    )


TABLE = rows_of_the_log()


def csv_text(end: str = "\n") -> str:
    def cell(value: object) -> str:
        if isinstance(value, str):
            return '"' + value.replace('"', '""') + '"'
        return "" if value is None else repr(value)

    lines = ["id,text,number", *(",".join(map(cell, row.values())) for row in TABLE.to_pylist())]
    return end.join(lines) + end


def json_text() -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in TABLE.to_pylist())


def write_parquet(folder: Path) -> Path:
    path = folder / "log.parquet"
    pq.write_table(TABLE, path, row_group_size=300)
    return path


def write_ipc(folder: Path, *, stream: bool = False, compression: str | None = None) -> Path:
    path = folder / "log.arrow"
    options = pa.ipc.IpcWriteOptions(compression=compression)
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as sink, new(sink, TABLE.schema, options=options) as writer:
        writer.write_table(TABLE, max_chunksize=170)
    return path


def write_bytes(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


FORMATS: dict[str, Callable[[Path], FileReader]] = {
    "parquet": lambda folder: opened(write_parquet(folder)),
    "ipc file": lambda folder: opened(write_ipc(folder)),
    "ipc file lz4": lambda folder: opened(write_ipc(folder, compression="lz4")),
    "ipc stream": lambda folder: opened(write_ipc(folder, stream=True)),
    "csv": lambda folder: opened(write_bytes(folder, "log.csv", csv_text().encode())),
    "csv crlf with mark": lambda folder: opened(
        write_bytes(folder, "log.csv", b"\xef\xbb\xbf" + csv_text("\r\n").removesuffix("\r\n").encode())
    ),
    "csv latin-1": lambda folder: opened(
        write_bytes(folder, "log.csv", csv_text().encode("latin-1")), CsvOptions(encoding="latin-1")
    ),
    "csv utf-16": lambda folder: opened(
        write_bytes(folder, "log.csv", csv_text().encode("utf-16")), CsvOptions(encoding="utf-16")
    ),
    "csv gz": lambda folder: opened(write_bytes(folder, "log.csv.gz", gzip.compress(csv_text().encode()))),
    "csv zst": lambda folder: opened(
        write_bytes(folder, "log.csv.zst", zstandard.ZstdCompressor().compress(csv_text().encode()))
    ),
    "json lines": lambda folder: opened(write_bytes(folder, "log.jsonl", json_text().encode())),
    "json lines gz": lambda folder: opened(write_bytes(folder, "log.jsonl.gz", gzip.compress(json_text().encode()))),
    "table": lambda _: TableReader(pa.concat_tables([TABLE.slice(0, 400), TABLE.slice(400)]), piece_rows=64),
    "stream": lambda _: StreamReader(lambda: iter(TABLE.to_batches(max_chunksize=90))),
}


def opened(path: Path, csv: CsvOptions | None = None) -> FileReader:
    (file,) = find_files(path)
    return open_reader(file, None, csv, 64)


@pytest.fixture(params=FORMATS)
def reader(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileReader:
    # Blocks far smaller than the file: records, quoted line breaks and CRLFs straddle their edges.
    monkeypatch.setattr("embershard.datasets.text_file.BLOCK_BYTES", 1_009)
    return FORMATS[request.param](tmp_path)


def test_any_slice_of_any_columns_is_that_slice_of_the_rows(reader: FileReader) -> None:
    draw = random.Random(1)
    slices = [(0, None), (0, ROWS), (ROWS - 1, None), (64, 128), (63, 65)]
    slices += [tuple(sorted((draw.randrange(ROWS), draw.randrange(ROWS)))) for _ in range(8)]
    for start, stop in slices:
        columns = draw.sample(SPECS, draw.randint(1, 3))
        chunks = list(reader.read(start, stop, columns))
        expected = TABLE.slice(start, None if stop is None else stop - start)
        assert sum(chunk.num_rows for chunk in chunks) == expected.num_rows
        for spec in columns:
            got = [cell for chunk in chunks for cell in chunk.column(spec.name).to_pylist()]
            assert got == expected.column(spec.name).to_pylist()
            assert all(chunk.column(spec.name).type == spec.type for chunk in chunks)


def test_pieces_are_all_rows_or_unknown(reader: FileReader) -> None:
    pieces = reader.pieces()
    assert pieces is None or sum(pieces) == ROWS


def test_slices_read_one_after_another_and_interleaved_are_the_same(reader: FileReader) -> None:
    first = [chunk for start in range(0, ROWS, 100) for chunk in reader.read(start, start + 100, SPECS)]
    a, b = reader.read(0, 500, SPECS), reader.read(0, 500, SPECS)
    mixed_a, mixed_b = [], []
    for chunk in a:
        mixed_a.append(chunk)
        mixed_b += [other for other in [next(b, None)] if other is not None]
    mixed_b += b
    assert pa.Table.from_batches(first).equals(TABLE)
    assert pa.Table.from_batches(mixed_a).equals(TABLE.slice(0, 500))
    assert pa.Table.from_batches(mixed_b).equals(TABLE.slice(0, 500))


def test_a_column_the_file_lacks_is_left_out_or_null(reader: FileReader) -> None:
    columns = [ColumnSpec("id", pa.int64()), ColumnSpec("absent", pa.string(), required=False)]
    (chunk, *_) = reader.read(0, 10, columns)
    if "absent" in chunk.schema.names:
        assert chunk.column("absent").null_count == chunk.num_rows
    assert chunk.column("id").to_pylist() == TABLE.column("id").to_pylist()[: chunk.num_rows]


def test_a_pickled_reader_reads_on(reader: FileReader) -> None:
    if isinstance(reader, StreamReader):
        pytest.skip("a stream's source is the caller's own function")
    next(iter(reader.read(10, 500, SPECS)))
    copy = pickle.loads(pickle.dumps(reader))
    assert pa.Table.from_batches(list(copy.read(700, 800, SPECS))).equals(TABLE.slice(700, 100))


@pytest.mark.parametrize("name", ["log.parquet", "log.arrow", "log.csv.gz"])
@pytest.mark.parametrize("content", [b"", b"PAR1 no parquet PAR1", b"ARROW1 no arrow", b"\x1f\x8b no gzip"])
def test_a_file_that_is_not_what_its_name_says_is_an_error_that_names_it(
    tmp_path: Path, name: str, content: bytes
) -> None:
    path = write_bytes(tmp_path, name, content)
    with pytest.raises(DataFileError, match="log"):
        list(opened(path).read(0, None, SPECS))


@pytest.mark.parametrize("name", ["parquet", "ipc file", "ipc stream", "csv gz"])
def test_a_file_cut_off_in_the_middle_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    path = Path(FORMATS[name](tmp_path).path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataFileError, match=path.name):
        list(opened(path).read(0, None, SPECS))


def test_a_flipped_page_of_a_parquet_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = write_parquet(tmp_path)
    content = bytearray(path.read_bytes())
    content[4:2_000] = bytes(1_996)
    path.write_bytes(content)
    with pytest.raises(DataFileError, match=r"log\.parquet"):
        list(opened(path).read(0, None, SPECS))


def test_other_filesystems_are_read_like_the_local_one(tmp_path: Path) -> None:
    write_parquet(tmp_path)
    source = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    for pattern in ("log.parquet", "*.parquet", ""):
        (file,) = find_files(pattern or "/", source)
        reader = open_reader(file, None, None, 64)
        assert pa.Table.from_batches(list(reader.read(0, None, SPECS))).equals(TABLE)


def test_a_row_group_is_decoded_once_by_slices_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"id": np.arange(100_000)}), path, row_group_size=100_000)
    decoded = []
    whole = pq.ParquetFile.iter_batches

    def counted(self: pq.ParquetFile, *arguments: object, **options: object) -> object:
        for batch in whole(self, *arguments, **options):
            decoded.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    reader = opened(path)
    for start in range(0, 100_000, 10_000):
        list(reader.read(start, start + 10_000, [SPECS[0]]))
    assert sum(decoded) == 100_000
