"""Parquet files: row groups decoded in large chunks, in bounded memory."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from .errors import DataFileError
from .file_paths import DataFile
from .fresh_lock import FreshLock
from .schema import ColumnSpec

DECODE_ROWS = 65_536
_READ_AHEAD_BYTES = 1 << 20
_DICTIONARY_BYTES = 32 << 10  # compressed: some four thousand short texts, about the rows of a batch


@dataclass(slots=True)
class _Cursor:
    """A decode in progress: the next row it gives, the rows left over, and what it gives after them."""

    columns: tuple[str, ...]
    dictionaries: tuple[str, ...]
    row: int
    held: pa.RecordBatch | None
    chunks: Iterator[pa.RecordBatch]


class ParquetReader:
    """`FileReader` of one Parquet file; keeps the decode position, so that slices read in order decode each page once.

    Memory: one decoded chunk and the pages it comes from, whatever the size of file and row group.
    """

    def __init__(self, file: DataFile, *, decode_rows: int = DECODE_ROWS) -> None:
        self._path, self._filesystem, self._decode_rows = file.path, file.filesystem, decode_rows
        self._metadata: pq.FileMetaData | None = None
        self._text_columns: frozenset[str] | None = None
        self._cursor: _Cursor | None = None
        self._lock = FreshLock()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_cursor": None}

    @property
    def path(self) -> str:
        """See `FileReader`."""
        return self._path

    def pieces(self) -> tuple[int, ...]:
        """Rows of each row group."""
        metadata = self._footer()
        return tuple(metadata.row_group(index).num_rows for index in range(metadata.num_row_groups))

    def layout(self) -> Hashable:
        """Names and types, without nullability and metadata."""
        return tuple((field.name, str(field.type)) for field in self._footer().schema.to_arrow_schema())

    def column_names(self) -> tuple[str, ...]:
        """See `FileReader`."""
        return tuple(self._footer().schema.to_arrow_schema().names)

    def read(self, start: int, stop: int | None, columns: Sequence[ColumnSpec]) -> Iterator[pa.RecordBatch]:
        """See `FileReader`; types are the file's own."""
        present = set(self.column_names())
        names = tuple(spec.name for spec in columns if spec.name in present)
        dictionaries = tuple(spec.name for spec in columns if spec.dictionary and spec.name in self._few_texts())
        stop = self._footer().num_rows if stop is None else stop
        cursor = self._take_cursor(names, dictionaries, start)
        try:
            while cursor.row < stop:
                chunk = cursor.held if cursor.held is not None else next(cursor.chunks, None)
                if chunk is None:
                    raise DataFileError(f"expected rows up to {stop}, the file ends at {cursor.row}", path=self._path)
                cursor.held = None
                if cursor.row < start:
                    skipped = min(start - cursor.row, chunk.num_rows)
                    cursor.row += skipped
                    cursor.held = chunk.slice(skipped) if skipped < chunk.num_rows else None
                    continue
                wanted = min(stop - cursor.row, chunk.num_rows)
                cursor.row += wanted
                cursor.held = chunk.slice(wanted) if wanted < chunk.num_rows else None
                yield chunk.slice(0, wanted)
        except (pa.ArrowException, OSError) as error:
            raise DataFileError(f"expected a readable Parquet file, got: {error}", path=self._path) from error
        with self._lock:
            self._cursor = cursor

    def _take_cursor(self, names: tuple[str, ...], dictionaries: tuple[str, ...], start: int) -> _Cursor:
        """The kept cursor if it stands at `start`, else a new one at the start of the row group `start` lies in."""
        with self._lock:
            cursor, self._cursor = self._cursor, None
        if (
            cursor is not None
            and (cursor.columns, cursor.dictionaries) == (names, dictionaries)
            and cursor.row == start
        ):
            return cursor
        group, row = 0, 0
        for rows in self.pieces():
            if row + rows > start:
                break
            group, row = group + 1, row + rows
        groups = list(range(group, self._footer().num_row_groups))
        return _Cursor(names, dictionaries, row, None, self._decode(groups, names, dictionaries))

    def _decode(
        self, groups: list[int], names: tuple[str, ...], dictionaries: tuple[str, ...]
    ) -> Iterator[pa.RecordBatch]:
        # Without pre_buffer pages are read as they are decoded; the dataset scanner's read-ahead is unbounded.
        with self._filesystem.open_input_file(self._path) as source:
            file = pq.ParquetFile(
                source,
                metadata=self._metadata,
                read_dictionary=list(dictionaries),
                pre_buffer=False,
                buffer_size=_READ_AHEAD_BYTES,
                page_checksum_verification=True,  # of pages that have one; no cost that can be measured
            )
            if not names:
                for group in groups:
                    rows = self._footer().row_group(group).num_rows
                    yield pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
                return
            yield from file.iter_batches(self._decode_rows, row_groups=groups, columns=list(names), use_threads=False)

    def _few_texts(self) -> frozenset[str]:
        """Text columns that the file has dictionary-encoded with few values, judged by three of its row groups."""
        if self._text_columns is None:
            metadata = self._footer()
            last = metadata.num_row_groups - 1
            groups = [metadata.row_group(index) for index in sorted({0, last // 2, last})] if last >= 0 else []
            few = {
                field.name
                for field in metadata.schema.to_arrow_schema()
                if pat.is_string(field.type) or pat.is_binary(field.type)
            }
            for group in groups:
                for index in range(group.num_columns):
                    column = group.column(index)
                    if not column.has_dictionary_page or (
                        column.data_page_offset - column.dictionary_page_offset > _DICTIONARY_BYTES
                    ):
                        few.discard(column.path_in_schema)
            self._text_columns = frozenset(few)
        return self._text_columns

    def _footer(self) -> pq.FileMetaData:
        if self._metadata is None:
            try:
                with self._filesystem.open_input_file(self._path) as source:
                    self._metadata = pq.ParquetFile(source, pre_buffer=False).metadata
            except (pa.ArrowException, OSError) as error:
                raise DataFileError(f"expected a Parquet file, got: {error}", path=self._path) from error
        return self._metadata
