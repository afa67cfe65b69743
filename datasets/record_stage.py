"""Stages between file and batch: columns derived, rows left out, weights corrected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from .schema import ColumnSpec


@dataclass(frozen=True, slots=True)
class Origin:
    """Where records come from: data rows `first_row`, … of the `file`-th file, in one epoch's reading of a unit."""

    file: int
    first_row: int
    epoch: int
    path: str


class RecordStage(Protocol):
    """A function of record batches that treats each row by itself and its origin, so that chunking never matters.

    inputs:     columns it needs.
    outputs:    columns it adds or replaces.
    kept_share: share of the rows that come out, in expectation; None where it is not known. A stage below 1 is read
                from a unit's beginning on resume.
    """

    @property
    def inputs(self) -> tuple[ColumnSpec, ...]:
        """See the class."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """See the class."""

    @property
    def kept_share(self) -> float | None:
        """See the class."""

    def apply(self, records: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
        """The records after the stage; other columns are passed on."""


def columns_to_read(stages: Sequence[RecordStage], columns: Sequence[ColumnSpec]) -> tuple[ColumnSpec, ...]:
    """File columns that `columns` and the stages before them need, without those that a stage makes.

    A column that is asked for without a type has the one that a stage declares, and the form that the stage expects."""
    wanted = {spec.name: spec for spec in columns}
    for stage in reversed(stages):
        for name in stage.outputs:
            wanted.pop(name, None)
        for spec in stage.inputs:
            asked = wanted.get(spec.name)
            if asked is None:
                wanted[spec.name] = spec
            else:
                type_ = asked.type if asked.type is not None else spec.type
                wanted[spec.name] = replace(asked, type=type_, dictionary=asked.dictionary and spec.dictionary)
    return tuple(wanted.values())


def with_column(records: pa.RecordBatch, name: str, array: pa.Array) -> pa.RecordBatch:
    """`records` with a column added at the end, or replaced where it stands."""
    position = records.schema.get_field_index(name)
    field = pa.field(name, array.type)
    fields, arrays = list(records.schema), list(records.columns)
    if position < 0:
        return pa.RecordBatch.from_arrays([*arrays, array], schema=pa.schema([*fields, field]))
    fields[position], arrays[position] = field, array
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
