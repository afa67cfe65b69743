"""Writes tables as Parquet files: `key, id, count, clicks, vector, scale`, and erased keys in a file of their own."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from ..checkpoint.storage import Directory
from .arrow_writer import RowGatherer, end_file, erased_schema, erased_table, schema_of
from .manifest import ExportedFile
from .vectors import ExportRows, TableExport


class ParquetTableWriter:
    """One table as a Parquet file. Keys, ids and vectors are near random bits, so no dictionary is tried on them."""

    def __init__(self, directory: Directory, name: str, table: TableExport) -> None:
        self._directory, self._name, self._table = directory, name, table
        self._gatherer = RowGatherer(schema_of(table))
        self._file = directory.create(f"{name}.parquet")
        self._writer = pq.ParquetWriter(self._file, schema_of(table), compression="zstd", use_dictionary=["count"])

    def add(self, rows: ExportRows) -> None:
        """Write rows; keys ascend over all calls."""
        if (gathered := self._gatherer.add(rows)) is not None:
            self._writer.write_table(gathered)

    def finish(self, erased: npt.NDArray[np.uint64]) -> list[ExportedFile]:
        """Write the erased keys and end the files."""
        if (gathered := self._gatherer.take()) is not None:
            self._writer.write_table(gathered)
        self._writer.close()
        files = [end_file(self._file, f"{self._name}.parquet")]
        if len(erased):
            with self._directory.create(f"{self._name}.erased.parquet") as file:
                with pq.ParquetWriter(file, erased_schema(self._table), compression="zstd") as writer:
                    writer.write_table(erased_table(self._table, erased))
                files.append(end_file(file, f"{self._name}.erased.parquet"))
        return files

    def abandon(self) -> None:
        """Let go of the file; never raises."""
        # A writer that counts as open would write its footer when it is collected, into a closed file.
        self._writer.is_open = False
        self._file.abandon()
