"""Reads one exported table back as arrays: mapped where the format allows, whatever the format."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, NonNegativeInt, TypeAdapter

from ..checkpoint.storage import Directory
from ..errors import CorruptCheckpointError
from .manifest import ExportedTable, ExportFormat, ExportOptions
from .schema import export_schema

_SAFETENSORS_DTYPES = {
    "U64": np.uint64,
    "I64": np.int64,
    "U32": np.uint32,
    "F32": np.float32,
    "F16": np.float16,
    "I8": np.int8,
    "U8": np.uint8,
}


class _Tensor(BaseModel):
    """Where a tensor lies in a safetensors file: its bytes from the end of the header on."""

    dtype: str
    shape: tuple[NonNegativeInt, ...]
    data_offsets: tuple[NonNegativeInt, NonNegativeInt]


_SafetensorsHeader: TypeAdapter[dict[str, _Tensor | dict[str, str]]] = TypeAdapter(dict[str, _Tensor | dict[str, str]])


@dataclass(frozen=True)
class ExportChunk:
    """A run of exported rows: keys (n,) ascending, counts (n,), vectors (n, D), scales (n,) or None.

    ids: reads the (n,) raw ids, null for the missing key; None where there are none. Raises: CorruptCheckpointError.
    """

    keys: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.uint32]
    vectors: npt.NDArray[Any]
    scales: npt.NDArray[np.float32] | None
    ids: Callable[[], pa.Array] | None


@dataclass(frozen=True)
class ExportColumns:
    """One exported table: chunks in ascending key order, and the erased keys (ascending) of a delta."""

    chunks: tuple[ExportChunk, ...]
    erased: npt.NDArray[np.uint64]


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
        columns = _READERS[options.format](_Source(directory, table, schema, where))
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


@dataclass(frozen=True)
class _Source:
    """What is read: the files of `table`, expected to have the columns of `schema`."""

    directory: Directory
    table: ExportedTable
    schema: pa.Schema
    where: str


def _read_arrow(source: _Source) -> ExportColumns:
    def read(path: str) -> pa.RecordBatchFileReader:
        return pa.ipc.open_file(source.directory.open(path))

    rows = read(source.table.files[0].path)
    batches = [rows.get_batch(index) for index in range(rows.num_record_batches)]
    return _columns_of_batches(source, batches, [read(file.path).read_all() for file in source.table.files[1:]])


def _read_parquet(source: _Source) -> ExportColumns:
    def read(path: str) -> pa.Table:
        place = f"{source.directory.path}/{path}"
        return pq.read_table(place, filesystem=source.directory.filesystem, partitioning=None)

    rows = read(source.table.files[0].path).combine_chunks()
    return _columns_of_batches(source, rows.to_batches(), [read(file.path) for file in source.table.files[1:]])


def _columns_of_batches(source: _Source, batches: list[pa.RecordBatch], erased: list[pa.Table]) -> ExportColumns:
    chunks = tuple(_chunk_of_batch(batch, source.schema) for batch in batches if batch.num_rows)
    keys = [np.asarray(_column(table.combine_chunks(), source.schema.field("key"))) for table in erased]
    return ExportColumns(chunks, np.concatenate(keys) if keys else np.empty(0, np.uint64))


def _chunk_of_batch(batch: pa.RecordBatch, schema: pa.Schema) -> ExportChunk:
    columns = {field.name: _column(batch, field) for field in schema}
    values = columns["vector"].flatten()
    if values.null_count:
        raise ValueError(f"no number in {values.null_count} places of column 'vector'")
    return ExportChunk(
        keys=columns["key"].to_numpy(),
        counts=columns["count"].to_numpy(),
        vectors=values.to_numpy().reshape(batch.num_rows, schema.field("vector").type.list_size),
        scales=columns["scale"].to_numpy() if "scale" in columns else None,
        ids=partial(columns.__getitem__, "id") if "id" in columns else None,
    )


def _column(rows: pa.RecordBatch | pa.Table, field: pa.Field) -> pa.Array | pa.ChunkedArray:
    """The column that `field` describes. Raises: KeyError, ValueError where there is none or another."""
    column = rows.column(field.name)
    if column.type != field.type:
        raise ValueError(f"{column.type} in place of {field.type} in column {field.name!r}")
    if not field.nullable and column.null_count:
        raise ValueError(f"{column.null_count} nulls in column {field.name!r}")
    return column


def _read_npy(source: _Source) -> ExportColumns:
    arrays = {}
    for file in source.table.files:
        name = file.path.rsplit("/", 1)[-1].removesuffix(".npy")
        arrays[name] = _npy_array(source.directory, file.path)
    return _columns_of_arrays(source, arrays)


def _npy_array(directory: Directory, path: str) -> npt.NDArray[Any]:
    with directory.open(path) as source:
        version = np.lib.format.read_magic(source)
        if version != (1, 0):
            raise ValueError(f".npy version {version} in place of (1, 0) in {path}")
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(source)
        start = source.tell()
    if is_fortran:
        raise ValueError(f"Fortran order in place of C order in {path}")
    return _array(directory, path, (start, dtype, shape))


def _read_safetensors(source: _Source) -> ExportColumns:
    path = source.table.files[0].path
    with source.directory.open(path) as file:
        size = int.from_bytes(file.read(8), "little")
        header = _SafetensorsHeader.validate_json(file.read(size))
    arrays = {}
    for name, tensor in header.items():
        if isinstance(tensor, _Tensor):
            start, end = tensor.data_offsets
            dtype = np.dtype(_SAFETENSORS_DTYPES[tensor.dtype])
            if end - start != int(np.prod(tensor.shape, dtype=np.int64)) * dtype.itemsize:
                raise ValueError(f"{end - start} bytes for {tensor.dtype}{list(tensor.shape)} in tensor {name!r}")
            arrays[name] = _array(source.directory, path, (8 + size + start, dtype, tensor.shape))
    return _columns_of_arrays(source, arrays)


def _array(directory: Directory, path: str, where: tuple[int, npt.DTypeLike, tuple[int, ...]]) -> npt.NDArray[Any]:
    """The array at (first byte, dtype, shape) of a file: a map on a local disk, else a copy in memory."""
    start, dtype, shape = where
    if 0 in shape:
        return np.empty(shape, dtype)
    if directory.is_local:
        with open(f"{directory.path}/{path}", "rb") as file:
            buffer: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    else:
        buffer = directory.read(path)
    return np.frombuffer(buffer, dtype, int(np.prod(shape, dtype=np.int64)), start).reshape(shape)


def _columns_of_arrays(source: _Source, arrays: dict[str, npt.NDArray[Any]]) -> ExportColumns:
    rows, dim = len(arrays["key"]), source.table.dim
    columns = {
        name: _checked(arrays, name, source.schema.field(name).type.to_pandas_dtype(), (rows,))
        for name in source.schema.names
        if name not in ("id", "vector")
    }
    value = source.schema.field("vector").type.value_type.to_pandas_dtype()
    chunk = ExportChunk(
        keys=columns["key"],
        counts=columns["count"],
        vectors=_checked(arrays, "vector", value, (rows, dim)),
        scales=columns.get("scale"),
        ids=_ids_of_arrays(source, arrays, rows),
    )
    erased = np.empty(0, np.uint64)
    if "erased_key" in arrays:
        erased = _checked(arrays, "erased_key", np.uint64, (len(arrays["erased_key"]),))
    return ExportColumns((chunk,) if rows else (), erased)


def _checked(
    arrays: dict[str, npt.NDArray[Any]], name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]
) -> npt.NDArray[Any]:
    """The array of that name. Raises: KeyError, ValueError where there is none or another."""
    array = arrays[name]
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(
            f"{array.dtype}{list(array.shape)} in place of {np.dtype(dtype)}{list(shape)} in array {name!r}"
        )
    return array


def _ids_of_arrays(source: _Source, arrays: dict[str, npt.NDArray[Any]], rows: int) -> Callable[[], pa.Array] | None:
    id, missing_key = source.table.id, np.uint64(source.table.missing_key or 0)
    if id is None:
        return None
    if id != "text":
        numbers = _checked(arrays, "id", id, (rows,))
        return lambda: pa.array(numbers, mask=arrays["key"] == missing_key)
    offsets = _checked(arrays, "id_offsets", np.int64, (rows + 1,))
    data = _checked(arrays, "id_bytes", np.uint8, (arrays["id_bytes"].size,))
    texts = pa.Array.from_buffers(pa.large_string(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    texts.validate()

    def read() -> pa.Array:
        try:
            texts.validate(full=True)
        except pa.ArrowException as error:
            raise CorruptCheckpointError(f"expected texts of ids, got {error}: {source.where}") from error
        return pc.if_else(pa.array(arrays["key"] == missing_key), pa.scalar(None, pa.large_string()), texts)

    return read


_READERS: dict[ExportFormat, Callable[[_Source], ExportColumns]] = {
    "arrow": _read_arrow,
    "parquet": _read_parquet,
    "npy": _read_npy,
    "safetensors": _read_safetensors,
}
