"""Vectors that a table's rows start from, read from a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import mmh3
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet

from .initializers import key_space_salt, mix64
from .table_config import TableConfig


@dataclass(frozen=True, slots=True)
class InitVectors:
    """keys: (n,) uint64 ascending, distinct.   vectors: (n, D) float32, row i for keys[i]."""

    keys: npt.NDArray[np.uint64]
    vectors: npt.NDArray[np.float32]

    def put(self, keys: npt.NDArray[np.uint64], weights: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
        """(m,) bool: which of `keys` have a vector; their rows of `weights` (m, D) are set to it."""
        if not len(self.keys):
            return np.zeros(len(keys), np.bool_)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        known: npt.NDArray[np.bool_] = self.keys[at] == keys
        weights[known] = self.vectors[at[known]]
        return known


def load_init_vectors(config: TableConfig) -> InitVectors:
    """The vectors of `config.init_from`; none if it has no file.

    The file is Parquet (`.parquet`) or Arrow IPC (`.arrow`, `.feather`) with a column `key` (uint64) or `id` (integers
    or text, hashed into the table's key space) and a column `vector` (lists of D floats).
    Raises: FileNotFoundError; ValueError naming the file and what is wrong.
    """
    if config.init_from is None:
        return InitVectors(np.empty(0, np.uint64), np.empty((0, config.dim), np.float32))
    path = Path(config.init_from)
    where = f"({path}, table {config.name!r})"
    try:
        table = pyarrow.parquet.read_table(path) if path.suffix == ".parquet" else pyarrow.feather.read_table(path)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueError(f"expected a readable Parquet or Arrow IPC file, got: {error} {where}") from error
    if "vector" not in table.column_names or not {"key", "id"} & set(table.column_names):
        raise ValueError(f"expected columns key or id, and vector, got {table.column_names} {where}")
    keys = _keys(table, config, where)
    lists = table["vector"].combine_chunks()
    try:
        lengths = np.asarray(pa.compute.list_value_length(lists)) if len(lists) else np.empty(0, np.int64)
    except pa.ArrowNotImplementedError:
        raise ValueError(f"expected vectors of {config.dim} floats, got {lists.type} {where}") from None
    if lists.null_count or (lengths != config.dim).any():
        raise ValueError(f"expected vectors of {config.dim} floats, got other lengths or nulls {where}")
    vectors = np.asarray(lists.flatten(), np.float32).reshape(len(keys), config.dim)
    if not np.isfinite(vectors).all():
        raise ValueError(f"expected finite vectors, got others {where}")
    order = np.argsort(keys)
    keys, vectors = keys[order], np.ascontiguousarray(vectors[order])
    if len(keys) and (keys[1:] == keys[:-1]).any():
        raise ValueError(
            f"expected each key once, got key {int(keys[1:][keys[1:] == keys[:-1]][0])} more than once {where}"
        )
    return InitVectors(keys, vectors)


def _keys(table: pa.Table, config: TableConfig, where: str) -> npt.NDArray[np.uint64]:
    name = "key" if "key" in table.column_names else "id"
    column = table[name].combine_chunks()
    if column.null_count:
        raise ValueError(f"expected no null in column {name} {where}")
    if pa.types.is_integer(column.type):
        values = np.asarray(column).astype(np.uint64)
        return values if name == "key" else mix64(values ^ np.uint64(key_space_salt(config.key_space)))
    if name == "id" and (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        hashes = [mmh3.hash64(text.encode(), seed=0, signed=False)[0] for text in column.to_pylist()]
        return mix64(np.array(hashes, np.uint64) ^ np.uint64(key_space_salt(config.key_space)))
    raise ValueError(
        f"expected column {name} of integers{' or text' if name == 'id' else ''}, got {column.type} {where}"
    )
