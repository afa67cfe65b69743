"""Writes the row files of a checkpoint: record batches, rolled into files of bounded size."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..table_config import TableConfig
from ..table_group import TableRows
from .checksum_file import BackgroundWork, ChecksumFile
from .manifest import FileEntry, FileKind
from .storage import Directory
from .tablet_file import (
    ADMISSION_SCHEMA,
    ERASED_SCHEMA,
    Column,
    concat_rows,
    file_name,
    non_finite_rows,
    record_batch,
    row_batch,
    row_schema,
)

BATCH_BYTES = 1 << 20
"""Rows of small tablets are gathered into record batches of about this size."""
FILE_BYTES = 64 << 20
"""A row file is closed at the first tablet that ends beyond this size."""


class FileSeries:
    """Record batches of one schema in one or more files: a file ends at the first tablet beyond FILE_BYTES."""

    def __init__(
        self,
        target: Directory,
        work: BackgroundWork,
        kind: FileKind,
        schema: pa.Schema,
        table: tuple[int, str] | None = None,
    ) -> None:
        self._target, self._work, self._kind, self._schema, self._table = target, work, kind, schema, table
        self._entries: list[FileEntry] = []
        self._file: ChecksumFile | None = None
        self._writer: pa.RecordBatchFileWriter | None = None
        self._name, self._first, self._last, self._rows = "", 0, 0, 0

    def __enter__(self) -> FileSeries:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            self._file.abandon()

    def add(self, tablet: int, batch: pa.RecordBatch, last_tablet: int | None = None) -> None:
        """Write one batch; its rows lie in [tablet, last_tablet]."""
        if self._writer is None:
            index, table = self._table or (None, "")
            self._name = file_name(self._kind, tablet, index, table)
            self._file = self._target.create(self._name, self._work)
            self._writer = pa.ipc.new_file(self._file, self._schema)
            self._first, self._rows = tablet, 0
        self._writer.write_batch(batch)
        self._rows += batch.num_rows
        self._last = tablet if last_tablet is None else last_tablet
        if self._file is not None and self._file.tell() >= FILE_BYTES:
            self._end_file()

    @property
    def is_empty(self) -> bool:
        """Whether nothing was added yet."""
        return self._writer is None and not self._entries

    def finish(self) -> list[FileEntry]:
        """End the last file; entries of all."""
        if self._writer is not None:
            self._end_file()
        return self._entries

    def _end_file(self) -> None:
        file, writer = self._file, self._writer
        assert file is not None
        assert writer is not None
        writer.close()
        self._entries.append(
            FileEntry(
                path=self._name,
                kind=self._kind,
                table=self._table[1] if self._table else None,
                first_tablet=self._first,
                last_tablet=self._last,
                rows=self._rows,
                bytes=file.tell(),
                sha256=file.sha256(),
            )
        )
        self._file = self._writer = None
        self._work.close(file)


class TableFiles:
    """Row, admission and erased files of one table. Batches depend on the rows alone: equal rows give equal bytes."""

    def __init__(self, target: Directory, work: BackgroundWork, index: int, table: TableConfig) -> None:
        self.table = table
        self._schema = row_schema(table)
        self._rows = FileSeries(target, work, "rows", self._schema, (index, table.name))
        self._admission = FileSeries(target, work, "admission", ADMISSION_SCHEMA, (index, table.name))
        self._erased = FileSeries(target, work, "erased", ERASED_SCHEMA, (index, table.name))
        self._pending: list[TableRows] = []
        self._pending_bytes = 0
        self._first_pending = self._last_pending = 0
        self.non_finite_rows = 0

    def __enter__(self) -> TableFiles:
        return self

    def __exit__(self, *exc: object) -> None:
        for series in (self._rows, self._admission, self._erased):
            series.__exit__(*exc)

    def add(self, tablet: int, rows: TableRows) -> None:
        """Rows, counters and erased keys of one tablet; tablets come in ascending order."""
        if len(rows.keys):
            if not self._pending:
                self._first_pending = tablet
            self._last_pending = tablet
            self._pending.append(rows)
            self._pending_bytes += rows.keys.nbytes + rows.weights.nbytes + rows.state.nbytes + 12 * len(rows.keys)
            if self._pending_bytes >= BATCH_BYTES:
                self._flush()
        if len(rows.admission_keys):
            batch = record_batch(ADMISSION_SCHEMA, _by_key(rows.admission_keys, rows.admission_counts))
            self._admission.add(tablet, batch)
        if len(rows.erased_keys):
            self._erased.add(tablet, record_batch(ERASED_SCHEMA, _by_key(rows.erased_keys, rows.erased_versions)))

    def finish(self) -> list[FileEntry]:
        """End all files; a table without rows gets an empty row file, so that its layout is on record."""
        self._flush()
        return self._rows.finish() + self._admission.finish() + self._erased.finish()

    def _flush(self) -> None:
        if self._pending or self._rows.is_empty:
            rows = concat_rows(self._pending, self.table)
            if not bool((rows.keys[1:] > rows.keys[:-1]).all()):
                raise ValueError(
                    f"expected keys that ascend over tablets {self._first_pending} to {self._last_pending}, got others"
                    f" (table {self.table.name!r})"
                )
            self.non_finite_rows += non_finite_rows(rows)
            self._rows.add(self._first_pending, row_batch(self._schema, rows), last_tablet=self._last_pending)
        self._pending, self._pending_bytes = [], 0


def _by_key(keys: npt.NDArray[np.uint64], values: npt.NDArray[np.uint32]) -> list[Column]:
    order = np.argsort(keys, kind="stable")
    return [keys[order], values[order]]
