"""Format of the row files: Arrow schemas of rows, counters and applied memory, and their NumPy views.

The bytes are described in docs/checkpoint_format.md. Every file is an Arrow IPC file whose rows ascend by key; since a
tablet is a range of the key space, rows of consecutive tablets follow each other without a mark between them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..optimizers import block_state_width
from ..table_config import TableConfig
from ..table_group import AppliedMemory, TableRows

Column = npt.NDArray[Any]

WEIGHT_DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
}

ADMISSION_SCHEMA = pa.schema([("key", pa.uint64()), ("count", pa.uint32())])
ERASED_SCHEMA = pa.schema([("key", pa.uint64()), ("version", pa.uint32())])
APPLIED_SCHEMA = pa.schema(
    [("tablet", pa.uint32()), ("unit", pa.uint64()), ("lease", pa.uint64()), ("batch", pa.int64())]
)
TABLETS_SCHEMA = pa.schema(
    [
        ("tablet", pa.uint32()),
        ("version", pa.uint32()),
        ("changes_since", pa.uint32()),
        ("erased_since", pa.uint32()),
        ("push_count", pa.uint64()),
        ("is_whole", pa.uint8()),
    ]
)


def file_name(kind: str, first_tablet: int, table_index: int | None = None, table: str = "") -> str:
    """Relative path of a file; the table's number makes it unique, its name is there for the reader's eye only."""
    if table_index is None:
        return f"{kind}/{first_tablet:05d}.arrow"
    return f"{kind}/{table_index:03d}-{safe_name(table)}.{first_tablet:05d}.arrow"


def safe_name(table: str) -> str:
    """A table's name in letters that every filesystem takes; different tables may share it."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", table)[:48]


def state_width(table: TableConfig) -> int:
    """`S`: state floats a row."""
    return sum(block_state_width(block) for block in table.blocks)


def row_schema(table: TableConfig) -> pa.Schema:
    """Schema of a table's row files: key, weights, state (absent where S = 0), count, touched_at, version, clicks
    (absent where the table keeps none)."""
    weight = pa.from_numpy_dtype(WEIGHT_DTYPES[table.dtype])
    fields = [
        pa.field("key", pa.uint64(), nullable=False),
        pa.field("weights", pa.list_(weight, table.dim), nullable=False, metadata={"dtype": table.dtype}),
    ]
    if width := state_width(table):
        fields.append(pa.field("state", pa.list_(pa.float32(), width), nullable=False))
    counters = ["count", "touched_at", "version", *(["clicks"] if table.keeps_clicks else [])]
    fields += [pa.field(name, pa.uint32(), nullable=False) for name in counters]
    return pa.schema(fields, metadata={"embershard.table": table.name})


def row_batch(schema: pa.Schema, rows: TableRows) -> pa.RecordBatch:
    """Rows as one record batch over the same memory."""
    columns = {
        "key": rows.keys,
        "weights": rows.weights,
        "state": rows.state,
        "count": rows.count,
        "touched_at": rows.touched_at,
        "version": rows.version,
        "clicks": row_clicks(rows),
    }
    return pa.RecordBatch.from_arrays([_column(field.type, columns[field.name]) for field in schema], schema=schema)


def row_clicks(rows: TableRows) -> npt.NDArray[np.uint32]:
    """(n,) clicks of the rows, zeros where none are known."""
    return rows.clicks if len(rows.clicks) else np.zeros(len(rows.keys), np.uint32)


def rows_of_batch(batch: pa.RecordBatch) -> TableRows:
    """Views of the rows of a record batch, with no counters and no erased keys."""
    names = batch.schema.names
    return TableRows(
        keys=numbers(batch, "key"),
        weights=_matrix(batch, "weights"),
        state=_matrix(batch, "state") if "state" in names else np.empty((batch.num_rows, 0), np.float32),
        count=numbers(batch, "count"),
        touched_at=numbers(batch, "touched_at"),
        version=numbers(batch, "version"),
        **_NO_EXTRAS,
        clicks=numbers(batch, "clicks") if "clicks" in names else np.empty(0, np.uint32),
    )


def slice_rows(rows: TableRows, start: int, stop: int) -> TableRows:
    """Views of rows [start, stop), with no counters and no erased keys."""
    part = slice(start, stop)
    return TableRows(
        keys=rows.keys[part],
        weights=rows.weights[part],
        state=rows.state[part],
        count=rows.count[part],
        touched_at=rows.touched_at[part],
        version=rows.version[part],
        **_NO_EXTRAS,
        clicks=rows.clicks[part],
    )


def tablet_starts(keys: Column, tablet_bits: int) -> list[int]:
    """2^tablet_bits + 1 positions in ascending `keys`: those of tablet t lie in [starts[t], starts[t + 1])."""
    bounds = np.arange(1, 1 << tablet_bits, dtype=np.uint64) << np.uint64(64 - tablet_bits)
    return [0, *np.searchsorted(keys, bounds).tolist(), len(keys)]


def concat_rows(parts: Sequence[TableRows], table: TableConfig) -> TableRows:
    """Rows of consecutive ranges as one; a single part is returned as it is, no part gives no rows."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return empty_rows(table)
    names = ("keys", "weights", "state", "count", "touched_at", "version")
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    clicks = [row_clicks(part) for part in parts] if table.keeps_clicks else [np.empty(0, np.uint32)]
    return TableRows(**columns, **_NO_EXTRAS, clicks=np.concatenate(clicks))


def empty_rows(table: TableConfig) -> TableRows:
    """No rows of a table, in its layout."""
    return TableRows(
        keys=np.empty(0, np.uint64),
        weights=np.empty((0, table.dim), WEIGHT_DTYPES[table.dtype]),
        state=np.empty((0, state_width(table)), np.float32),
        count=np.empty(0, np.uint32),
        touched_at=np.empty(0, np.uint32),
        version=np.empty(0, np.uint32),
        **_NO_EXTRAS,
    )


def non_finite_rows(rows: TableRows) -> int:
    """Rows with a weight or state value that is NaN or infinite. Cost: two sums where there are none."""
    bits = rows.weights if rows.weights.dtype == np.uint16 else None
    if bits is not None:
        weights_bad = (bits & _BFLOAT16_EXPONENT) == _BFLOAT16_EXPONENT
        bad = weights_bad.any(axis=1) if weights_bad.any() else None
    else:
        bad = _bad_rows(rows.weights)
    state_bad = _bad_rows(rows.state)
    if bad is None or state_bad is None:
        both = state_bad if bad is None else bad
        return 0 if both is None else int(np.count_nonzero(both))
    return int(np.count_nonzero(bad | state_bad))


def _bad_rows(values: Column) -> Column | None:
    """(n,) bool, or None where every value is finite: then their sum is, but for a finite one beyond float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.add.reduce(values, axis=None, dtype=np.float32)):
            return None
    bad: Column = np.logical_not(np.isfinite(values).all(axis=1))
    return bad if bad.any() else None


def record_batch(schema: pa.Schema, columns: Sequence[Column]) -> pa.RecordBatch:
    """A record batch of plain number columns."""
    return pa.RecordBatch.from_arrays(
        [_column(field.type, column) for field, column in zip(schema, columns, strict=True)], schema=schema
    )


def numbers(batch: pa.RecordBatch, name: str) -> Column:
    """A number column of a record batch as NumPy, over the same memory."""
    return _values(batch.column(name))


def sorted_memory(applied: AppliedMemory) -> AppliedMemory:
    """Applied memory in (unit, lease) order, so that equal memories have equal bytes."""
    order = np.lexsort((applied.lease, applied.unit))
    return AppliedMemory(applied.unit[order], applied.lease[order], applied.batch[order])


def _column(data_type: pa.DataType, values: Column) -> pa.Array:
    contiguous = np.ascontiguousarray(values)
    if pa.types.is_fixed_size_list(data_type):
        flat = pa.Array.from_buffers(data_type.value_type, contiguous.size, [None, pa.py_buffer(contiguous)])
        return pa.Array.from_buffers(data_type, len(contiguous), [None], children=[flat])
    return pa.Array.from_buffers(data_type, contiguous.size, [None, pa.py_buffer(contiguous)])


def _matrix(batch: pa.RecordBatch, name: str) -> Column:
    column = batch.column(name)
    width = column.type.list_size
    return _values(column.values)[column.offset * width : (column.offset + len(column)) * width].reshape(-1, width)


def _values(array: pa.Array) -> Column:
    # Not Array.to_numpy, which imports pandas: half a second in a process that does nothing else.
    dtype = np.dtype(array.type.to_pandas_dtype())
    if not len(array):
        return np.empty(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


_BFLOAT16_EXPONENT = np.uint16(0x7F80)

_NO_EXTRAS: dict[str, Column] = {
    "admission_keys": np.empty(0, np.uint64),
    "admission_counts": np.empty(0, np.uint32),
    "erased_keys": np.empty(0, np.uint64),
    "erased_versions": np.empty(0, np.uint32),
}
