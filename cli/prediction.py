"""Predictions of a click log, written row by row beside the columns that identify the rows."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from ..datasets.record_batches import decoded
from ..datasets.schema import ColumnSpec
from ..datasets.whole_file import naming_file, whole_file
from ..datasets.work_unit import BatchId
from ..feature_map import FeatureBatch, FeatureMap
from ..models.evaluation import predict
from .console import is_given_up
from .data_config import other_log
from .errors import UsageError
from .evaluation import open_trained

PROBABILITY = "probability"


@dataclass(frozen=True, slots=True)
class KeptBatch:
    """A feature batch and the columns kept beside it."""

    features: FeatureBatch
    kept: pa.RecordBatch


class KeepingEncoder:
    """Encodes with a feature map and keeps columns of the records as they stand. Thread safety: immutable."""

    def __init__(self, features: FeatureMap, keep: Sequence[str]) -> None:
        declared = {column.name: column for column in features.columns}
        extra = tuple(ColumnSpec(name) for name in keep if name not in declared)
        self._features, self._keep = features, list(keep)
        self._columns = (*features.columns, *extra)

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        """What the feature map reads, and what is kept."""
        return self._columns

    def encode(self, records: pa.RecordBatch, id: BatchId | None = None) -> KeptBatch:
        """The feature batch, and the kept columns."""
        return KeptBatch(self._features.encode(records, id), records.select(self._keep))


def predict_to_file(source: Path, data: Sequence[str], keep: Sequence[str], to: Path | None) -> int:
    """Number of rows predicted and written to `to`, or to stdout as CSV.

    The file is there when it is whole. Raises: UsageError for a suffix there is no writer for, or a `keep` column that
    would stand twice; whatever reading and restoring raise."""
    if PROBABILITY in keep or len(set(keep)) != len(keep):
        raise UsageError(f"expected distinct --keep columns other than {PROBABILITY!r}, got {list(keep)}")
    if to is not None and to.suffix not in WRITERS:
        raise UsageError(f"expected --to with a suffix of {sorted(WRITERS)}, got {to}")
    with open_trained(source) as assembly:
        encoder = KeepingEncoder(assembly.features.without_label(), keep)
        log = other_log(assembly.config.data, data)
        if to is not None and to.exists() and any(os.path.exists(file) and to.samefile(file) for file in log.paths):
            raise UsageError(f"expected --to with another file than those that are read, got {to}")
        kept: deque[pa.RecordBatch] = deque()

        def feature_batches() -> Iterator[FeatureBatch]:
            for batch in log.batches(encoder, assembly.config.train.batch_size):
                kept.append(batch.kept)
                yield batch.features

        predictions = predict(assembly.model, assembly.embeddings, feature_batches())
        tables = (_with_probability(kept.popleft(), pa.array(prediction.probabilities)) for prediction in predictions)
        return _write(tables, to)


def _with_probability(kept: pa.RecordBatch, probability: pa.Array) -> pa.Table:
    names = [*kept.schema.names, PROBABILITY]
    return pa.Table.from_arrays([*kept.columns, probability], names=names)


def _csv_writer(stream: Any, schema: pa.Schema) -> Any:
    return pa_csv.CSVWriter(stream, schema)


def _ipc_writer(stream: Any, schema: pa.Schema) -> Any:
    return pa.ipc.new_file(stream, schema)


WRITERS: dict[str, Any] = {
    ".parquet": pq.ParquetWriter,
    ".arrow": _ipc_writer,
    ".csv": _csv_writer,
}


def _write(tables: Iterator[pa.Table], to: Path | None) -> int:
    rows = 0
    with _whole_file(to) as stream, contextlib.ExitStack() as stack:
        writer: Any = None
        # Whether text comes encoded is for its file to say, and another one may say otherwise.
        for table in map(decoded, tables):
            if writer is None:
                schema = table.schema
                make = WRITERS[".csv" if to is None else to.suffix]
                writer = stack.enter_context(make(stream, schema))
            writer.write_table(_as_first(table, schema))
            rows += table.num_rows
    return rows


def _as_first(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table in the types of the first one. Raises: UsageError naming a column whose values do not fit there."""
    if table.schema == schema:
        return table
    columns = []
    for field, column in zip(schema, table.columns, strict=True):
        try:
            if not _is_kept(column.type, field.type):
                raise pa.ArrowInvalid("another kind of value")
            columns.append(column.cast(field.type))
        except pa.ArrowException as error:
            raise UsageError(
                f"expected --keep column {field.name!r} as {field.type}, as in the first file, got {column.type}: "
                f"{error}"
            ) from None
    return pa.Table.from_arrays(columns, schema=schema)


def _is_kept(own: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether each value of a type is the same one in the other, or else the cast raises."""
    kinds = pa.types
    if own == wanted or kinds.is_null(own):
        return True
    if kinds.is_floating(own) and kinds.is_floating(wanted):
        return bool(own.bit_width <= wanted.bit_width)
    if kinds.is_list(own) or kinds.is_large_list(own):
        is_list = kinds.is_list(wanted) or kinds.is_large_list(wanted)
        return is_list and _is_kept(own.value_type, wanted.value_type)
    return any(
        is_one(own) and is_one(wanted)
        for is_one in (
            kinds.is_integer,
            lambda kind: kinds.is_string(kind) or kinds.is_large_string(kind),
            lambda kind: kinds.is_binary(kind) or kinds.is_large_binary(kind),
        )
    )


@contextlib.contextmanager
def _whole_file(path: Path | None) -> Iterator[IO[bytes]]:
    """A stream to stdout, or to a file that takes its name only when all went well."""
    if path is None:
        if is_given_up(sys.stdout):
            raise UsageError("expected an open stdout, or --to with a file, got neither")
        with naming_file("<stdout>"):
            yield sys.stdout.buffer
            sys.stdout.flush()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as partial, partial.open("wb") as stream:
        yield stream
