"""Reads the small files of a checkpoint: admission counters, erased keys, applied memory, and the list of tablets."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..errors import CorruptCheckpointError
from .manifest import FileKind, Manifest
from .storage import Directory
from .tablet_file import (
    ADMISSION_SCHEMA,
    APPLIED_SCHEMA,
    ERASED_SCHEMA,
    TABLETS_SCHEMA,
    Column,
    numbers,
    tablet_starts,
)

_SCHEMAS: dict[FileKind, pa.Schema] = {
    "admission": ADMISSION_SCHEMA,
    "erased": ERASED_SCHEMA,
    "applied": APPLIED_SCHEMA,
    "tablets": TABLETS_SCHEMA,
}


class SideFiles:
    """Columns of the small files by kind and table, read once. Thread safety: one thread at a time."""

    def __init__(self, directory: Directory, manifest: Manifest) -> None:
        self._directory, self._manifest = directory, manifest
        self._columns: dict[tuple[FileKind, str | None], list[Column]] = {}
        self._starts: dict[tuple[FileKind, str | None], list[int]] = {}

    def columns(self, kind: FileKind, table: str | None) -> list[Column]:
        """All columns of one kind, in the order of its schema."""
        found = self._columns.get((kind, table))
        if found is None:
            batches = [batch for entry in self._manifest.of_kind(kind, table) for batch in self._batches(entry.path)]
            schema = _SCHEMAS[kind]
            found = [
                np.concatenate(
                    [np.empty(0, field.type.to_pandas_dtype()), *(numbers(batch, field.name) for batch in batches)]
                )
                for field in schema
            ]
            self._columns[kind, table] = found
        return found

    def of_tablet(self, kind: FileKind, table: str | None, tablet: int) -> list[Column]:
        """The columns of one kind, cut to one tablet: by key, or by the tablet's number for applied memory."""
        columns = self.columns(kind, table)
        starts = self._starts.get((kind, table))
        if starts is None:
            bits = self._manifest.tablet_bits
            if kind == "applied":
                starts = np.searchsorted(columns[0], np.arange((1 << bits) + 1)).tolist()
            else:
                starts = tablet_starts(columns[0], bits)
            self._starts[kind, table] = starts
        return [column[starts[tablet] : starts[tablet + 1]] for column in columns]

    def _batches(self, path: str) -> list[pa.RecordBatch]:
        try:
            with self._directory.open(path) as source:
                return list(pa.ipc.open_file(source).read_all().to_batches())
        except (OSError, pa.ArrowInvalid) as error:
            raise CorruptCheckpointError(
                f"{self._directory.path}/{path}: expected an Arrow IPC file, got {error}"
            ) from error
