"""The value dictionary: remembers the text behind keys while encoding, in bounded memory, spilled to Parquet."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..datasets.schema import ColumnSpec
from ..datasets.whole_file import whole_file
from ..datasets.work_unit import BatchId
from . import _native
from .batch import FeatureBatch
from .encode_plan import hash_of, salt_of
from .errors import FeatureMapError
from .feature_config import Categorical, Sequence
from .feature_map import FeatureMap
from .text_sources import TextSource, text_sources

VALUE_SCHEMA = pa.schema([("table", pa.string()), ("key", pa.uint64()), ("value", pa.large_string())])
ROW_GROUP_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class Collision:
    """Two texts of one table that have the same key."""

    table: str
    key: int
    values: tuple[str, str]


class ValueDictionary:
    """Encodes like its feature map, and remembers the texts of the features with `keep_values`.

    It takes the feature map's place where record batches are encoded (`columns`, `encode`), once in each worker, and
    spills to `folder/values-<worker>-<n>.parquet` (table, key, value; ascending by table and key) whenever it holds
    `memory_bytes`, and on `flush`. The files of all workers are merged by `merge_values`.

    Thread safety: `encode` and `flush` from any thread; one lock for the texts, none while encoding.
    Invariant: a text that was encoded is in memory or in a file that is complete."""

    def __init__(
        self, feature_map: FeatureMap, folder: str | Path, *, worker: str = "0", memory_bytes: int = 256 << 20
    ) -> None:
        if memory_bytes < 1 << 16:
            raise ValueError(f"expected memory_bytes of at least 65536, got {memory_bytes}")
        self._feature_map = feature_map
        self._folder, self._worker, self._memory_bytes = Path(folder), worker, memory_bytes
        self._sources = _kept_sources(feature_map)
        self._memories = {source.table: _native.TextMemory() for source in self._sources}
        self._defaults = _default_texts(feature_map)
        self._lock = threading.Lock()
        self._next_file = 0
        self._found: list[Collision] = []
        self._collisions = 0
        self._remember_defaults()

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        """The click-log columns that encoding reads."""
        return self._feature_map.columns

    @property
    def feature_map(self) -> FeatureMap:
        """The feature map that encodes."""
        return self._feature_map

    def encode(self, records: pa.RecordBatch | pa.Table, id: BatchId | None = None) -> FeatureBatch:
        """What the feature map gives for `records`; their texts are remembered. Raises: as the feature map; OSError."""
        batch = self._feature_map.encode(records, id)
        self.observe(records)
        return batch

    def observe(self, records: pa.RecordBatch | pa.Table) -> None:
        """Remember the texts of `records`. Raises: OSError where spilling fails; the texts then stay in memory."""
        chunks = [records] if isinstance(records, pa.RecordBatch) else records.to_batches()
        exported = [chunk.__arrow_c_array__() for chunk in chunks]
        with self._lock:
            for source in self._sources:
                for capsules in exported:
                    self._memories[source.table].add_records(capsules, source.column, source.rules, source.salt)
            if sum(memory.bytes for memory in self._memories.values()) >= self._memory_bytes:
                self._spill()

    def flush(self) -> None:
        """Write what is in memory to a file. Raises: OSError."""
        with self._lock:
            self._spill()

    @property
    def collisions(self) -> tuple[int, tuple[Collision, ...]]:
        """How many texts met a key that another text had, in this worker and between two spills; and the first few."""
        with self._lock:
            count = self._collisions + sum(memory.collision_count for memory in self._memories.values())
            return count, (*self._found, *self._collisions_in_memory())

    def _collisions_in_memory(self) -> list[Collision]:
        return [
            Collision(table, key, (kept.decode(errors="replace"), other.decode(errors="replace")))
            for table, memory in self._memories.items()
            for key, kept, other in memory.collisions()
        ]

    def _spill(self) -> None:
        if not any(len(memory) for memory in self._memories.values()):
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"values-{self._worker}-{self._next_file:06d}.parquet"
        while path.exists():
            self._next_file += 1
            path = self._folder / f"values-{self._worker}-{self._next_file:06d}.parquet"
        taken = {table: memory.take() for table, memory in sorted(self._memories.items())}
        try:
            write_values(path, [values_table(table, *parts) for table, parts in taken.items()])
        except OSError:
            for table, parts in taken.items():
                _put_back(self._memories[table], *parts)
            raise
        self._next_file += 1
        self._collisions += sum(memory.collision_count for memory in self._memories.values())
        self._found = [*self._found, *self._collisions_in_memory()][:16]
        self._memories = {table: _native.TextMemory() for table in self._memories}
        self._remember_defaults()

    def _remember_defaults(self) -> None:
        if self._next_file == 0:
            for table, key, text in self._defaults:
                self._memories[table].add(key, text)


def values_table(
    table: str, keys: np.ndarray[tuple[int], np.dtype[np.uint64]], offsets: np.ndarray[tuple[int], np.dtype[np.int64]],
    texts: np.ndarray[tuple[int], np.dtype[np.uint8]],
) -> pa.Table:  # fmt: skip
    """(table, key, value) rows of one table from keys and the bytes behind them; what is no UTF-8 is escaped."""
    raw = pa.Array.from_buffers(
        pa.large_binary(), len(keys), [None, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(texts)]
    )
    try:
        values = raw.cast(pa.large_string())
    except pa.ArrowInvalid:
        values = pa.array([v.decode(errors="backslashreplace") for v in raw.to_pylist()], pa.large_string())
    return pa.table([pa.repeat(table, len(keys)), pa.array(keys), values], schema=VALUE_SCHEMA)


def write_values(path: Path, tables: list[pa.Table]) -> None:
    """Write rows that are ascending by (table, key); the file appears whole or not at all. Raises: OSError."""
    with (
        whole_file(path) as partial,
        pq.ParquetWriter(partial, VALUE_SCHEMA, compression="zstd", use_dictionary=["table"]) as writer,
    ):
        for table in tables:
            writer.write_table(table, row_group_size=ROW_GROUP_ROWS)


def _kept_sources(feature_map: FeatureMap) -> list[TextSource]:
    kept = {f.name: f for f in feature_map.categorical if isinstance(f, Categorical | Sequence) and f.keep_values}
    for feature in kept.values():
        if feature.id != "text":
            raise FeatureMapError(
                f"feature {feature.name!r}: expected id text with keep_values, got {feature.id}: "
                "integer ids are recovered from their keys"
            )
    return [source for source in text_sources(feature_map) if source.feature in kept]


def _default_texts(feature_map: FeatureMap) -> list[tuple[str, int, bytes]]:
    return [
        (f.table, _native.mix64(hash_of(f.default, "text") ^ salt_of(f.key_space)), f.default.encode())
        for f in feature_map.categorical
        if isinstance(f, Categorical | Sequence) and f.keep_values and isinstance(f.default, str)
    ]


def _put_back(
    memory: _native.TextMemory, keys: np.ndarray[tuple[int], np.dtype[np.uint64]],
    offsets: np.ndarray[tuple[int], np.dtype[np.int64]], texts: np.ndarray[tuple[int], np.dtype[np.uint8]],
) -> None:  # fmt: skip
    data = texts.tobytes()
    for i, key in enumerate(keys.tolist()):
        memory.add(key, data[offsets[i] : offsets[i + 1]])
