"""Reads one table of an export back as arrays, whatever the file format."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..checkpoint.storage import Directory
from ..errors import CorruptCheckpointError
from .array_readers import read_npy, read_safetensors
from .arrow_reader import read_arrow, read_parquet
from .columns import ColumnSource, ExportColumns
from .manifest import ExportedTable, ExportFormat, ExportOptions
from .schema import export_schema

_READERS: dict[ExportFormat, Callable[[ColumnSource], ExportColumns]] = {
    "arrow": read_arrow,
    "parquet": read_parquet,
    "npy": read_npy,
    "safetensors": read_safetensors,
}


def read_columns(
    directory: Directory, table: ExportedTable, options: ExportOptions, *, check_order: bool = False
) -> ExportColumns:
    """The arrays of `table`. Arrow, safetensors and .npy on a local disk are mapped, Parquet is decoded into memory.

    Types, lengths and nulls are compared with the manifest, which reads no rows; the order of keys where asked for.
    Raises: CorruptCheckpointError naming the file.
    """
    where = f"{[file.path for file in table.files]} of table {table.name!r} in {directory.path}"
    schema = export_schema(table.id, options.vectors, table.dim, clicks=False)
    try:
        columns = _READERS[options.format](ColumnSource(directory, table, schema, where))
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise CorruptCheckpointError(f"expected {options.format} files of an export, got {error}: {where}") from error
    rows = sum(len(chunk.keys) for chunk in columns.chunks)
    if rows != table.rows or len(columns.erased) != table.erased:
        raise CorruptCheckpointError(
            f"expected {table.rows} rows and {table.erased} erased keys, got {rows} and {len(columns.erased)}: {where}"
        )
    if check_order and not (_ascend([chunk.keys for chunk in columns.chunks]) and _ascend([columns.erased])):
        raise CorruptCheckpointError(f"expected keys in ascending order, each once, got others: {where}")
    return columns


def _ascend(runs: list[npt.NDArray[np.uint64]]) -> bool:
    """Whether keys ascend, each once, over runs of at least one key. Cost: reads all keys."""
    within = all(bool((keys[1:] > keys[:-1]).all()) for keys in runs)
    return within and all(before[-1] < after[0] for before, after in pairwise(runs))
