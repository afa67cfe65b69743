"""Columns of an exported table: their names, order and types, as writers give and readers expect them."""

from __future__ import annotations

import pyarrow as pa

from .manifest import IdType, VectorType

ID_TYPES: dict[IdType, pa.DataType] = {"int64": pa.int64(), "uint64": pa.uint64(), "text": pa.large_string()}
_VALUE_TYPES: dict[VectorType, pa.DataType] = {"float32": pa.float32(), "float16": pa.float16(), "int8": pa.int8()}


def export_schema(id: IdType | None, vectors: VectorType, dim: int, *, clicks: bool) -> pa.Schema:
    """key, id (where ids are known), count, clicks (where kept), vector of `dim` values, scale (int8); nulls in ids."""
    fields = [pa.field("key", pa.uint64(), nullable=False)]
    if id is not None:
        fields.append(pa.field("id", ID_TYPES[id]))
    fields.append(pa.field("count", pa.uint32(), nullable=False))
    if clicks:
        fields.append(pa.field("clicks", pa.uint32(), nullable=False))
    value = pa.field("item", _VALUE_TYPES[vectors], nullable=False)
    fields.append(pa.field("vector", pa.list_(value, dim), nullable=False))
    if vectors == "int8":
        fields.append(pa.field("scale", pa.float32(), nullable=False))
    return pa.schema(fields)
