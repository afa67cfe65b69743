"""Entries of lookups read from their files, once, so that a feature map holds all that its keys depend on."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from .errors import FeatureMapError
from .feature_columns import rules_of
from .feature_config import FeatureMapConfig, Id, Lookup

MAX_ENTRIES = 100_000
_TYPES = {"int64": pa.int64(), "uint64": pa.uint64(), "text": pa.string()}


def with_entries(config: FeatureMapConfig, folder: Path) -> FeatureMapConfig:
    """`config` with the entries of every lookup's file in its place; paths are relative to `folder`.

    Rows with a null are left out; of equal keys the first row counts.
    Raises: FeatureMapError naming feature, file and column."""
    if not any(isinstance(f, Lookup) and f.file is not None for f in config.features):
        return config
    features = []
    for feature in config.features:
        if not isinstance(feature, Lookup) or feature.file is None:
            features.append(feature)
            continue
        ids = [rule.id for rule in rules_of(feature, config)]
        entries = _read(feature, folder / feature.file, ids)
        features.append(feature.model_copy(update={"entries": entries, "file": None, "keys": (), "result": ""}))
    return config.model_copy(update={"features": tuple(features)})


def with_absolute_files(config: FeatureMapConfig, folder: Path) -> FeatureMapConfig:
    """`config` whose lookups find their files from any folder; paths are relative to `folder`."""
    features = [
        f.model_copy(update={"file": str((folder / f.file).absolute())})
        if isinstance(f, Lookup) and f.file is not None
        else f
        for f in config.features
    ]
    return config.model_copy(update={"features": tuple(features)})


def _read(feature: Lookup, path: Path, ids: list[Id]) -> tuple[tuple[int | str, ...], ...]:
    where = f"feature {feature.name!r}: file {str(path)!r}"
    types = dict(zip((*feature.keys, feature.result), (_TYPES[id] for id in (*ids, feature.id)), strict=True))
    try:
        if path.suffix in (".parquet", ".pq"):
            table = pq.read_table(path, columns=list(types))
        else:
            options = pa.csv.ConvertOptions(column_types=types, include_columns=list(types), strings_can_be_null=False)
            table = pa.csv.read_csv(path, convert_options=options)
        table = table.select(list(types)).cast(pa.schema(list(types.items())))
    except (pa.ArrowException, KeyError, OSError) as error:
        if not path.is_file():
            raise FeatureMapError(f"{where}: expected a Parquet or CSV file, nothing is there") from None
        wanted = ", ".join(f"{name} ({type_})" for name, type_ in types.items())
        raise FeatureMapError(f"{where}: expected columns {wanted}, got: {error}") from None
    if table.num_rows > MAX_ENTRIES:
        raise FeatureMapError(f"{where}: expected at most {MAX_ENTRIES:,} rows, got {table.num_rows:,}")
    rows = zip(*(table.column(name).to_pylist() for name in types), strict=True)
    return tuple(dict.fromkeys(row for row in rows if None not in row))
