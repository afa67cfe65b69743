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
from .tablet_file import concat_rows, numbers, row_schema, rows_of_batch


class TableReader:
    """Rows of one table by tablet. Thread safety: one thread at a time."""

    def __init__(
        self, directory: Directory, table: TableConfig, entries: Sequence[FileEntry], tablet_bits: int
    ) -> None:
        self._table = table
        self._shift = 64 - tablet_bits
        self._last_tablet = (1 << tablet_bits) - 1
        self._files = [_RowFile(directory, entry, table) for entry in entries]
        self._first = [entry.first_tablet for entry in entries]

    def rows(self, tablet: int) -> TableRows:
        """Rows of one tablet, ascending by key; views where they lie in one record batch."""
        low, high = tablet << self._shift, (tablet + 1) << self._shift
        parts = []
        for index in range(max(bisect_right(self._first, tablet) - 1, 0), len(self._files)):
            if self._first[index] > tablet:
                break
            parts += self._files[index].between(low, None if tablet == self._last_tablet else high)
        return concat_rows(parts, self._table)

    def close(self) -> None:
        """Close the files; views given out stay valid."""
        for file in self._files:
            file.close()


class _RowFile:
    """One row file; remembers the key range of each record batch once it has been seen."""

    def __init__(self, directory: Directory, entry: FileEntry, table: TableConfig) -> None:
        self._where = f"{directory.path}/{entry.path}"
        try:
            self._source = directory.open(entry.path)
            self._reader = pa.ipc.open_file(self._source)
        except (OSError, pa.ArrowInvalid) as error:
            raise CorruptCheckpointError(f"{self._where}: expected an Arrow IPC file, got {error}") from error
        if self._reader.schema != row_schema(table):
            raise CorruptCheckpointError(
                f"{self._where}: expected columns {row_schema(table)}, got {self._reader.schema} (table {table.name!r})"
            )
        self._ranges: list[tuple[int, int] | None] = [None] * self._reader.num_record_batches
        self._cached: tuple[int, pa.RecordBatch] | None = None

    def between(self, low: int, high: int | None) -> list[TableRows]:
        """Rows with low <= key < high (no upper end where `high` is None), one part a record batch."""
        parts = []
        for index, known in enumerate(self._ranges):
            if known is not None and (known[1] < low or (high is not None and known[0] >= high)):
                continue
            batch = self._batch(index)
            if not batch.num_rows:
                self._ranges[index] = (1, 0)
                continue
            keys = numbers(batch, "key")
            self._ranges[index] = (int(keys[0]), int(keys[-1]))
            start = int(np.searchsorted(keys, np.uint64(low)))
            stop = len(keys) if high is None else int(np.searchsorted(keys, np.uint64(high)))
            if stop > start:
                parts.append(rows_of_batch(batch, start, stop))
            elif high is not None and int(keys[0]) >= high:
                break
        return parts

    def close(self) -> None:
        """Close the file."""
        self._cached = None
        self._source.close()

    def _batch(self, index: int) -> pa.RecordBatch:
        if self._cached is None or self._cached[0] != index:
            try:
                self._cached = (index, self._reader.get_batch(index))
            except (OSError, pa.ArrowInvalid) as error:
                raise CorruptCheckpointError(f"{self._where}: record batch {index}: {error}") from error
        return self._cached[1]
