"""MovieLens as click logs: ratings joined with users and films, a rating from `positive_from` on counts as a click.

Columns: `label` (float32), `user`, `item`, `rating`, `timestamp` (seconds), then what the edition has of `age`,
`gender`, `occupation`, `zip`, `title`, `release_year`, `genres` (list of text).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .click_log import UNIT_ROWS, ClickLog
from .csv_options import CsvOptions
from .derived_columns import Derive, Join
from .errors import EmptyClickLogError
from .record_stage import RecordStage
from .schema import ColumnSpec

_GENRES = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy",
    "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
)  # fmt: skip
_YEAR = r"\((?P<year>[0-9]{4})\)\s*$"
_PIPES = CsvOptions(delimiter="|", quote=None, header=False)
_RATING_NAMES = ("user", "item", "rating", "timestamp")


def movielens_100k(
    folder: str | Path, *, positive_from: float = 4.0, unit_rows: int = UNIT_ROWS, run: int | None = None
) -> ClickLog:
    """The click log of a folder with u.data, u.user and u.item (ml-100k)."""
    users = _table(
        _file(folder, "u.user"),
        _with_names(_PIPES, "user", "age", "gender", "occupation", "zip"),
        {"user": pa.int64(), "age": pa.int64()},
    )
    flags = [f"genre {index}" for index in range(len(_GENRES))]
    films = _table(
        _file(folder, "u.item"),
        _with_names(_PIPES, "item", "title", "released", "released on video", "url", *flags),
        {"item": pa.int64(), **dict.fromkeys(flags, pa.int8())},
    )
    genres = _lists_of_flags(films.select(flags), _GENRES)
    films = films.select(["item", "title"]).append_column("genres", genres)
    ratings = _with_names(CsvOptions(delimiter="\t", quote=None, header=False), *_RATING_NAMES)
    return _log(_file(folder, "u.data"), ratings, positive_from, users, films, unit_rows=unit_rows, run=run)


def movielens_1m(
    folder: str | Path, *, positive_from: float = 4.0, unit_rows: int = UNIT_ROWS, run: int | None = None
) -> ClickLog:
    """The click log of a folder with ratings.dat, users.dat and movies.dat (ml-1m, ml-10m without users.dat)."""
    options = CsvOptions(delimiter="::", quote=None, header=False)
    users = None
    if (Path(folder) / "users.dat").exists():
        users = _table(
            _file(folder, "users.dat"),
            _with_names(options, "user", "gender", "age", "occupation", "zip"),
            {"user": pa.int64(), "age": pa.int64()},
        )
    films = _films(_file(folder, "movies.dat"), _with_names(options, "item", "title", "genres"), "item")
    ratings = _with_names(options, *_RATING_NAMES)
    path = _file(folder, "ratings.dat", "*rating*.dat")
    return _log(path, ratings, positive_from, users, films, unit_rows=unit_rows, run=run)


def movielens_latest(
    folder: str | Path, *, positive_from: float = 4.0, unit_rows: int = UNIT_ROWS, run: int | None = None
) -> ClickLog:
    """The click log of a folder with ratings.csv and movies.csv (ml-latest, ml-latest-small, ml-20m … ml-32m)."""
    films = _films(_file(folder, "movies.csv"), CsvOptions(), "movieId")
    ratings = CsvOptions(column_names=_RATING_NAMES, header=True)
    return _log(_file(folder, "ratings.csv"), ratings, positive_from, None, films, unit_rows=unit_rows, run=run)


@dataclass(frozen=True, slots=True)
class _IsLiked:
    positive_from: float

    def __call__(self, records: pa.RecordBatch) -> dict[str, pa.Array]:
        return {
            "label": pc.greater_equal(records.column("rating").cast(pa.float64()), self.positive_from).cast("float")
        }


def _log(
    path: Path,
    csv: CsvOptions,
    positive_from: float,
    users: pa.Table | None,
    films: pa.Table,
    *,
    unit_rows: int,
    run: int | None,
) -> ClickLog:
    stages: list[RecordStage] = [
        Derive((ColumnSpec("rating", pa.float64()),), ("label",), _IsLiked(positive_from)),
        *([] if users is None else [Join(users, "user", ColumnSpec("user", pa.int64()))]),
        Join(_with_year(films), "item", ColumnSpec("item", pa.int64())),
    ]
    return ClickLog(path, format="csv", csv=csv, stages=stages, unit_rows=unit_rows, run=run)


def _films(path: Path, csv: CsvOptions, key: str) -> pa.Table:
    films = _table(path, csv, {key: pa.int64()}).select([key, "title", "genres"])
    genres = pc.split_pattern(films.column("genres"), "|")
    return films.set_column(2, "genres", genres).rename_columns(["item", "title", "genres"])


def _with_year(films: pa.Table) -> pa.Table:
    found = pc.struct_field(pc.extract_regex(films.column("title"), _YEAR), "year")
    return films.append_column("release_year", found.cast(pa.int64()))


def _lists_of_flags(flags: pa.Table, names: tuple[str, ...]) -> pa.Array:
    matrix = np.column_stack([column.to_numpy() for column in flags.columns]) != 0
    offsets = np.concatenate(([0], np.cumsum(matrix.sum(axis=1)))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(names).take(pa.array(np.nonzero(matrix)[1])))


def _table(path: Path, csv: CsvOptions, types: dict[str, pa.DataType]) -> pa.Table:
    """All rows of a small file; columns that `types` does not name are text."""
    log = ClickLog(path, format="csv", csv=csv.model_copy(update={"encoding": _encoding(path)}), run=0)
    columns = [ColumnSpec(name, types.get(name, pa.string())) for name in log.column_names() or ()]
    return pa.Table.from_batches(
        [batch for unit in log.units(0) for batch in log.records(unit, columns, UNIT_ROWS)]
    ).combine_chunks()


def _encoding(path: Path) -> str:
    """UTF-8 where the file is; older editions are latin-1, but many copies of them have been converted."""
    try:
        path.read_bytes().decode()
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8"


def _with_names(csv: CsvOptions, *names: str) -> CsvOptions:
    return csv.model_copy(update={"column_names": names})


def _file(folder: str | Path, *names: str) -> Path:
    """The first of `names` (patterns) that `folder` has."""
    for name in names:
        for path in sorted(Path(folder).glob(name)):
            return path
    raise EmptyClickLogError(f"expected a folder with {names[0]}, got {str(folder)!r}")
