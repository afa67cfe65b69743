"""Where the click log is cut: which rows of which files make each work unit, and in which order units come."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from .file_reader import FileReader
from .row_order import mix, permutation
from .work_unit import FileSlice


@dataclass(frozen=True, slots=True)
class PlannedUnit:
    """A unit before it has an epoch.

    rows:   how many it holds; None for a file whose rows are known only by reading it.
    stripe: units that share a stripe lie in one piece of a file (a Parquet row group) and are read in file order,
            so that the piece is decoded once; stripes are what a shuffled epoch permutes.
    """

    slices: tuple[FileSlice, ...]
    rows: int | None
    stripe: int


def cut_units(readers: Iterable[FileReader], unit_rows: int) -> tuple[PlannedUnit, ...]:
    """Units of about `unit_rows` rows (fewer than twice as many), covering every row of every file once, in file order.

    Pieces smaller than that are joined, across files too as long as their layout is the same; larger ones are cut.
    """
    cutter = _Cutter(unit_rows)
    for reader in readers:
        pieces = reader.pieces()
        if pieces is None:
            cutter.add_whole(reader.path)
            continue
        row = 0
        for rows in pieces:
            cutter.add(reader.path, row, row + rows, reader.layout())
            row += rows
    return cutter.finish()


def unit_order(units: tuple[PlannedUnit, ...], *, shuffle: bool, seed: int, epoch: int) -> tuple[int, ...]:
    """Unit indices in the order an epoch reads them: file order, or stripes permuted by (seed, epoch)."""
    if not shuffle:
        return tuple(range(len(units)))
    stripes = np.fromiter((unit.stripe for unit in units), np.int64, len(units))
    if not stripes.size:
        return ()
    order = permutation(mix(seed, epoch, 0x6F72646572), int(stripes[-1]) + 1)
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    return tuple(np.argsort(rank[stripes], kind="stable").tolist())


class _Cutter:
    def __init__(self, unit_rows: int) -> None:
        self._unit_rows = unit_rows
        self._units: list[PlannedUnit] = []
        self._stripe = 0
        self._slices: list[FileSlice] = []
        self._rows = 0
        self._layout: Hashable = None

    def add(self, path: str, start: int, stop: int, layout: Hashable) -> None:
        if start == stop:
            return
        if stop - start >= self._unit_rows:
            self._flush()
            count = max(1, round((stop - start) / self._unit_rows))
            for part in range(count):
                first = start + part * self._unit_rows
                last = stop if part == count - 1 else first + self._unit_rows
                self._units.append(PlannedUnit((FileSlice(path, first, last),), last - first, self._stripe))
            self._stripe += 1
            return
        if self._slices and layout != self._layout:
            self._flush()
        self._layout = layout
        if self._slices and (self._slices[-1].path, self._slices[-1].stop) == (path, start):
            self._slices[-1] = FileSlice(path, self._slices[-1].start, stop)
        else:
            self._slices.append(FileSlice(path, start, stop))
        self._rows += stop - start
        if self._rows >= self._unit_rows:
            self._flush()

    def add_whole(self, path: str) -> None:
        self._flush()
        self._units.append(PlannedUnit((FileSlice(path),), None, self._stripe))
        self._stripe += 1

    def finish(self) -> tuple[PlannedUnit, ...]:
        self._flush()
        return tuple(self._units)

    def _flush(self) -> None:
        if self._slices:
            self._units.append(PlannedUnit(tuple(self._slices), self._rows, self._stripe))
            self._stripe += 1
        self._slices, self._rows = [], 0
