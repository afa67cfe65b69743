"""Chunks of any size in, record batches of one size out; shuffled within windows on the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.types as pat

from .row_order import mix, permutation

_MAX_OFFSET = (1 << 31) - 1


def joined(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of all rows of `parts`, which share a schema; a single part is given back as it is.

    Text whose bytes pass 32-bit offsets becomes the large form of its type; dictionaries are unified, or decoded where
    their index type cannot number the values of all parts."""
    if len(parts) == 1:
        return parts[0]
    table = pa.Table.from_batches(parts)
    for index, field in enumerate(table.schema):
        wider = _wider_type(field.type, table.column(index))
        if wider != field.type:
            table = table.set_column(index, pa.field(field.name, wider), table.column(index).cast(wider))
    try:
        table = table.combine_chunks()
    except pa.ArrowInvalid:
        table = decoded(table).combine_chunks()
    return table.to_batches()[0]


def windows(chunks: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of exactly `rows`, the last one shorter; slices, without a copy where no seam falls."""
    held: list[pa.RecordBatch] = []
    held_rows = 0
    for chunk in chunks:
        position = 0
        while position < chunk.num_rows:
            part = chunk.slice(position, rows - held_rows)
            position += part.num_rows
            held.append(part)
            held_rows += part.num_rows
            if held_rows == rows:
                yield joined(held)
                held, held_rows = [], 0
    if held:
        yield joined(held)


def shuffled(batches: Iterable[pa.RecordBatch], state: int, first: int = 0) -> Iterator[pa.RecordBatch]:
    """Each batch with its rows permuted by (`state`, its position); `first` is the position of the first one."""
    for position, batch in enumerate(batches, first):
        yield batch.take(pa.array(permutation(mix(state, position), batch.num_rows)))


def _wider_type(type_: pa.DataType, column: pa.ChunkedArray) -> pa.DataType:
    if (pat.is_string(type_) or pat.is_binary(type_)) and column.nbytes > _MAX_OFFSET:
        return pa.large_string() if pat.is_string(type_) else pa.large_binary()
    return type_


def decoded(table: pa.Table) -> pa.Table:
    """The table with the values of dictionaries in place of their codes."""
    types = [field.type.value_type if pat.is_dictionary(field.type) else field.type for field in table.schema]
    return table.cast(pa.schema([pa.field(name, type_) for name, type_ in zip(table.schema.names, types, strict=True)]))
