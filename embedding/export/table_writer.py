"""What writes one table of an export, whatever the file format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..checkpoint.storage import Directory
from .array_writers import NpyTableWriter, SafetensorsTableWriter
from .arrow_writer import ArrowTableWriter
from .manifest import ExportedFile, ExportFormat
from .parquet_writer import ParquetTableWriter
from .vectors import ExportRows, TableExport


class TableWriter(Protocol):
    """Rows of one table on their way to disk. Thread safety: one thread at a time."""

    def add(self, rows: ExportRows) -> None:
        """Write rows; keys ascend over all calls."""

    def finish(self, erased: npt.NDArray[np.uint64]) -> list[ExportedFile]:
        """Write the keys that left (ascending; empty for a full export) and end the files."""

    def abandon(self) -> None:
        """Let go of the files; never raises."""


WRITERS: dict[ExportFormat, Callable[[Directory, str, TableExport], TableWriter]] = {
    "parquet": ParquetTableWriter,
    "arrow": ArrowTableWriter,
    "safetensors": SafetensorsTableWriter,
    "npy": NpyTableWriter,
}
"""Writer of each format: (directory, file name without suffix, table)."""
