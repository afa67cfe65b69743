"""ClickLog: files as work units, work units as record batches, record batches as encoded batches."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from pyarrow import fs

from .batch_stream import BatchStream, Placed, ReadPosition
from .conform import Conform
from .csv_reader import CsvReader
from .errors import ClickLogError, EmptyClickLogError
from .file_paths import DataFile, find_files
from .file_reader import FileReader
from .parquet_reader import ParquetReader
from .record_batches import shuffled, windows
from .record_encoder import RecordEncoder
from .row_order import mix, unit_id
from .schema import ColumnSpec
from .unit_plan import PlannedUnit, cut_units, unit_order
from .work_unit import BatchId, WorkUnit

BatchT = TypeVar("BatchT")
UNIT_ROWS = 65_536


class ClickLog:
    """A click log in files, read in work units of about `unit_rows` rows.

    paths:  files, globs or directories, of any number; read in the order given, each glob's files by name.
    format: `parquet` or `csv`; by default told from each file's name.
    run:    names the run the unit ids belong to. None draws one for each object, so that two hand-written loops never
            make the same push token; a trainer that wants a repeatable run gives its own.

    Which rows a batch holds is a function of (files, unit_rows, seed, epoch, unit, batch size) alone.
    Thread safety: all methods may be called from any thread.
    """

    def __init__(
        self,
        paths: str | Path | Iterable[str | Path],
        *,
        format: str | None = None,
        unit_rows: int = UNIT_ROWS,
        run: int | None = None,
        filesystem: fs.FileSystem | None = None,
    ) -> None:
        if unit_rows < 1:
            raise ClickLogError(f"expected unit_rows of at least 1, got {unit_rows}")
        self._unit_rows = unit_rows
        self._run = secrets.randbits(64) if run is None else run
        self._next_epoch = 0
        readers: dict[str, FileReader] = {}
        self._files = [_reader_of(file, format, readers) for file in find_files(paths, filesystem)]
        self._readers = readers
        self._conform = Conform()

    @property
    def run(self) -> int:
        """uint64 that the ids of this object's work units are made from."""
        return self._run

    @cached_property
    def _plan(self) -> tuple[PlannedUnit, ...]:
        plan = cut_units(self._files, self._unit_rows)
        if not plan:
            raise EmptyClickLogError(f"expected rows to read, got none in {len(self._files)} files")
        return plan

    def rows(self) -> int | None:
        """Rows of all files, or None where some file's are known only by reading it."""
        total = 0
        for unit in self._plan:
            if unit.rows is None:
                return None
            total += unit.rows
        return total

    def units(self, epoch: int, *, seed: int = 0, shuffle: bool = False) -> list[WorkUnit]:
        """Work units of an epoch in reading order; every row is in exactly one of them."""
        order = unit_order(self._plan, shuffle=shuffle, seed=seed, epoch=epoch)
        return [WorkUnit(unit_id(self._run, epoch, index), epoch, index, self._plan[index].slices) for index in order]

    def records(
        self,
        unit: WorkUnit,
        columns: Sequence[ColumnSpec],
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = False,
        first_batch: int = 0,
    ) -> Iterator[pa.RecordBatch]:
        """Batches `first_batch`, `first_batch` + 1, … of one work unit: `batch_size` rows each, the last one fewer.

        Raises: DataFileError, MissingColumnError naming the file."""
        if batch_size < 1 or first_batch < 0:
            raise ClickLogError(f"expected batch_size >= 1 and first_batch >= 0, got {batch_size} and {first_batch}")
        rows = self._plan[unit.index].rows
        if not shuffle:
            yield from windows(self._chunks(unit, columns, first_batch * batch_size), batch_size)
            return
        window = rows if rows is not None else self._unit_rows
        passed, inside = divmod(first_batch * batch_size, window)
        state = mix(seed, unit.epoch, unit.index, 0x726F7773)
        chunks = shuffled(windows(self._chunks(unit, columns, passed * window), window), state, first=passed)
        yield from windows(_skip_rows(chunks, inside), batch_size)

    def batches(
        self,
        features: RecordEncoder[BatchT],
        batch_size: int,
        *,
        epoch: int | None = None,
        seed: int = 0,
        shuffle: bool = False,
        drop_remainder: bool = False,
        start: ReadPosition | None = None,
        units: Sequence[WorkUnit] | None = None,
        prefetch: int = 2,
    ) -> BatchStream[BatchT]:
        """The encoded batches of one epoch, read and encoded by a background thread at most `prefetch` batches ahead.

        epoch:    by default that of `start`, else the next one of this object.
        start:    go on from there; earlier rows of the unit are not given, nor read where the format can seek.
        units:    read these work units instead of the whole epoch, in this order (`start.unit` counts in it).
        prefetch: 0 reads in the caller's thread.

        drop_remainder: leave out the last, smaller batch of each work unit."""
        if epoch is None:
            epoch = start.epoch if start is not None else self._next_epoch
        self._next_epoch = max(self._next_epoch, epoch + 1)
        if start is None:
            start = ReadPosition(epoch)
        if start.epoch != epoch:
            raise ClickLogError(f"expected a start in epoch {epoch}, got one in epoch {start.epoch}")
        order = list(units) if units is not None else self.units(epoch, seed=seed, shuffle=shuffle)

        def read() -> Iterator[Placed[BatchT]]:
            for number in range(start.unit, len(order)):
                unit, first = order[number], start.batch if number == start.unit else 0
                records = self.records(
                    unit, features.columns, batch_size, seed=seed, shuffle=shuffle, first_batch=first
                )
                for index, batch in enumerate(records, first):
                    if drop_remainder and batch.num_rows < batch_size:
                        continue
                    encoded = features.encode(batch, id=BatchId(unit.id, index))
                    yield Placed(encoded, ReadPosition(epoch, number, index + 1))

        return BatchStream(read, start, prefetch)

    def _chunks(self, unit: WorkUnit, columns: Sequence[ColumnSpec], skip: int) -> Iterator[pa.RecordBatch]:
        for part in unit.slices:
            start, stop = part.start, part.stop
            if stop is not None and skip >= stop - start:
                skip -= stop - start
                continue
            reader = self._readers[part.path]
            for chunk in reader.read(start + skip, stop, columns):
                yield self._conform(chunk, columns, reader)
            skip = 0


def _skip_rows(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if rows >= batch.num_rows:
            rows -= batch.num_rows
            continue
        yield batch.slice(rows)
        rows = 0


def _reader_of(file: DataFile, format: str | None, readers: dict[str, FileReader]) -> FileReader:
    if file.path not in readers:
        kind = format or file.format
        if kind == "parquet":
            readers[file.path] = ParquetReader(file.path, file.filesystem)
        elif kind == "csv":
            readers[file.path] = CsvReader(file.path, file.filesystem)
        else:
            raise ClickLogError(f"expected format parquet or csv, got {kind!r} (file {file.path!r})")
    return readers[file.path]
