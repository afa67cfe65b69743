"""The reader for a file: by the format asked for, by its name, or by what it begins with."""

from __future__ import annotations

from typing import Literal, get_args

import pyarrow as pa

from .csv_options import CsvOptions
from .csv_reader import CsvReader
from .errors import ClickLogError, DataFileError
from .file_paths import DataFile
from .file_reader import FileReader
from .ipc_reader import ipc_reader
from .json_reader import JsonReader
from .parquet_reader import ParquetReader
from .text_source import open_stream
from .token_reader import LibsvmReader, SlotReader

Format = Literal["parquet", "csv", "ipc", "json", "libsvm", "feasign_slot"]


def open_reader(file: DataFile, format: str | None, csv: CsvOptions | None, piece_rows: int) -> FileReader:
    """A reader of `file`; nothing is read but the first bytes where neither `format` nor the name says the format.

    Raises: ClickLogError for a format there is not; DataFileError where the format cannot be told."""
    kind = format or file.format or _format_by_content(file)
    if kind == "parquet":
        return ParquetReader(file)
    if kind == "csv":
        return CsvReader(file, csv, piece_rows=piece_rows)
    if kind == "ipc":
        return ipc_reader(file)
    if kind == "json":
        return JsonReader(file, piece_rows=piece_rows)
    if kind == "libsvm":
        return LibsvmReader(file, piece_rows=piece_rows)
    if kind == "feasign_slot":
        return SlotReader(file, piece_rows=piece_rows)
    raise ClickLogError(f"expected a format of {', '.join(get_args(Format))}, got {kind!r}")


def _format_by_content(file: DataFile) -> str:
    try:
        with open_stream(file.filesystem, file.path, file.compression) as source:
            magic = source.read(6)
    except (pa.ArrowException, OSError) as error:
        raise DataFileError(f"expected a readable file, got: {error}", path=file.path) from error
    if magic[:4] == b"PAR1":
        return "parquet"
    if magic == b"ARROW1" or magic[:4] == b"\xff\xff\xff\xff":
        return "ipc"
    raise DataFileError(
        f"expected a name or content that tells the format (one of {', '.join(get_args(Format))})", path=file.path
    )
