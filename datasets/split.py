"""Splits of one click log into training and evaluation rows, decided row by row while reading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import mmh3
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from .errors import DataFileError
from .record_stage import Origin
from .row_order import hashes, mix, mix64_array
from .schema import ColumnSpec

Part = Literal["train", "evaluate"]
_NULL_HASH = 0x6E756C6C


@dataclass(frozen=True, slots=True)
class RandomPart:
    """One part of a seeded random split; the two parts of a split have every row exactly once.

    evaluate: share of evaluation rows, in expectation.
    by:       column whose equal values stay together (all rows of a user, say); None decides each row by its place
              in the files, which is the same for every reading of the same list of files.
    """

    part: Part
    evaluate: float
    seed: int = 0
    by: ColumnSpec | None = None

    @property
    def kept_share(self) -> float:
        """See `RecordStage`."""
        return self.evaluate if self.part == "evaluate" else 1.0 - self.evaluate

    @property
    def inputs(self) -> tuple[ColumnSpec, ...]:
        """See `RecordStage`."""
        return () if self.by is None else (self.by,)

    @property
    def outputs(self) -> tuple[str, ...]:
        """See `RecordStage`."""
        return ()

    def apply(self, records: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
        """See `RecordStage`."""
        if self.by is None:
            values = hashes(mix(self.seed, origin.file), origin.first_row, records.num_rows)
        else:
            values = _value_hashes(records.column(self.by.name), self.seed, self.by.name, origin)
        is_evaluated = values < np.uint64(min(int(self.evaluate * 2.0**64), (1 << 64) - 1))
        return records.filter(pa.array(is_evaluated if self.part == "evaluate" else ~is_evaluated))


@dataclass(frozen=True, slots=True)
class TimePart:
    """One part of a split in time: rows of `column` before `cut` train, the rest evaluate; a null counts as before.

    A cut that is a number compares as one with text too: a CSV column that no feature declares is read as text."""

    part: Part
    column: ColumnSpec
    cut: object
    kept_share: Literal[None] = None

    @property
    def inputs(self) -> tuple[ColumnSpec, ...]:
        """See `RecordStage`."""
        return (self.column,)

    @property
    def outputs(self) -> tuple[str, ...]:
        """See `RecordStage`."""
        return ()

    def apply(self, records: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
        """See `RecordStage`."""
        times = records.column(self.column.name)
        try:
            if isinstance(self.cut, int | float) and (pat.is_string(times.type) or pat.is_large_string(times.type)):
                times = times.cast(pa.int64() if isinstance(self.cut, int) else pa.float64())
            cut = self.cut if isinstance(self.cut, pa.Scalar) else pa.scalar(self.cut)
            is_late = pc.fill_null(pc.greater_equal(times, cut.cast(times.type)), False)
        except (pa.ArrowException, TypeError) as error:
            raise DataFileError(
                f"expected a time that compares with {self.cut!r}, got {times.type}: {error}",
                path=origin.path,
                column=self.column.name,
            ) from error
        return records.filter(is_late if self.part == "evaluate" else pc.invert(is_late))


def _value_hashes(column: pa.Array, seed: int, name: str, origin: Origin) -> npt.NDArray[np.uint64]:
    """(rows,) uint64: a hash of each value; whole numbers hash alike in every integer type, text in every text type."""
    type_ = column.type.value_type if pat.is_dictionary(column.type) else column.type
    encoded = column if pat.is_dictionary(column.type) else column.dictionary_encode()
    if pat.is_integer(type_):
        values = encoded.dictionary.to_numpy(zero_copy_only=False).astype(np.int64, casting="unsafe").view(np.uint64)
    elif pat.is_string(type_) or pat.is_large_string(type_) or pat.is_binary(type_) or pat.is_large_binary(type_):
        texts = encoded.dictionary.to_pylist()
        values = np.array([mmh3.hash64(text, signed=False)[0] for text in texts], np.uint64)
    else:
        raise DataFileError(f"expected whole numbers or text to split by, got {type_}", path=origin.path, column=name)
    by_value = np.append(mix64_array(values ^ np.uint64(mix(seed))), np.uint64(mix(seed, _NULL_HASH)))
    codes = pc.fill_null(encoded.indices.cast(pa.int64()), len(values)).to_numpy(zero_copy_only=False)
    return by_value[codes]
