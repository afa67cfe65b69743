"""Users' interactions as a click log with histories: the next item against drawn ones, as DIN and SASRec train.

Row 0 of each target is the item the user took next (`label` 1), the rows after it are items drawn for contrast
(`label` 0). Columns: `label`, `user`, `item`, `history` (the items before, oldest first), `steps_to_last` (0 for the
user's last interaction, −1 for the one before, …: `cut: 0` evaluates on last interactions), and where the source has
them `category`, `category_history`, `time`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .click_log import UNIT_ROWS, ClickLog
from .csv_options import CsvOptions
from .errors import ClickLogError
from .row_order import hashes, mix
from .schema import ColumnSpec

Ints = npt.NDArray[np.int64]
_CHUNK_ROWS = 16_384


@dataclass(frozen=True, slots=True)
class Interactions:
    """Who took what and when; all (n,) int64, in the order of each user's time or with `time` to sort by."""

    user: Ints
    item: Ints
    category: Ints | None = None
    time: Ints | None = None

    def by_user(self) -> Interactions:
        """The same interactions, each user's together and in time order; ties keep their order."""
        order = np.argsort(self.user, kind="stable") if self.time is None else np.lexsort((self.time, self.user))
        return Interactions(
            self.user[order],
            self.item[order],
            None if self.category is None else self.category[order],
            None if self.time is None else self.time[order],
        )


class InteractionReader:
    """`FileReader` of the rows made from interactions; histories are cut out when they are read, not kept.

    history: items of a history at most.   negatives: drawn items for each one taken, uniformly over all items but it.
    Thread safety: immutable.
    """

    def __init__(
        self, interactions: Interactions, path: str, *, history: int = 50, negatives: int = 1, seed: int = 0
    ) -> None:
        if history < 1 or negatives < 0:
            raise ClickLogError(f"expected history >= 1 and negatives >= 0, got {history} and {negatives}")
        self._path, self._history, self._negatives, self._seed = path, history, negatives, seed
        self._all = interactions.by_user()
        user = self._all.user
        starts = np.flatnonzero(np.concatenate(([True], user[1:] != user[:-1]))) if user.size else np.zeros(0, np.int64)
        lengths = np.diff(np.append(starts, user.size))
        self._first = np.repeat(starts, lengths)
        self._last = np.repeat(starts + lengths - 1, lengths)
        self._targets = np.flatnonzero(np.arange(user.size) > self._first)
        self._items, last_seen = np.unique(self._all.item[::-1], return_index=True)
        category = self._all.category
        self._item_category = None if category is None else category[::-1][last_seen]
        if negatives and self._items.size == 1:
            raise ClickLogError(f"expected at least two items to draw from, got one (file {path!r})")

    @property
    def path(self) -> str:
        """See `FileReader`."""
        return self._path

    def pieces(self) -> tuple[int, ...]:
        """Reading can begin at any row."""
        rows = self._targets.size * (1 + self._negatives)
        return tuple(min(_CHUNK_ROWS, rows - start) for start in range(0, rows, _CHUNK_ROWS))

    def layout(self) -> Hashable:
        """Names of the columns."""
        return self.column_names()

    def column_names(self) -> tuple[str, ...]:
        """See the module."""
        with_category = ("category", "category_history") if self._all.category is not None else ()
        with_time = ("time",) if self._all.time is not None else ()
        return ("label", "user", "item", "history", "steps_to_last", *with_category, *with_time)

    def read(self, start: int, stop: int | None, columns: Sequence[ColumnSpec]) -> Iterator[pa.RecordBatch]:
        """See `FileReader`."""
        rows = self._targets.size * (1 + self._negatives)
        stop = rows if stop is None else stop
        names = [spec.name for spec in columns if spec.name in self.column_names()] or ["label"]
        for first in range(start, stop, _CHUNK_ROWS):
            yield self._chunk(np.arange(first, min(first + _CHUNK_ROWS, stop)), names)

    def _chunk(self, rows: Ints, names: Sequence[str]) -> pa.RecordBatch:
        target = self._targets[rows // (1 + self._negatives)]
        is_taken = rows % (1 + self._negatives) == 0
        place = np.searchsorted(self._items, self._all.item[target])
        # One of the others: a draw over one item less, moved past the taken one.
        draws = hashes(mix(self._seed), int(rows[0]), rows.size) % np.uint64(max(self._items.size - 1, 1))
        drawn = draws.astype(np.int64)
        drawn += drawn >= place
        place = np.where(is_taken, place, drawn)
        begin = np.maximum(self._first[target], target - self._history)
        arrays = {
            "label": lambda: pa.array(is_taken.astype(np.float32)),
            "user": lambda: pa.array(self._all.user[target]),
            "item": lambda: pa.array(self._items[place]),
            "steps_to_last": lambda: pa.array(target - self._last[target]),
            "history": lambda: _lists(self._all.item, begin, target),
        }
        category, time = self._all.category, self._all.time
        if category is not None and self._item_category is not None:
            of_item = self._item_category
            arrays["category"] = lambda: pa.array(of_item[place])
            arrays["category_history"] = lambda: _lists(category, begin, target)
        if time is not None:
            arrays["time"] = lambda: pa.array(time[target])
        return pa.RecordBatch.from_arrays([arrays[name]() for name in names], names=list(names))


def sasrec_interactions(path: str | Path, *, unit_rows: int = UNIT_ROWS, run: int | None = None) -> ClickLog:
    """SASRec's files: `user item` on each line, each user's in time order."""
    csv = CsvOptions(delimiter=" ", quote=None, column_names=("user", "item"), header=False)
    return _open(path, csv, ("user", "item", None, None), unit_rows, run)


def amazon_interactions(path: str | Path, *, unit_rows: int = UNIT_ROWS, run: int | None = None) -> ClickLog:
    """Amazon reviews as CSV with the header `user_id,item_id,time,cate_id`."""
    return _open(path, CsvOptions(), ("user_id", "item_id", "cate_id", "time"), unit_rows, run)


def taobao_user_behavior(path: str | Path, *, unit_rows: int = UNIT_ROWS, run: int | None = None) -> ClickLog:
    """Taobao's UserBehavior.csv: user, item, category, behaviour and time, no header; all behaviours count alike."""
    csv = CsvOptions(column_names=("user", "item", "category", "behavior", "time"), header=False)
    return _open(path, csv, ("user", "item", "category", "time"), unit_rows, run)


def _open(
    path: str | Path, csv: CsvOptions, names: tuple[str, str, str | None, str | None], unit_rows: int, run: int | None
) -> ClickLog:
    log = ClickLog(path, format="csv", csv=csv, run=0)
    columns = [ColumnSpec(name, pa.int64()) for name in names if name is not None]
    parts: list[list[Ints]] = [[] for _ in columns]
    for unit in log.units(0):
        for batch in log.records(unit, columns, UNIT_ROWS):
            for part, column in zip(parts, batch.columns, strict=True):
                part.append(column.to_numpy(zero_copy_only=False))
    found = dict(zip([spec.name for spec in columns], map(np.concatenate, parts), strict=True))
    user, item, category, time = (None if name is None else found[name] for name in names)
    if user is None or item is None:
        raise ClickLogError("expected a user and an item column")
    return ClickLog.over(
        InteractionReader(Interactions(user, item, category, time), str(path)), unit_rows=unit_rows, run=run
    )


def _lists(values: Ints, begin: Ints, end: Ints) -> pa.ListArray:
    """List i is values[begin[i] : end[i]]."""
    lengths = end - begin
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    places = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - begin, lengths)
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values[places]))
