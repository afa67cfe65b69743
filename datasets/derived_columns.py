"""Stages that add columns: computed from others, or joined from a small table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from .errors import ClickLogError, DataFileError
from .record_stage import Origin, with_column
from .schema import ColumnSpec


@dataclass(frozen=True, slots=True)
class Derive:
    """Columns `outputs` that `function` computes row by row from `inputs`; it must be importable, to be pickled."""

    inputs: tuple[ColumnSpec, ...]
    outputs: tuple[str, ...]
    function: Callable[[pa.RecordBatch], Mapping[str, pa.Array]]
    kept_share: Literal[1] = 1

    def apply(self, records: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
        """See `RecordStage`. Raises: DataFileError naming the file where the function cannot take a value."""
        try:
            columns = self.function(records)
        except (pa.ArrowException, ValueError) as error:
            if isinstance(error, ClickLogError):
                raise
            raise DataFileError(
                f"expected values that {', '.join(self.outputs)} can be made from, got: {error}", path=origin.path
            ) from error
        for name in self.outputs:
            records = with_column(records, name, columns[name])
        return records


@dataclass(frozen=True, slots=True)
class Join:
    """The columns of `table` whose `key` equals the log's column `on`; null where the table has no such key.

    table: small enough for memory, with distinct keys of the type that `on` declares.
    """

    table: pa.Table
    key: str
    on: ColumnSpec
    kept_share: Literal[1] = 1

    def __post_init__(self) -> None:
        keys = self.table.column(self.key)
        if len(pc.unique(keys)) != len(keys):
            raise ClickLogError(f"expected distinct keys in column {self.key!r} of the joined table, got some twice")

    @property
    def inputs(self) -> tuple[ColumnSpec, ...]:
        """See `RecordStage`."""
        return (self.on,)

    @property
    def outputs(self) -> tuple[str, ...]:
        """See `RecordStage`."""
        return tuple(name for name in self.table.column_names if name != self.key)

    def apply(self, records: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
        """See `RecordStage`."""
        del origin
        keys = self.table.column(self.key).combine_chunks()
        rows = pc.index_in(records.column(self.on.name).cast(keys.type), value_set=keys)
        for name in self.outputs:
            records = with_column(records, name, self.table.column(name).combine_chunks().take(rows))
        return records
