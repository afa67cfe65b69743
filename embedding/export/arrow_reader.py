"""Reads exported tables of Arrow files, which are mapped, and Parquet files, which are decoded into memory."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .columns import ColumnSource, ExportChunk, ExportColumns


def read_arrow(source: ColumnSource) -> ExportColumns:
    """Columns of an Arrow file, and of one of erased keys. Raises: OSError, ValueError, KeyError, pa.ArrowException."""

    def read(path: str) -> pa.RecordBatchFileReader:
        return pa.ipc.open_file(source.directory.open(path))

    rows = read(source.table.files[0].path)
    batches = [rows.get_batch(index) for index in range(rows.num_record_batches)]
    return _columns_of_batches(source, batches, [read(file.path).read_all() for file in source.table.files[1:]])


def read_parquet(source: ColumnSource) -> ExportColumns:
    """Columns of a Parquet file, and of one of erased keys. Raises: as `read_arrow`."""

    def read(path: str) -> pa.Table:
        place = f"{source.directory.path}/{path}"
        return pq.read_table(place, filesystem=source.directory.filesystem, partitioning=None)

    rows = read(source.table.files[0].path).combine_chunks()
    return _columns_of_batches(source, rows.to_batches(), [read(file.path) for file in source.table.files[1:]])


def _columns_of_batches(source: ColumnSource, batches: list[pa.RecordBatch], erased: list[pa.Table]) -> ExportColumns:
    chunks = tuple(_chunk_of_batch(source, batch) for batch in batches if batch.num_rows)
    keys = [np.asarray(_column(table.combine_chunks(), source.schema.field("key"))) for table in erased]
    return ExportColumns(chunks, np.concatenate(keys) if keys else np.empty(0, np.uint64))


def _chunk_of_batch(source: ColumnSource, batch: pa.RecordBatch) -> ExportChunk:
    batch.validate()
    columns = {field.name: _column(batch, field) for field in source.schema}
    values = columns["vector"].flatten()
    if values.null_count:
        raise ValueError(f"no number in {values.null_count} places of column 'vector'")
    return ExportChunk(
        keys=columns["key"].to_numpy(),
        counts=columns["count"].to_numpy(),
        vectors=values.to_numpy().reshape(batch.num_rows, source.table.dim),
        scales=columns["scale"].to_numpy() if "scale" in columns else None,
        ids=partial(source.checked, columns["id"]) if "id" in columns else None,
    )


def _column(rows: pa.RecordBatch | pa.Table, field: pa.Field) -> pa.Array | pa.ChunkedArray:
    """The column that `field` describes. Raises: KeyError, ValueError where there is none or another."""
    column = rows.column(field.name)
    if column.type != field.type:
        raise ValueError(f"{column.type} in place of {field.type} in column {field.name!r}")
    if not field.nullable and column.null_count:
        raise ValueError(f"{column.null_count} nulls in column {field.name!r}")
    return column
