"""Reads the row files of one table: the rows of any tablet, mapped where the filesystem allows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ..errors import CorruptCheckpointError
from ..table_config import TableConfig
from ..table_group import TableRows
from .manifest import FileEntry
from .storage import Directory
from .tablet_file import empty_rows, numbers, row_schema, rows_of_batch, slice_rows, tablet_starts


class TableReader:
    """Rows of one table by tablet; one file is open at a time. Thread safety: one thread at a time."""

    def __init__(
        self, directory: Directory, table: TableConfig, entries: Sequence[FileEntry], tablet_bits: int
    ) -> None:
        self._directory, self._table, self._entries, self._tablet_bits = directory, table, entries, tablet_bits
        self._first = [entry.first_tablet for entry in entries]
        self._none = empty_rows(table)
        self._open: tuple[int, _RowFile] | None = None

    def rows(self, tablet: int) -> TableRows:
        """Rows of one tablet, ascending by key: views of the file."""
        index = bisect_right(self._first, tablet) - 1
        if index < 0 or tablet > self._entries[index].last_tablet:
            return self._none
        if self._open is None or self._open[0] != index:
            self._open = (index, _RowFile(self._directory, self._entries[index], self._table, self._tablet_bits))
        return self._open[1].rows(tablet) or self._none

    def close(self) -> None:
        """Let go of the file; views given out stay valid."""
        self._open = None


class _RowFile:
    """One row file. Each record batch holds whole tablets."""

    def __init__(self, directory: Directory, entry: FileEntry, table: TableConfig, tablet_bits: int) -> None:
        self._where, self._table, self._tablet_bits = f"{directory.path}/{entry.path}", table, tablet_bits
        try:
            source = directory.open(entry.path) if directory.is_local else pa.BufferReader(directory.read(entry.path))
            self._reader = pa.ipc.open_file(source)
            if self._reader.schema != row_schema(table):
                raise CorruptCheckpointError(
                    f"{self._where}: expected columns {row_schema(table)}, got {self._reader.schema}"
                )
            batches = [self._reader.get_batch(index) for index in range(self._reader.num_record_batches)]
        except (OSError, pa.ArrowInvalid) as error:
            raise CorruptCheckpointError(f"{self._where}: expected an Arrow IPC file, got {error}") from error
        self._batches = [batch for batch in batches if batch.num_rows]
        shift = 64 - tablet_bits
        self._first = [int(numbers(batch, "key")[0]) >> shift for batch in self._batches]
        self._current: tuple[int, TableRows, list[int]] | None = None

    def rows(self, tablet: int) -> TableRows | None:
        """Rows of one tablet, or None where it has none."""
        index = bisect_right(self._first, tablet) - 1
        if index < 0:
            return None
        if self._current is None or self._current[0] != index:
            rows = rows_of_batch(self._batches[index])
            if not bool(np.all(rows.keys[1:] > rows.keys[:-1])):
                raise CorruptCheckpointError(f"{self._where}: expected ascending keys in record batch {index}")
            self._current = (index, rows, tablet_starts(rows.keys, self._tablet_bits))
        _, rows, starts = self._current
        start, stop = starts[tablet], starts[tablet + 1]
        return slice_rows(rows, start, stop) if stop > start else None
