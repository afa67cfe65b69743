"""EmbeddingReader: vectors of an export by raw feature values, for serving; needs no torch and no store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import fs as pafs

from ..feature_map import Categorical, FeatureMap, Numeric
from ..feature_map import Sequence as SequenceFeature
from .checkpoint.storage import Directory, Verify, check_verify
from .errors import CheckpointMismatchError, CorruptCheckpointError
from .export.columns import ExportChunk, ExportColumns
from .export.manifest import ExportManifest
from .export.storage import read_export_manifest
from .export.table_reader import read_columns
from .export.vectors import restore_float32
from .table_group import as_keys

Keys = npt.NDArray[np.uint64]
Vectors = npt.NDArray[np.float32]


class EmbeddingReader:
    """Vectors of an export, with the deltas that came after it laid over it.

        reader = EmbeddingReader("exports/day-1", "exports/day-2-delta")
        vectors = reader.lookup("user", [17, 23, None])      # (3, D) float32

    Files are mapped into memory where the format allows (Arrow, safetensors, .npy), so opening costs no reading and
    processes share the pages. Values go through the feature map that the run was trained with, which the export holds.

    Thread safety: `lookup` from any thread. Invariants: 1. a key without a row gets the table's `unseen` vector.
    2. of layers that know a key, the last one given decides.
    """

    def __init__(
        self,
        path: str | Path,
        *deltas: str | Path,
        filesystem: pafs.FileSystem | None = None,
        verify: Verify = "sizes",
    ) -> None:
        """path: a full export.   deltas: each a delta to the one before it, in order.

        verify: `contents` reads every file once, compares its sha256, and looks whether keys ascend.
        Raises: CorruptCheckpointError naming the file, also for columns that do not fit the manifest;
                CheckpointMismatchError for a delta that does not follow.
        """
        check_verify(verify)
        layers = [read_export_manifest(place, filesystem) for place in (path, *deltas)]
        _check_chain([manifest for _, manifest in layers])
        if verify == "contents":
            for directory, manifest in layers:
                _verify(directory, manifest)
        self.manifest = layers[-1][1]
        self.path = str(path)
        saved = self.manifest.feature_map
        self.features: FeatureMap | None = (
            None if saved is None else FeatureMap.from_dict(saved, f"{path}: feature map")
        )
        self._tables = {
            table.name: _Table(layers, table.name, check_order=verify == "contents") for table in layers[0][1].tables
        }

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables."""
        return tuple(self._tables)

    def lookup(self, feature: str, values: Any) -> Vectors:
        """(n, D) float32 vectors of raw values of a feature, in their order.

        values: NumPy or Arrow array or sequence of n ids or texts, as the click log has them; of tuples for a feature
                made from several columns. None is a missing value: its trained vector where the feature learns one.
        Raises: KeyError for a feature or table that is not in the export; the errors of the feature map for values.
        """
        features = self._feature_map()
        found = features.feature(feature)
        if isinstance(found, Numeric):
            raise KeyError(f"expected a feature with vectors, got numeric feature {feature!r}")
        if isinstance(values, str | bytes) or not isinstance(values, Iterable) or getattr(values, "ndim", 1) != 1:
            raise TypeError(f"expected a sequence of values of feature {feature!r}, got {values!r}")
        table = self._table(found.table)
        if not isinstance(found, Categorical | SequenceFeature):
            return table.lookup(np.array([features.key(feature, value) for value in values], np.uint64))
        try:
            array = _array_of(values)
        except (pa.ArrowException, OverflowError) as error:  # of several types, or beyond 64 bits
            raise TypeError(f"expected ids or texts of feature {feature!r}, got others: {error}") from None
        if pa.types.is_nested(array.type):
            raise TypeError(f"expected one id or text a value of feature {feature!r}, got {array.type}")
        if array.null_count == 0:
            return table.lookup(features.encode_values(feature, array))
        is_null = np.asarray(array.is_null().to_numpy(zero_copy_only=False))
        vectors = np.zeros((len(array), table.dim), np.float32)
        vectors[~is_null] = table.lookup(features.encode_values(feature, array.drop_null()))
        if isinstance(found, Categorical) and found.missing == "learn":
            vectors[is_null] = table.lookup(np.array([features.key(feature, None)], np.uint64))
        return vectors

    def lookup_keys(self, table: str, keys: npt.ArrayLike) -> Vectors:
        """(n, D) float32 vectors of keys; keys may repeat."""
        return self._table(table).lookup(as_keys(keys))

    def contains(self, table: str, keys: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """(n,) bool: which keys have a row."""
        return self._table(table).contains(as_keys(keys))

    def rows(self, table: str) -> int:
        """Number of rows, over all layers."""
        return sum(len(keys) for keys, _, _ in self._table(table).scan())

    def scan(self, table: str) -> Iterator[tuple[Keys, npt.NDArray[np.uint32], Vectors]]:
        """Runs of (keys, counts, vectors) that together are all rows, each run ascending by key; newest layer first."""
        return self._table(table).scan()

    def ids(self, table: str) -> pa.ChunkedArray:
        """(n,) raw ids of all rows, in the order of `scan`; null for the missing key and for text that was not kept.

        Raises: KeyError for a table whose export has no ids.
        """
        found = self.manifest.table(table)
        if found.id is None:
            raise KeyError(f"expected a table with raw ids, got {table!r} (a cross, or text without a dictionary)")
        return self._table(table).ids()

    def _feature_map(self) -> FeatureMap:
        if self.features is None:
            raise KeyError(f"expected an export with a feature map, got one without ({self.path}); use lookup_keys")
        return self.features

    def _table(self, name: str) -> _Table:
        try:
            return self._tables[name]
        except KeyError:
            raise KeyError(f"expected one of tables {list(self._tables)}, got {name!r}") from None


class _Table:
    """One table over all layers, newest first."""

    def __init__(self, layers: Sequence[tuple[Directory, ExportManifest]], name: str, *, check_order: bool) -> None:
        self._layers = []
        for directory, manifest in reversed(layers):
            columns = read_columns(directory, manifest.table(name), manifest.options, check_order=check_order)
            self._layers.append(_Layer(columns))
        newest = layers[-1][1].table(name)
        self.dim = newest.dim
        self._unseen = np.array(newest.unseen, np.float32)
        tablets = len(layers[-1][1].changes_since)
        self._tablet_shift = np.uint64(64 - (tablets.bit_length() - 1))
        self._unseen_rows: Vectors | None = None
        if newest.unseen_rows:
            self._unseen_rows = np.zeros((tablets, self.dim), np.float32)
            for row in newest.unseen_rows:
                self._unseen_rows[row.tablet] = row.vector

    def lookup(self, keys: Keys) -> Vectors:
        if self._unseen_rows is None:
            vectors = np.empty((len(keys), self.dim), np.float32)
            vectors[:] = self._unseen
        elif len(self._unseen_rows) == 1:
            vectors = np.repeat(self._unseen_rows, len(keys), axis=0)
        else:
            vectors = self._unseen_rows[(keys >> self._tablet_shift).astype(np.intp)]
        # In key order the bisections walk through the file once, in place of jumping about in it.
        rows = np.argsort(keys)
        for layer in self._layers:
            rows = rows[layer.fill(keys[rows], rows, vectors)]
            if not len(rows):
                break
        return vectors

    def contains(self, keys: Keys) -> npt.NDArray[np.bool_]:
        found, decided = np.zeros(len(keys), np.bool_), np.zeros(len(keys), np.bool_)
        for layer in self._layers:
            here, gone = layer.knows(keys)
            found |= here & ~decided
            decided |= here | gone
        return found

    def scan(self) -> Iterator[tuple[Keys, npt.NDArray[np.uint32], Vectors]]:
        for chunk, wanted in self._current():
            if wanted.all():
                yield chunk.keys, chunk.counts, restore_float32(chunk.vectors, chunk.scales)
            else:
                scales = None if chunk.scales is None else chunk.scales[wanted]
                yield chunk.keys[wanted], chunk.counts[wanted], restore_float32(chunk.vectors[wanted], scales)

    def ids(self) -> pa.ChunkedArray:
        chunks = [chunk.ids().filter(pa.array(wanted)) for chunk, wanted in self._current() if chunk.ids is not None]
        return pa.chunked_array(chunks) if chunks else pa.chunked_array([], pa.null())

    def _current(self) -> Iterator[tuple[ExportChunk, npt.NDArray[np.bool_]]]:
        """Chunks with rows that no newer layer has replaced, and which rows those are; newest layer first."""
        for index, layer in enumerate(self._layers):
            for chunk in layer.columns.chunks:
                wanted = np.ones(len(chunk.keys), np.bool_)
                for newer in self._layers[:index]:
                    here, gone = newer.knows(chunk.keys)
                    wanted &= ~(here | gone)
                if wanted.any():
                    yield chunk, wanted


class _Layer:
    """Chunks of one export of one table, searched by bisection over their sorted keys."""

    def __init__(self, columns: ExportColumns) -> None:
        self.columns = columns
        self._first = np.array([chunk.keys[0] for chunk in columns.chunks], np.uint64)

    def fill(self, keys: Keys, rows: npt.NDArray[np.intp], out: Vectors) -> npt.NDArray[np.bool_]:
        """Write the vectors of the keys that are here to out[rows]; which keys an older layer has to answer for."""
        left = ~_is_in(keys, self.columns.erased)
        for chunk, positions, places in self._places(keys):
            vectors = chunk.vectors[places]
            out[rows[positions]] = restore_float32(vectors, None if chunk.scales is None else chunk.scales[places])
            left[positions] = False
        return left

    def knows(self, keys: Keys) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Which keys have a row here, and which were erased."""
        here = np.zeros(len(keys), np.bool_)
        for _, positions, _ in self._places(keys):
            here[positions] = True
        return here, _is_in(keys, self.columns.erased)

    def _places(self, keys: Keys) -> Iterator[tuple[ExportChunk, npt.NDArray[np.intp], npt.NDArray[np.intp]]]:
        """Per chunk: which of `keys` are in it, and at which rows."""
        if not len(self._first):
            return
        of_chunk = np.searchsorted(self._first, keys, side="right") - 1
        for index in np.unique(of_chunk[of_chunk >= 0]).tolist():
            chunk = self.columns.chunks[index]
            positions = np.arange(len(keys)) if len(self._first) == 1 else np.flatnonzero(of_chunk == index)
            places = np.searchsorted(chunk.keys, keys[positions])
            found = places < len(chunk.keys)
            found[found] = chunk.keys[places[found]] == keys[positions][found]
            if found.any():
                yield chunk, positions[found], places[found]


def _is_in(keys: Keys, sorted_keys: Keys) -> npt.NDArray[np.bool_]:
    if not len(sorted_keys):
        return np.zeros(len(keys), np.bool_)
    places = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    return np.asarray(sorted_keys[places] == keys)


def _array_of(values: Any) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    values = list(values) if isinstance(values, Iterator) else values
    try:
        return pa.array(values)
    except OverflowError:  # Arrow takes whole numbers for int64 unless it is told
        return pa.array(values, pa.uint64())


def _check_chain(manifests: Sequence[ExportManifest]) -> None:
    if manifests[0].since is not None:
        raise CheckpointMismatchError("expected a full export first, got a delta")
    for before, delta in pairwise(manifests):
        if delta.since is None:
            raise CheckpointMismatchError("expected a delta after the first export, got a full one")
        if delta.since != before.changes_since:
            raise CheckpointMismatchError("expected a delta to the export before it, got one to another")
        names = [{table.name for table in manifest.tables} for manifest in (before, delta)]
        if names[0] != names[1]:
            raise CheckpointMismatchError(f"expected a delta of tables {sorted(names[0])}, got {sorted(names[1])}")


def _verify(directory: Directory, manifest: ExportManifest) -> None:
    for table in manifest.tables:
        for file in table.files:
            if (digest := directory.sha256(file.path)) != file.sha256:
                raise CorruptCheckpointError(
                    f"{directory.path}/{file.path}: expected sha256 {file.sha256}, got {digest}: the file is damaged"
                )
