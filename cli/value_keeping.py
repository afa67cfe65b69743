"""Keeps the text behind keys (features with `keep_values`) beside a run's checkpoints, and finds it for an export."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from ..datasets.record_stage import Origin
from ..datasets.schema import ColumnSpec
from ..feature_map import FeatureMap
from ..feature_map.value_dictionary import ValueDictionary
from ..feature_map.value_files import CollisionReport, merge_values, read_values

VALUES_FOLDER = "values"


class ValueKeeper:
    """A record stage that remembers texts as they are read; `save` adds them to a folder of the run.

    The run's folder need not be there yet: until `save` texts wait in memory and in a temporary folder.
    Thread safety: that of `ValueDictionary`; `save` from one thread.
    """

    def __init__(self, features: FeatureMap, worker: str) -> None:
        self._waiting = Path(tempfile.mkdtemp(prefix="embershard-values-"))
        self._dictionary = ValueDictionary(features, self._waiting, worker=worker)

    @staticmethod
    def is_needed(features: FeatureMap) -> bool:
        """Whether any feature wants its texts kept."""
        return any(getattr(feature, "keep_values", False) for feature in features.features)

    @property
    def inputs(self) -> tuple[ColumnSpec, ...]:
        """See `RecordStage`."""
        return self._dictionary.columns

    @property
    def outputs(self) -> tuple[str, ...]:
        """See `RecordStage`."""
        return ()

    @property
    def kept_share(self) -> float:
        """See `RecordStage`."""
        return 1.0

    def apply(self, records: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
        """Remember the texts of `records`, which are passed on as they are."""
        self._dictionary.observe(records)
        return records

    def save(self, folder: Path) -> None:
        """Move everything remembered so far into `folder`. Raises: OSError."""
        self._dictionary.flush()
        for path in sorted(self._waiting.glob("values-*.parquet")):
            folder.mkdir(parents=True, exist_ok=True)
            shutil.move(path, folder / path.name)

    def close(self) -> None:
        """Remove the temporary folder with what was not saved; idempotent."""
        shutil.rmtree(self._waiting, ignore_errors=True)


def kept_values(checkpoint: Path, tables: tuple[str, ...]) -> tuple[Mapping[str, pa.Table], list[CollisionReport]]:
    """Per table, the texts that the run of a checkpoint kept, and the collisions seen; empty where it kept none."""
    files = sorted((checkpoint.parent.parent / VALUES_FOLDER).glob("values-*.parquet"))
    if not files:
        return {}, []
    with tempfile.TemporaryDirectory(prefix="embershard-values-") as folder:
        merged = Path(folder) / "merged.parquet"
        reports = merge_values(files, merged)
        return {table: read_values(merged, table) for table in tables}, reports
