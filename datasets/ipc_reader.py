"""Arrow IPC: the file format (also Feather V2), read at any record batch, and the stream format, from its beginning."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyarrow import fs

from .errors import DataFileError
from .file_paths import DataFile
from .fresh_lock import FreshLock
from .schema import ColumnSpec
from .text_source import open_stream

_FILE_MAGIC = b"ARROW1"
_FEATHER_V1_MAGIC = b"FEA1"


class IpcFileReader:
    """`FileReader` of one Arrow IPC file; a local one is mapped, so that only the columns asked for are touched."""

    def __init__(self, file: DataFile) -> None:
        self._file = file
        self._lock = FreshLock()
        self._pieces: tuple[int, ...] | None = None
        self._schema: pa.Schema | None = None
        self._last: tuple[int, tuple[str, ...], pa.RecordBatch] | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_last": None}

    @property
    def path(self) -> str:
        """See `FileReader`."""
        return self._file.path

    def pieces(self) -> tuple[int, ...]:
        """Rows of each record batch."""
        return self._footer()[0]

    def layout(self) -> Hashable:
        """Names and types, without nullability and metadata."""
        return tuple((field.name, str(field.type)) for field in self._footer()[1])

    def column_names(self) -> tuple[str, ...]:
        """See `FileReader`."""
        return tuple(self._footer()[1].names)

    def read(self, start: int, stop: int | None, columns: Sequence[ColumnSpec]) -> Iterator[pa.RecordBatch]:
        """See `FileReader`; types are the file's own."""
        pieces, schema = self._footer()
        names = tuple(spec.name for spec in columns if spec.name in schema.names)
        stop = sum(pieces) if stop is None else stop
        row = 0
        with self._open(_positions(schema, names, self.path)) as reader:
            for index, rows in enumerate(pieces):
                first, last = max(start - row, 0), min(stop - row, rows)
                row += rows
                if first < last:
                    yield self._batch(reader, index, names).slice(first, last - first)
                if row >= stop:
                    return

    def _batch(self, reader: pa.RecordBatchFileReader, index: int, names: tuple[str, ...]) -> pa.RecordBatch:
        # A large compressed batch may be read in many slices; it is decompressed once while they follow each other.
        with self._lock:
            last = self._last
        if last is not None and last[:2] == (index, names):
            return last[2]
        batch = reader.get_batch(index)
        with self._lock:
            self._last = (index, names, batch)
        return batch

    def _footer(self) -> tuple[tuple[int, ...], pa.Schema]:
        with self._lock:
            if self._pieces is None or self._schema is None:
                with self._open(None) as reader:
                    schema = reader.schema
                first = [0] if len(schema) else []
                with self._open(first) as reader:
                    self._pieces = tuple(reader.get_batch(i).num_rows for i in range(reader.num_record_batches))
                self._schema = schema
            return self._pieces, self._schema

    @contextmanager
    def _open(self, positions: list[int] | None) -> Iterator[pa.RecordBatchFileReader]:
        options = pa.ipc.IpcReadOptions(included_fields=positions, use_threads=False)
        try:
            is_local = isinstance(self._file.filesystem, fs.LocalFileSystem)
            source = pa.memory_map(self.path) if is_local else self._file.filesystem.open_input_file(self.path)
            with source, pa.ipc.open_file(source, options=options) as reader:
                yield reader
        except (pa.ArrowException, OSError) as error:
            raise DataFileError(f"expected an Arrow IPC file, got: {error}", path=self.path) from error


class IpcStreamReader:
    """`FileReader` of one Arrow IPC stream, plain or compressed; always read from its first row."""

    def __init__(self, file: DataFile) -> None:
        self._file = file
        self._schema: pa.Schema | None = None

    @property
    def path(self) -> str:
        """See `FileReader`."""
        return self._file.path

    def pieces(self) -> None:
        """None: a stream has no footer."""
        self._header()

    def layout(self) -> Hashable:
        """Names and types, without nullability and metadata."""
        return tuple((field.name, str(field.type)) for field in self._header())

    def column_names(self) -> tuple[str, ...]:
        """See `FileReader`."""
        return tuple(self._header().names)

    def read(self, start: int, stop: int | None, columns: Sequence[ColumnSpec]) -> Iterator[pa.RecordBatch]:
        """See `FileReader`; types are the file's own."""
        schema = self._header()
        names = tuple(spec.name for spec in columns if spec.name in schema.names)
        row = 0
        with self._open(_positions(schema, names, self.path)) as reader:
            for batch in reader:
                first, last = max(start - row, 0), batch.num_rows if stop is None else min(stop - row, batch.num_rows)
                row += batch.num_rows
                if first < last:
                    yield batch.slice(first, last - first)
                if stop is not None and row >= stop:
                    return

    def _header(self) -> pa.Schema:
        if self._schema is None:
            with self._open(None) as reader:
                self._schema = reader.schema
        return self._schema

    @contextmanager
    def _open(self, positions: list[int] | None) -> Iterator[pa.RecordBatchStreamReader]:
        options = pa.ipc.IpcReadOptions(included_fields=positions, use_threads=False)
        try:
            with (
                open_stream(self._file.filesystem, self.path, self._file.compression) as source,
                pa.ipc.open_stream(source, options=options) as reader,
            ):
                yield reader
        except (pa.ArrowException, OSError) as error:
            raise DataFileError(f"expected an Arrow IPC stream, got: {error}", path=self.path) from error


def ipc_reader(file: DataFile) -> IpcFileReader | IpcStreamReader:
    """The reader for what the file begins with; the two formats share their extensions."""
    try:
        with open_stream(file.filesystem, file.path, file.compression) as source:
            magic = source.read(len(_FILE_MAGIC))
    except (pa.ArrowException, OSError) as error:
        raise DataFileError(f"expected an Arrow IPC file, got: {error}", path=file.path) from error
    if magic == _FILE_MAGIC:
        if file.compression is not None:
            raise DataFileError("expected an uncompressed IPC file (its buffers may be compressed)", path=file.path)
        return IpcFileReader(file)
    if magic[:4] == _FEATHER_V1_MAGIC:
        raise DataFileError("expected Feather V2 (Arrow IPC), got Feather V1", path=file.path)
    return IpcStreamReader(file)


def _positions(schema: pa.Schema, names: tuple[str, ...], path: str) -> list[int]:
    positions = []
    for name in names:
        found = schema.get_all_field_indices(name)
        if len(found) > 1:
            raise DataFileError("expected one column of the name, got several", path=path, column=name)
        positions += found
    return positions
