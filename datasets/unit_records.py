"""Records of one work unit: chunks of its files, through the stages, in the order asked for, in batches of one size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from .conform import Conform
from .file_reader import FileReader
from .record_batches import shuffled, windows
from .record_stage import Origin, RecordStage, columns_to_read, with_column
from .row_order import mix
from .schema import ColumnSpec
from .time_order import time_values
from .work_unit import WorkUnit

_ROWS_SALT = 0x726F7773
_ROW_NUMBER = "\x00row number"  # no file has a column of this name


@dataclass(frozen=True, slots=True)
class Source:
    """A file of the click log: its place among the files, its reader, and the `key=value` folders it lies in."""

    number: int
    reader: FileReader
    folders: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class RowOrder:
    """Order of the rows inside a unit: as in the files, permuted by (seed, epoch, unit), or by a time column."""

    shuffle: bool = False
    seed: int = 0
    time_column: ColumnSpec | None = None


@dataclass(frozen=True, slots=True)
class UnitRecords:
    """Reads units of one click log.

    sources: by path.
    stages:  what the records go through, in order.
    window:  rows that are ordered at a time where a unit's rows are not known beforehand.
    """

    sources: Mapping[str, Source]
    stages: tuple[RecordStage, ...]
    window: int
    conform: Conform

    def read(
        self,
        unit: WorkUnit,
        rows: int | None,
        columns: Sequence[ColumnSpec],
        batch_size: int,
        *,
        order: RowOrder | None = None,
        first_batch: int = 0,
    ) -> Iterator[pa.RecordBatch]:
        """Batches `first_batch`, … of `unit`, which holds `rows` rows before the stages (None: not known)."""
        order = order if order is not None else RowOrder()
        skip = first_batch * batch_size
        can_skip = all(stage.kept_share == 1 for stage in self.stages)
        if not order.shuffle and order.time_column is None:
            chunks = self._chunks(unit, columns, skip if can_skip else 0)
            yield from windows(_without(chunks, 0 if can_skip else skip), batch_size)
            return
        window = max(rows if rows is not None else self.window, 1)
        passed = skip // window if can_skip else 0
        if order.time_column is not None:
            names = {spec.name for spec in columns}
            with_time = [*columns, *([] if order.time_column.name in names else [order.time_column])]
            whole = windows(self._chunks(unit, with_time, passed * window), window)
            ordered = _by_time(whole, order.time_column.name, unit.slices[0].path, [spec.name for spec in columns])
        else:
            whole = windows(self._chunks(unit, columns, passed * window), window)
            ordered = shuffled(whole, mix(order.seed, unit.epoch, unit.index, _ROWS_SALT), first=passed)
        yield from windows(_without(ordered, skip - passed * window), batch_size)

    def first_refused_row(
        self, unit: WorkUnit, columns: Sequence[ColumnSpec], is_refused: Callable[[pa.RecordBatch], bool]
    ) -> tuple[str, int] | None:
        """(file, data row counted from 1) of the first row in file order that is refused by itself, if there is one.

        None too where the unit's rows are not known beforehand: reading it again may take long, or not be possible."""
        if any(part.stop is None for part in unit.slices):
            return None
        for part in unit.slices:
            one = WorkUnit(unit.id, unit.epoch, unit.index, (part,))
            for chunk in self._chunks(one, columns, 0, numbered=True):
                numbers, records = chunk.column(_ROW_NUMBER), chunk.select([spec.name for spec in columns])
                if not is_refused(records):
                    continue
                start, stop = 0, records.num_rows
                while stop - start > 1:
                    middle = (start + stop) // 2
                    if is_refused(records.slice(start, middle - start)):
                        stop = middle
                    else:
                        start = middle
                return (part.path, numbers[start].as_py()) if is_refused(records.slice(start, 1)) else None
        return None

    def _chunks(
        self, unit: WorkUnit, columns: Sequence[ColumnSpec], skip: int, *, numbered: bool = False
    ) -> Iterator[pa.RecordBatch]:
        to_read = columns_to_read(self.stages, columns)
        names = [spec.name for spec in columns] + [_ROW_NUMBER] * numbered
        for part in unit.slices:
            if part.stop is not None and skip >= part.stop - part.start:
                skip -= part.stop - part.start
                continue
            row, skip = part.start + skip, 0
            source = self.sources[part.path]
            for chunk in source.reader.read(row, part.stop, to_read):
                records = self.conform(chunk, to_read, source.reader, source.folders)
                origin = Origin(source.number, row, unit.epoch, part.path)
                if numbered:
                    rows = pa.array(np.arange(row + 1, row + 1 + chunk.num_rows))
                    records = with_column(records, _ROW_NUMBER, rows)
                row += chunk.num_rows
                for stage in self.stages:
                    records = stage.apply(records, origin)
                yield records if records.schema.names == names else records.select(names)


def _by_time(
    batches: Iterator[pa.RecordBatch], time_column: str, path: str, names: list[str]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        # Stable, so that rows of one moment keep the order of the files.
        order = np.argsort(time_values(batch.column(time_column), path=path, column=time_column), kind="stable")
        yield batch.take(pa.array(order)).select(names)


def _without(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The batches without their first `rows` rows."""
    for batch in batches:
        if rows >= batch.num_rows:
            rows -= batch.num_rows
            continue
        yield batch.slice(rows) if rows else batch
        rows = 0
