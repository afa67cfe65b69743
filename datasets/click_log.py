"""ClickLog: files as work units, work units as record batches, record batches as encoded batches."""

from __future__ import annotations

import hashlib
import math
import posixpath
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
from pyarrow import fs

from .argument_checks import whole_number
from .batch_stream import BatchStream, EncodePool, Placed, ReadPosition
from .conform import Conform
from .csv_options import CsvOptions
from .errors import ClickLogError, EmptyClickLogError
from .file_paths import find_files
from .file_reader import FileReader
from .fresh_lock import FreshLock
from .open_reader import open_reader
from .record_encoder import RecordEncoder
from .record_stage import RecordStage
from .row_order import unit_id
from .schema import ColumnSpec
from .sharding import UnitShare, shares
from .table_reader import StreamReader, TableReader, as_table
from .time_order import EARLIEST, time_values
from .unit_plan import PlannedUnit, cut_units, unit_order
from .unit_records import RowOrder, Source, UnitRecords
from .work_unit import BatchId, WorkUnit, describe_unit

BatchT = TypeVar("BatchT")
UNIT_ROWS = 65_536
FOOTER_THREADS = 8


class ClickLog:
    """A click log, read in work units of about `unit_rows` rows.

    paths:       files, globs or directories, of any number; read in the order given, each glob's files by name.
    format:      parquet, csv, ipc, json, libsvm or feasign_slot; by default told from each file's name.
    csv:         how CSV files are written.
    time_column: rows are read in its order where they are not shuffled: units by their first time, rows sorted inside.
    stages:      what records go through before they are batched, such as one part of a split.
    run:         names the run that unit ids belong to. None draws one for each object, so that two hand-written loops
                 never make the same push token; a trainer that wants a repeatable run gives its own.

    Which rows a batch holds is a function of (files, stages, unit_rows, seed, epoch, unit, batch size) alone.
    Thread safety: all methods may be called from any thread. An object can be pickled; a copy reads the same units.
    """

    def __init__(
        self,
        paths: str | Path | Iterable[str | Path],
        *,
        format: str | None = None,
        csv: CsvOptions | None = None,
        time_column: str | None = None,
        stages: Sequence[RecordStage] = (),
        unit_rows: int = UNIT_ROWS,
        run: int | None = None,
        filesystem: fs.FileSystem | None = None,
    ) -> None:
        sources: dict[str, Source] = {}
        order = []
        for file in find_files(paths, filesystem):
            order.append(file.path)
            if file.path not in sources:
                reader = open_reader(file, format, csv, unit_rows)
                sources[file.path] = Source(len(sources), reader, dict(file.partitions))
        self._set(sources, order, time_column=time_column, stages=stages, unit_rows=unit_rows, run=run)

    @classmethod
    def from_table(
        cls,
        table: object,
        *,
        time_column: str | None = None,
        stages: Sequence[RecordStage] = (),
        unit_rows: int = UNIT_ROWS,
        run: int | None = None,
    ) -> ClickLog:
        """The click log of a table in memory: pyarrow, pandas, polars, or a dict of columns."""
        reader = TableReader(as_table(table), piece_rows=unit_rows)
        return cls.over(reader, time_column=time_column, stages=stages, unit_rows=unit_rows, run=run)

    @classmethod
    def from_batches(
        cls,
        source: Callable[[], Iterable[pa.RecordBatch | pa.Table]] | Iterator[pa.RecordBatch | pa.Table],
        *,
        stages: Sequence[RecordStage] = (),
        unit_rows: int = UNIT_ROWS,
        run: int | None = None,
    ) -> ClickLog:
        """The click log of record batches from elsewhere, as one work unit that ends when the source does.

        source: called once an epoch; an iterator can be read for one epoch. One thread at a time reads it, not always
                the same one. Shuffling is within `unit_rows` rows, which are waited for: a live source wants none. Of
                several readers (`shard`, loader workers) each calls it and keeps its share of the batches."""
        return cls.over(StreamReader(source), stages=stages, unit_rows=unit_rows, run=run)

    @classmethod
    def over(
        cls,
        *readers: FileReader,
        time_column: str | None = None,
        stages: Sequence[RecordStage] = (),
        unit_rows: int = UNIT_ROWS,
        run: int | None = None,
    ) -> ClickLog:
        """The click log of readers of your own, in this order, with paths that differ."""
        sources = {reader.path: Source(number, reader, {}) for number, reader in enumerate(readers)}
        if len(sources) != len(readers):
            raise ClickLogError(f"expected readers of distinct paths, got {[reader.path for reader in readers]}")
        log = cls.__new__(cls)
        log._set(sources, list(sources), time_column=time_column, stages=stages, unit_rows=unit_rows, run=run)
        return log

    def _set(
        self,
        sources: dict[str, Source],
        order: list[str],
        *,
        time_column: str | None,
        stages: Sequence[RecordStage],
        unit_rows: int,
        run: int | None,
    ) -> None:
        if whole_number(unit_rows, "unit_rows") < 1:
            raise ClickLogError(f"expected unit_rows of at least 1, got {unit_rows}")
        self._files, self._unit_rows = order, unit_rows
        self._run = secrets.randbits(64) if run is None else whole_number(run, "run")
        self._time_column = None if time_column is None else ColumnSpec(time_column, pa.int64())
        self._records = UnitRecords(sources, tuple(stages), unit_rows, Conform())
        self._next_epoch = 0
        self._plan_lock = FreshLock()
        self._cut: tuple[PlannedUnit, ...] | None = None

    def with_stages(self, *stages: RecordStage, run: int | None = None) -> ClickLog:
        """The same click log whose records go through `stages` after its own; `run` as for a new one."""
        log = self.__class__.__new__(self.__class__)
        log._set(
            dict(self._records.sources),
            self._files,
            time_column=self._time_column.name if self._time_column is not None else None,
            stages=(*self._records.stages, *stages),
            unit_rows=self._unit_rows,
            run=run,
        )
        return log

    @property
    def run(self) -> int:
        """uint64 that the ids of this object's work units are made from."""
        return self._run

    @property
    def paths(self) -> tuple[str, ...]:
        """The files, in reading order."""
        return tuple(self._files)

    def fingerprint(self) -> str:
        """Hex digits that two click logs share whose batches of one (run, seed, epoch, batch size) hold the same rows,
        as far as names, numbers of rows and stages tell; the folder that the files lie in does not count."""
        units = [
            [(posixpath.basename(part.path), part.start, part.stop) for part in unit.slices] for unit in self._plan()
        ]
        # An address, as of a stage of your own or a function in it, is another one in each process.
        stages = [re.sub(" at 0x[0-9a-fA-F]+", "", repr(s)) for s in self._records.stages if s.kept_share != 1]
        return hashlib.sha256(repr((units, stages)).encode()).hexdigest()[:32]

    def column_names(self) -> tuple[str, ...] | None:
        """Columns of the first file with those that folders and stages add; None where each row names its own."""
        source = self._records.sources[self._files[0]]
        names = source.reader.column_names()
        if names is None:
            return None
        added = [name for stage in self._records.stages for name in stage.outputs]
        return tuple(dict.fromkeys([*names, *source.folders, *added]))

    def rows(self) -> int | None:
        """Rows of an epoch: exact, or expected where stages leave rows out; None where only reading would tell."""
        counts = [unit.rows for unit in self._plan()]
        shares_kept = [stage.kept_share for stage in self._records.stages]
        if None in counts or None in shares_kept:
            return None
        return round(sum(count or 0 for count in counts) * math.prod(share or 0.0 for share in shares_kept))

    def units(self, epoch: int, *, seed: int = 0, shuffle: bool = False) -> list[WorkUnit]:
        """Work units of an epoch in reading order; every row is in exactly one of them.

        Raises: EmptyClickLogError where there are no rows."""
        plan = self._plan()
        order = unit_order(plan, shuffle=shuffle, seed=seed, epoch=epoch)
        return [WorkUnit(unit_id(self._run, epoch, index), epoch, index, plan[index].slices) for index in order]

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

        Columns come in the order asked for; text formats give the declared types, others the file's own.
        Raises: DataFileError, MissingColumnError, both naming the file."""
        if batch_size < 1 or first_batch < 0:
            raise ClickLogError(f"expected batch_size >= 1 and first_batch >= 0, got {batch_size} and {first_batch}")
        if not columns:
            raise ClickLogError("expected at least one column to read, got none")
        order = RowOrder(shuffle, seed, None if shuffle else self._time_column)
        rows = self._plan()[unit.index].rows
        return self._records.read(unit, rows, columns, batch_size, order=order, first_batch=first_batch)

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
        shard: tuple[int, int] = (0, 1),
        prefetch: int = 2,
        threads: int = 1,
    ) -> BatchStream[BatchT]:
        """The encoded batches of one epoch, read and encoded in the background, at most `prefetch` batches ahead.

        epoch:    by default that of `start`, else the next one of this object.
        start:    go on from there; earlier rows are not given again, nor read where the format can be entered there.
        units:    read these work units, in this order, instead of the whole epoch; `start.unit` counts in them.
        shard:    (i, n) reads the i-th of n shares of the units; see `sharding.shares`.
        prefetch: 0 reads and encodes in the caller's thread.
        threads:  how many batches are encoded at a time.

        drop_remainder: leave out the last, smaller batch of each work unit."""
        if not hasattr(features, "columns"):
            raise TypeError(f"expected a feature map, or what else has columns and encodes, got {features!r}")
        batch_size, seed = whole_number(batch_size, "batch_size"), whole_number(seed, "seed")
        if not 1 <= batch_size < 1 << 31:
            raise ClickLogError(f"expected batch_size from 1 to {(1 << 31) - 1}, got {batch_size}")
        if epoch is None:
            epoch = start.epoch if start is not None else self._next_epoch
        epoch = whole_number(epoch, "epoch")
        self._next_epoch = max(self._next_epoch, epoch + 1)
        if start is None:
            start = ReadPosition(epoch)
        if start.epoch != epoch:
            raise ClickLogError(f"expected a start in epoch {epoch}, got one in epoch {start.epoch}")
        if prefetch < 0 or threads < 1:
            raise ClickLogError(f"expected prefetch >= 0 and threads >= 1, got {prefetch} and {threads}")
        if shuffle and self._time_column is not None:
            raise ClickLogError("expected shuffle=False for a click log read in time order, got shuffle=True")
        columns = [replace(spec, dictionary=True) for spec in features.columns]
        mine = shares(units if units is not None else self.units(epoch, seed=seed, shuffle=shuffle), *shard)
        begin = start

        def read() -> Iterator[tuple[pa.RecordBatch, UnitShare, ReadPosition]]:
            for number in range(begin.unit, len(mine)):
                share, first = mine[number], begin.batch if number == begin.unit else 0
                records = self.records(share.unit, columns, batch_size, seed=seed, shuffle=shuffle, first_batch=first)
                for index, batch in enumerate(records, first):
                    if index % share.parts == share.part and (batch.num_rows == batch_size or not drop_remainder):
                        yield batch, share, ReadPosition(begin.epoch, number, index + 1)

        def encode(item: tuple[pa.RecordBatch, UnitShare, ReadPosition]) -> Placed[BatchT]:
            records, share, after = item
            try:
                return Placed(features.encode(records, id=BatchId(share.id, after.batch - 1)), after)
            except Exception as error:
                # An encoder knows its batch only; add_note is Python 3.11, the attribute works everywhere.
                place = f"in batch {after.batch - 1} of {describe_unit(share.unit)}{', shuffled' if shuffle else ''}"
                found = self._row_refused(features, columns, share.unit, error)
                error.__dict__["__notes__"] = [*getattr(error, "__notes__", ()), place, *found]
                raise

        places = {share.id: number for number, share in enumerate(mine)}
        return BatchStream(EncodePool(read, encode, threads), start, prefetch, places)

    def _row_refused(
        self, features: RecordEncoder[BatchT], columns: Sequence[ColumnSpec], unit: WorkUnit, error: Exception
    ) -> list[str]:
        """Where the row that `error` speaks of stands in its file; rows of a batch may be shuffled, or left out."""
        if not isinstance(error, ValueError):
            return []  # it speaks of a column

        def is_refused(records: pa.RecordBatch) -> bool:
            try:
                features.encode(records)
            except Exception as other:
                return isinstance(other, type(error))
            return False

        found = self._records.first_refused_row(unit, columns, is_refused)
        return [] if found is None else [f"the first such row there is row {found[1]} of file {found[0]!r}"]

    def _plan(self) -> tuple[PlannedUnit, ...]:
        with self._plan_lock:
            if self._cut is None:
                readers = [source.reader for source in self._records.sources.values()]
                if len(readers) > 1:
                    # Footers of a remote log are read one round trip each; readers keep what they found.
                    with ThreadPoolExecutor(min(FOOTER_THREADS, len(readers)), "click-log-footers") as pool:
                        list(pool.map(lambda reader: reader.pieces(), readers))
                cut = cut_units((self._records.sources[path].reader for path in self._files), self._unit_rows)
                if not cut:
                    more = f" and {len(self._files) - 1} more files" if len(self._files) > 1 else ""
                    raise EmptyClickLogError(f"expected rows to read, got none in {self._files[0]!r}{more}")
                self._cut = cut if self._time_column is None else self._in_time_order(cut, self._time_column)
            return self._cut

    def _in_time_order(self, cut: tuple[PlannedUnit, ...], column: ColumnSpec) -> tuple[PlannedUnit, ...]:
        """The units by their earliest time; one pass over the time column."""
        earliest = []
        for index, unit in enumerate(cut):
            probe = WorkUnit(0, 0, index, unit.slices)
            path = unit.slices[0].path
            chunks = self._records.read(probe, unit.rows, [column], self._unit_rows)
            firsts = [int(time_values(chunk.column(0), path=path, column=column.name).min()) for chunk in chunks]
            earliest.append(min(firsts, default=EARLIEST))
        return tuple(cut[index] for index in np.argsort(np.array(earliest, np.int64), kind="stable"))
