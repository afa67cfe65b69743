"""Writes tables as Arrow files: `key, id, count, clicks, vector, scale`, and the erased keys in a file of their own."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..checkpoint.checksum_file import ChecksumFile
from ..checkpoint.storage import Directory
from .manifest import ExportedFile
from .schema import export_schema
from .vectors import ExportRows, TableExport

BATCH_BYTES = 16 << 20
"""Rows are gathered into record batches of about this size, so that a reader has few to search."""


def schema_of(table: TableExport) -> pa.Schema:
    """Columns of an exported table."""
    id = None if table.ids is None else table.ids.type
    return export_schema(id, table.options.vectors, table.dim, clicks=table.config.keeps_clicks)


def export_batch(schema: pa.Schema, rows: ExportRows) -> pa.RecordBatch:
    """Exported rows as one record batch."""
    vectors = np.ascontiguousarray(rows.vectors)
    kind = schema.field("vector").type
    flat = pa.Array.from_buffers(kind.value_type, vectors.size, [None, pa.py_buffer(vectors)])
    columns = {
        "key": pa.array(rows.keys),
        "id": rows.ids,
        "count": pa.array(rows.counts),
        "clicks": None if rows.clicks is None else pa.array(rows.clicks),
        "vector": pa.Array.from_buffers(kind, len(vectors), [None], children=[flat]),
        "scale": None if rows.scales is None else pa.array(rows.scales),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def erased_schema(table: TableExport) -> pa.Schema:
    """Columns of a delta's erased keys: key, id (where ids are known)."""
    return pa.schema([field for field in schema_of(table) if field.name in ("key", "id")])


def erased_table(table: TableExport, erased: npt.NDArray[np.uint64]) -> pa.Table:
    """Erased keys with their ids."""
    columns = [pa.array(erased)] + ([] if table.ids is None else [table.ids.of_keys(erased)])
    return pa.Table.from_arrays(columns, schema=erased_schema(table))


class RowGatherer:
    """Gathers rows into record batches of at least BATCH_BYTES."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0

    def add(self, rows: ExportRows) -> pa.Table | None:
        """The rows gathered, once there are enough."""
        if len(rows.keys):
            self._waiting.append(export_batch(self._schema, rows))
            self._bytes += self._waiting[-1].nbytes
        return self.take() if self._bytes >= BATCH_BYTES else None

    def take(self) -> pa.Table | None:
        """The rows gathered so far, as one chunk; None where there are none."""
        if not self._waiting:
            return None
        table = pa.Table.from_batches(self._waiting, self._schema).combine_chunks()
        self._waiting, self._bytes = [], 0
        return table


class ArrowTableWriter:
    """One table as an Arrow IPC file, uncompressed: readers map it."""

    def __init__(self, directory: Directory, name: str, table: TableExport) -> None:
        self._directory, self._name, self._table = directory, name, table
        self._gatherer = RowGatherer(schema_of(table))
        self._file = directory.create(f"{name}.arrow")
        self._writer = pa.ipc.new_file(self._file, schema_of(table))

    def add(self, rows: ExportRows) -> None:
        """Write rows; keys ascend over all calls."""
        if (gathered := self._gatherer.add(rows)) is not None:
            self._writer.write_table(gathered)

    def finish(self, erased: npt.NDArray[np.uint64]) -> list[ExportedFile]:
        """Write the erased keys and end the files."""
        if (gathered := self._gatherer.take()) is not None:
            self._writer.write_table(gathered)
        self._writer.close()
        files = [end_file(self._file, f"{self._name}.arrow")]
        if len(erased):
            with self._directory.create(f"{self._name}.erased.arrow") as file:
                with pa.ipc.new_file(file, erased_schema(self._table)) as writer:
                    writer.write_table(erased_table(self._table, erased))
                files.append(end_file(file, f"{self._name}.erased.arrow"))
        return files

    def abandon(self) -> None:
        """Let go of the file; never raises."""
        self._file.abandon()


def end_file(file: ChecksumFile, path: str) -> ExportedFile:
    """Close a file that is complete; its entry for the manifest."""
    file.close()
    return ExportedFile(path=path, bytes=file.tell(), sha256=file.sha256())
