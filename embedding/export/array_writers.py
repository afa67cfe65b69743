"""Writes tables as plain arrays: a directory of .npy files, or one safetensors file.

Both formats say how many rows there are before the first one, so columns are spooled to temporary files and copied
behind their headers at the end. Text ids are one array of UTF-8 bytes and one of n + 1 offsets.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ..checkpoint.checksum_file import ChecksumFile
from ..checkpoint.storage import Directory
from .arrow_writer import end_file
from .manifest import ExportedFile
from .vectors import VECTOR_DTYPES, ExportRows, TableExport

_COPY_BYTES = 1 << 20
_SAFETENSORS_TYPES = {
    "uint64": "U64",
    "int64": "I64",
    "uint32": "U32",
    "float32": "F32",
    "float16": "F16",
    "int8": "I8",
    "uint8": "U8",
}


@dataclass
class _Column:
    """One array on its way to disk: spooled bytes, number of rows, shape of a row."""

    dtype: np.dtype[Any]
    spool: IO[bytes]
    row_shape: tuple[int, ...] = ()
    rows: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, *self.row_shape)

    @property
    def size_bytes(self) -> int:
        return self.rows * int(np.prod(self.row_shape, dtype=np.int64)) * self.dtype.itemsize

    def add(self, values: npt.NDArray[Any]) -> None:
        self.spool.write(np.ascontiguousarray(values, self.dtype).tobytes())
        self.rows += len(values)

    def chunks(self) -> Iterator[bytes]:
        self.spool.seek(0)
        while chunk := self.spool.read(_COPY_BYTES):
            yield chunk


class _Columns:
    """The arrays of one table: key, id (or id_bytes and id_offsets), count, clicks, vector, scale, erased_key."""

    def __init__(self, directory: Directory, table: TableExport) -> None:
        self._spool_in = directory.path if directory.is_local else None
        self.by_name = {"key": self._column(np.uint64)}
        self._text_bytes = 0
        if table.ids is not None and table.ids.type == "text":
            self.by_name["id_bytes"] = self._column(np.uint8)
            self.by_name["id_offsets"] = self._column(np.int64)
            self.by_name["id_offsets"].add(np.zeros(1, np.int64))
        elif table.ids is not None:
            self.by_name["id"] = self._column(np.dtype(table.ids.type))
        self.by_name["count"] = self._column(np.uint32)
        if table.config.keeps_clicks:
            self.by_name["clicks"] = self._column(np.uint32)
        self.by_name["vector"] = self._column(VECTOR_DTYPES[table.options.vectors], (table.dim,))
        if table.options.vectors == "int8":
            self.by_name["scale"] = self._column(np.float32)

    def add(self, rows: ExportRows) -> None:
        self.by_name["key"].add(rows.keys)
        self.by_name["count"].add(rows.counts)
        if rows.clicks is not None:
            self.by_name["clicks"].add(rows.clicks)
        self.by_name["vector"].add(rows.vectors)
        if rows.scales is not None:
            self.by_name["scale"].add(rows.scales)
        if rows.ids is None:
            return
        if "id" in self.by_name:
            self.by_name["id"].add(np.asarray(rows.ids.fill_null(0).to_numpy(zero_copy_only=False)))
            return
        if not len(rows.ids):
            return
        texts = rows.ids.fill_null("")
        _, offset_buffer, data = texts.buffers()
        offsets = np.frombuffer(offset_buffer, np.int64)[texts.offset : texts.offset + len(texts) + 1]
        self.by_name["id_bytes"].add(np.frombuffer(data or b"", np.uint8)[offsets[0] : offsets[-1]])
        self.by_name["id_offsets"].add(self._text_bytes + offsets[1:] - offsets[0])
        self._text_bytes += int(offsets[-1] - offsets[0])

    def add_erased(self, erased: npt.NDArray[np.uint64]) -> None:
        if len(erased):
            self.by_name["erased_key"] = self._column(np.uint64)
            self.by_name["erased_key"].add(erased)

    def _column(self, dtype: npt.DTypeLike, row_shape: tuple[int, ...] = ()) -> _Column:
        return _Column(np.dtype(dtype), tempfile.TemporaryFile(dir=self._spool_in), row_shape)

    def close(self) -> None:
        for column in self.by_name.values():
            column.spool.close()


class NpyTableWriter:
    """One table as a directory of .npy files, one an array: `np.load(…, mmap_mode="r")` reads each."""

    def __init__(self, directory: Directory, name: str, table: TableExport) -> None:
        self._directory, self._name = directory, name
        self._columns = _Columns(directory, table)

    def add(self, rows: ExportRows) -> None:
        """Write rows; keys ascend over all calls."""
        self._columns.add(rows)

    def finish(self, erased: npt.NDArray[np.uint64]) -> list[ExportedFile]:
        """Write the arrays behind their headers."""
        self._columns.add_erased(erased)
        files = []
        for name, column in self._columns.by_name.items():
            path = f"{self._name}/{name}.npy"
            with self._directory.create(path) as file:
                file.write(_npy_header(column))
                _copy(column, file)
                files.append(end_file(file, path))
        self._columns.close()
        return files

    def abandon(self) -> None:
        """Let go of the spooled columns; never raises."""
        self._columns.close()


class SafetensorsTableWriter:
    """One table as a safetensors file, one tensor an array."""

    def __init__(self, directory: Directory, name: str, table: TableExport) -> None:
        self._directory, self._name = directory, name
        self._columns = _Columns(directory, table)

    def add(self, rows: ExportRows) -> None:
        """Write rows; keys ascend over all calls."""
        self._columns.add(rows)

    def finish(self, erased: npt.NDArray[np.uint64]) -> list[ExportedFile]:
        """Write the header and the arrays behind it; 8-byte numbers first, so that every array is aligned."""
        self._columns.add_erased(erased)
        ordered = sorted(self._columns.by_name.items(), key=lambda item: -item[1].dtype.itemsize)
        header, start = {}, 0
        for name, column in ordered:
            header[name] = {
                "dtype": _SAFETENSORS_TYPES[column.dtype.name],
                "shape": list(column.shape),
                "data_offsets": [start, start + column.size_bytes],
            }
            start += column.size_bytes
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        path = f"{self._name}.safetensors"
        with self._directory.create(path) as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for _, column in ordered:
                _copy(column, file)
            entry = end_file(file, path)
        self._columns.close()
        return [entry]

    def abandon(self) -> None:
        """Let go of the spooled columns; never raises."""
        self._columns.close()


def _npy_header(column: _Column) -> bytes:
    buffer = io.BytesIO()
    description = {"descr": np.lib.format.dtype_to_descr(column.dtype), "fortran_order": False, "shape": column.shape}
    np.lib.format.write_array_header_1_0(buffer, description)
    return buffer.getvalue()


def _copy(column: _Column, file: ChecksumFile) -> None:
    for chunk in column.chunks():
        file.write(chunk)
