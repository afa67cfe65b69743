"""Files of the value dictionary: merged over workers, read by table, with the collisions they show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..datasets.whole_file import whole_file
from .value_dictionary import ROW_GROUP_ROWS, VALUE_SCHEMA, Collision

MERGE_ROWS = 4_000_000


@dataclass(frozen=True, slots=True)
class CollisionReport:
    """Texts of one table that share a key: `expected` by chance among `texts` distinct ones, and `seen`."""

    table: str
    texts: int
    expected: float
    seen: int
    examples: tuple[Collision, ...]


def merge_values(
    paths: Iterable[str | Path], to: str | Path, *, rows_at_once: int = MERGE_ROWS
) -> list[CollisionReport]:
    """Merge spilled files of all workers into one, each (table, key) once, ascending; reports collisions by table.

    Of texts that share a key the alphabetically first is kept, whatever the order of the files.
    rows_at_once: about how many rows are in memory at a time. Raises: OSError; `to` is then untouched."""
    files = [pq.ParquetFile(path) for path in sorted(str(path) for path in paths)]
    reports = []
    try:
        with (
            whole_file(to) as partial,
            pq.ParquetWriter(partial, VALUE_SCHEMA, compression="zstd", use_dictionary=["table"]) as writer,
        ):
            for table in sorted({name for file in files for name in _tables_in(file)}):
                texts, seen = 0, 0
                examples: list[Collision] = []
                for rows in _key_ranges(files, table, rows_at_once):
                    unique = rows.group_by(["key", "value"], use_threads=False).aggregate([])
                    ordered = unique.sort_by([("key", "ascending"), ("value", "ascending")])
                    keys = ordered.column("key").to_numpy()
                    is_first = np.ones(len(keys), bool)
                    is_first[1:] = keys[1:] != keys[:-1]
                    texts += len(keys)
                    seen += int(len(keys) - is_first.sum())
                    examples += _examples(table, ordered, is_first)[: 16 - len(examples)]
                    kept = ordered.filter(pa.array(is_first))
                    named = kept.add_column(0, VALUE_SCHEMA.field("table"), pa.repeat(table, len(kept)))
                    writer.write_table(named.cast(VALUE_SCHEMA), row_group_size=ROW_GROUP_ROWS)
                reports.append(CollisionReport(table, texts, expected_collisions(texts), seen, tuple(examples)))
    finally:
        for file in files:
            file.close()
    return reports


def read_values(path: str | Path, table: str) -> pa.Table:
    """(key uint64, value large_string) of one table, ascending by key; empty where the file has none of it."""
    rows: pa.Table = pq.read_table(path, columns=["key", "value"], filters=pc.field("table") == table)
    return rows


def values_of(path: str | Path, table: str, keys: npt.NDArray[np.uint64]) -> list[str | None]:
    """The text behind each key, None where it is not known."""
    rows = read_values(path, table)
    known = rows.column("key").to_numpy()
    at = np.searchsorted(known, keys)
    found = (at < len(known)) & (known[np.minimum(at, max(len(known) - 1, 0))] == keys) if len(known) else at < 0
    taken: list[str | None] = rows.column("value").take(pa.array(at, mask=~found)).to_pylist()
    return taken


def expected_collisions(texts: int) -> float:
    """Pairs of `texts` distinct texts that chance gives one 64-bit key: n (n − 1) / 2^65."""
    return texts * (texts - 1) / 2.0**65


def _tables_in(file: pq.ParquetFile) -> set[str]:
    names: set[str] = set()
    for group in range(file.num_row_groups):
        statistics = file.metadata.row_group(group).column(0).statistics
        if statistics is not None and statistics.has_min_max and statistics.min == statistics.max:
            names.add(statistics.min)
        else:
            names.update(pc.unique(file.read_row_group(group, ["table"]).column(0)).to_pylist())
    return names


def _key_ranges(files: list[pq.ParquetFile], table: str, rows_at_once: int) -> Iterator[pa.Table]:
    """Rows of one table of all files, cut into ranges of keys, ascending; equal keys are in one range."""
    total = sum(file.metadata.num_rows for file in files)
    bits = max(0, (total // max(rows_at_once, 1)).bit_length())
    for index in range(1 << bits):
        low, high = index << (64 - bits), ((index + 1) << (64 - bits)) - 1
        parts = [rows for file in files for rows in _rows_between(file, table, low, high)]
        if parts:
            yield pa.concat_tables(parts)


def _rows_between(file: pq.ParquetFile, table: str, low: int, high: int) -> Iterator[pa.Table]:
    for group in range(file.num_row_groups):
        statistics = file.metadata.row_group(group).column(1).statistics
        if statistics is not None and statistics.has_min_max and (statistics.max < low or statistics.min > high):
            continue
        rows = file.read_row_group(group)
        key = rows.column("key")
        wanted = pc.and_(pc.equal(rows.column("table"), table), pc.and_(_at_least(key, low), _at_most(key, high)))
        kept = rows.filter(wanted).select(["key", "value"])
        if len(kept):
            yield kept


def _at_least(keys: pa.ChunkedArray, low: int) -> pa.ChunkedArray:
    return pc.greater_equal(keys, pa.scalar(low, pa.uint64()))


def _at_most(keys: pa.ChunkedArray, high: int) -> pa.ChunkedArray:
    return pc.less_equal(keys, pa.scalar(high, pa.uint64()))


def _examples(table: str, ordered: pa.Table, is_first: npt.NDArray[np.bool_]) -> list[Collision]:
    found = []
    for row in np.flatnonzero(~is_first)[:16].tolist():
        first, other = ordered.column("value")[row - 1].as_py(), ordered.column("value")[row].as_py()
        found.append(Collision(table, ordered.column("key")[row].as_py(), (first, other)))
    return found
