"""Reads exported tables of plain arrays: a directory of .npy files, or one safetensors file; mapped on a local disk."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, NonNegativeInt, TypeAdapter

from ..checkpoint.storage import Directory
from .columns import ColumnSource, ExportChunk, ExportColumns

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


def read_npy(source: ColumnSource) -> ExportColumns:
    """Arrays of a directory of .npy files. Raises: OSError, ValueError, KeyError, pa.ArrowException."""
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


def read_safetensors(source: ColumnSource) -> ExportColumns:
    """Arrays of a safetensors file. Raises: OSError, ValueError, KeyError, pa.ArrowException."""
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


def _columns_of_arrays(source: ColumnSource, arrays: dict[str, npt.NDArray[Any]]) -> ExportColumns:
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


def _ids_of_arrays(
    source: ColumnSource, arrays: dict[str, npt.NDArray[Any]], rows: int
) -> Callable[[], pa.Array] | None:
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
        missing = pa.array(arrays["key"] == missing_key)
        return pc.if_else(missing, pa.scalar(None, pa.large_string()), source.checked(texts))

    return read
