"""Where the texts of text features lie in the click log, and a bounded memory of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from . import _native
from .encode_plan import PlanBuilder, salt_of
from .feature_config import Categorical, Sequence
from .feature_map import FeatureMap


@dataclass(frozen=True, slots=True)
class TextSource:
    """A feature whose values are texts of one column, read by `rules`, keyed under `salt` in `table`."""

    feature: str
    table: str
    column: str
    rules: dict[str, Any]
    salt: int


def text_sources(feature_map: FeatureMap) -> list[TextSource]:
    """One for each categorical feature or sequence of text ids."""
    builder = PlanBuilder(feature_map.config)
    return [
        TextSource(f.name, f.table, f.column, builder.value_rules(f), salt_of(f.key_space))
        for f in feature_map.categorical
        if isinstance(f, Categorical | Sequence) and f.id == "text"
    ]


class TextSample:
    """The first texts of each table, until `memory_bytes` of them are held: enough to show what frequent keys mean.

    Thread safety: none."""

    def __init__(self, feature_map: FeatureMap, memory_bytes: int = 64 << 20) -> None:
        self._sources = text_sources(feature_map)
        self._memories = {source.table: _native.TextMemory() for source in self._sources}
        self._memory_bytes = memory_bytes

    def add(self, records: pa.RecordBatch | pa.Table) -> None:
        """Remember the texts of `records`, while there is room."""
        if not self._sources or sum(memory.bytes for memory in self._memories.values()) > self._memory_bytes:
            return
        for chunk in [records] if isinstance(records, pa.RecordBatch) else records.to_batches():
            capsules = chunk.__arrow_c_array__()
            for source in self._sources:
                self._memories[source.table].add_records(capsules, source.column, source.rules, source.salt)

    def find(self, table: str, key: int) -> str | None:
        """The text behind a key, or None."""
        memory = self._memories.get(table)
        text = None if memory is None else memory.find(key)
        return None if text is None else text.decode(errors="backslashreplace")
