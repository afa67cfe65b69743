"""Reads one exported table back as arrays: mapped where the format allows, whatever the format."""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..checkpoint.storage import Directory
from ..errors import CorruptCheckpointError
from .manifest import ExportedTable, ExportFormat

_SAFETENSORS_DTYPES = {
    "U64": np.uint64,
    "I64": np.int64,
    "U32": np.uint32,
    "F32": np.float32,
    "F16": np.float16,
    "I8": np.int8,
    "U8": np.uint8,
}


@dataclass(frozen=True)
class ExportChunk:
    """A run of exported rows: keys (n,) ascending, counts (n,), vectors (n, D), scales (n,) or None, ids or None."""

    keys: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.uint32]
    vectors: npt.NDArray[Any]
    scales: npt.NDArray[np.float32] | None
    ids: pa.Array | None


@dataclass(frozen=True)
class ExportColumns:
    """One exported table: chunks in ascending key order, and the erased keys (ascending) of a delta."""

    chunks: tuple[ExportChunk, ...]
    erased: npt.NDArray[np.uint64]


def read_columns(directory: Directory, table: ExportedTable, format: ExportFormat) -> ExportColumns:
    """The arrays of `table`. Arrow, safetensors and .npy on a local disk are mapped, Parquet is decoded into memory.

    Raises: CorruptCheckpointError naming the file.
    """
    try:
        columns = _READERS[format](directory, table)
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        paths = [file.path for file in table.files]
        raise CorruptCheckpointError(f"{directory.path}: expected {format} files {paths}, got {error}") from error
    rows = sum(len(chunk.keys) for chunk in columns.chunks)
    if rows != table.rows or len(columns.erased) != table.erased:
        raise CorruptCheckpointError(
            f"{directory.path}: expected {table.rows} rows and {table.erased} erased keys, got {rows} and"
            f" {len(columns.erased)} (table {table.name!r})"
        )
    return columns


def _read_arrow(directory: Directory, table: ExportedTable) -> ExportColumns:
    reader = pa.ipc.open_file(directory.open(table.files[0].path))
    chunks = [_chunk_of_batch(reader.get_batch(index), table) for index in range(reader.num_record_batches)]
    erased = np.empty(0, np.uint64)
    for file in table.files[1:]:
        erased = np.asarray(pa.ipc.open_file(directory.open(file.path)).read_all().column("key").to_numpy())
    return ExportColumns(tuple(chunks), erased)


def _read_parquet(directory: Directory, table: ExportedTable) -> ExportColumns:
    def read(path: str) -> pa.Table:
        return pq.read_table(f"{directory.path}/{path}", filesystem=directory.filesystem, partitioning=None)

    rows = read(table.files[0].path).combine_chunks()
    chunks = tuple(_chunk_of_batch(batch, table) for batch in rows.to_batches())
    erased = np.empty(0, np.uint64)
    for file in table.files[1:]:
        erased = np.asarray(read(file.path).column("key").to_numpy())
    return ExportColumns(chunks, erased)


def _chunk_of_batch(batch: pa.RecordBatch, table: ExportedTable) -> ExportChunk:
    vectors = batch.column("vector").flatten().to_numpy(zero_copy_only=False)
    names = batch.schema.names
    return ExportChunk(
        keys=batch.column("key").to_numpy(),
        counts=batch.column("count").to_numpy(),
        vectors=vectors.reshape(batch.num_rows, table.dim),
        scales=batch.column("scale").to_numpy() if "scale" in names else None,
        ids=batch.column("id") if "id" in names else None,
    )


def _read_npy(directory: Directory, table: ExportedTable) -> ExportColumns:
    arrays = {}
    for file in table.files:
        name = file.path.rsplit("/", 1)[-1].removesuffix(".npy")
        arrays[name] = _npy_array(directory, file.path)
    return _columns_of_arrays(arrays, table)


def _npy_array(directory: Directory, path: str) -> npt.NDArray[Any]:
    with directory.open(path) as source:
        np.lib.format.read_magic(source)
        shape, _, dtype = np.lib.format.read_array_header_1_0(source)
        start = source.tell()
    return _array(directory, path, (start, dtype, shape))


def _read_safetensors(directory: Directory, table: ExportedTable) -> ExportColumns:
    path = table.files[0].path
    with directory.open(path) as source:
        size = int.from_bytes(source.read(8), "little")
        header = json.loads(source.read(size))
    arrays = {}
    for name, entry in header.items():
        if name != "__metadata__":
            where = (8 + size + entry["data_offsets"][0], _SAFETENSORS_DTYPES[entry["dtype"]], tuple(entry["shape"]))
            arrays[name] = _array(directory, path, where)
    return _columns_of_arrays(arrays, table)


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


def _columns_of_arrays(arrays: dict[str, npt.NDArray[Any]], table: ExportedTable) -> ExportColumns:
    keys = arrays["key"]
    chunk = ExportChunk(
        keys=keys,
        counts=arrays["count"],
        vectors=arrays["vector"].reshape(len(keys), table.dim),
        scales=arrays.get("scale"),
        ids=_ids_of_arrays(arrays, table),
    )
    return ExportColumns((chunk,) if len(keys) else (), arrays.get("erased_key", np.empty(0, np.uint64)))


def _ids_of_arrays(arrays: dict[str, npt.NDArray[Any]], table: ExportedTable) -> pa.Array | None:
    if table.id is None:
        return None
    missing = arrays["key"] == np.uint64(table.missing_key or 0)
    if table.id != "text":
        return pa.array(arrays["id"], mask=missing)
    offsets = pa.py_buffer(np.ascontiguousarray(arrays["id_offsets"]))
    data = pa.py_buffer(np.ascontiguousarray(arrays["id_bytes"]))
    texts = pa.Array.from_buffers(pa.large_string(), len(missing), [None, offsets, data])
    return pc.if_else(pa.array(missing), pa.scalar(None, pa.large_string()), texts)


_READERS: dict[ExportFormat, Callable[[Directory, ExportedTable], ExportColumns]] = {
    "arrow": _read_arrow,
    "parquet": _read_parquet,
    "npy": _read_npy,
    "safetensors": _read_safetensors,
}
