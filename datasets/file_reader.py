"""What the click log asks of a file format."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from .schema import ColumnSpec


class FileReader(Protocol):
    """One file (or table in memory) as rows 0, 1, … of named columns.

    Thread safety: methods may be called from any thread; each iterator belongs to the thread that steps it.
    """

    @property
    def path(self) -> str:
        """Name of the file, as work units and errors give it."""

    def pieces(self) -> tuple[int, ...] | None:
        """Rows of each piece reading can begin at without reading what lies before; None: known only by reading.

        Cost: the file's footer, or one pass over the bytes of a text file; kept after the first call."""

    def layout(self) -> Hashable:
        """Equal for files whose rows may stand in one batch (same columns and types)."""

    def read(self, start: int, stop: int | None, columns: Sequence[ColumnSpec]) -> Iterator[pa.RecordBatch]:
        """Rows [start, stop) in file order, in chunks of the reader's choice; columns the file lacks are left out.

        Raises: DataFileError naming file and, where it can, row and column."""

    def column_names(self) -> tuple[str, ...] | None:
        """Columns of the file in file order; None where each row names its own."""
