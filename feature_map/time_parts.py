"""Parts of points in time: whole Arrow columns of dates, timestamps, integers or text to int64 values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .errors import ColumnTypeError, ValueEncodeError
from .feature_config import TimePart

_MICROSECONDS = {"age_days": 86_400_000_000, "age_hours": 3_600_000_000, "epoch_seconds": 1_000_000}
_CALENDAR = {
    "second": pc.second,
    "minute": pc.minute,
    "hour": pc.hour,
    "weekday": pc.day_of_week,
    "day": pc.day,
    "day_of_year": pc.day_of_year,
    "month": pc.month,
    "year": pc.year,
}


@dataclass(frozen=True, slots=True)
class TimeColumn:
    """A column that is made from a time column before encoding; `name` is unique to (column, part)."""

    column: str
    part: TimePart

    @property
    def name(self) -> str:
        """What the made column is called in messages."""
        return (
            f"{self.part.part}({self.column})" if self.part == _plain(self.part) else f"{self.column} as {self.part!r}"
        )

    def read(self, records: pa.RecordBatch) -> pa.Array:
        """(B,) int64, null where the time is null. Raises: ColumnTypeError, ValueEncodeError naming the column."""
        array = _column(records, self.column)
        part = self.part
        instants = _instants(array, part, self.column)
        if part.part in _CALENDAR:
            return _CALENDAR[part.part](instants).cast(pa.int64())
        if part.part == "hour_of_week":
            return pc.add(pc.multiply(pc.day_of_week(instants), 24), pc.hour(instants)).cast(pa.int64())
        micros, is_null = _micros(instants)
        if part.since is not None:
            if part.since in records.schema.names:
                since, since_null = _micros(_instants(_column(records, part.since), part, part.since))
                micros, is_null = since - micros, is_null | since_null
            else:
                since, _ = _micros(
                    _instants(pa.array([part.since]), part.model_copy(update={"format": None}), part.since)
                )
                micros = since[0] - micros
        return pa.array(micros // _MICROSECONDS[part.part], mask=is_null)


def with_time_columns(records: pa.RecordBatch, columns: tuple[TimeColumn, ...]) -> pa.RecordBatch:
    """`records` with the made columns after its own."""
    arrays = [*records.columns, *(column.read(records) for column in columns)]
    names = [*records.schema.names, *(column.name for column in columns)]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _plain(part: TimePart) -> TimePart:
    return TimePart.model_construct(part=part.part, unit=None, format=None, time_zone="UTC", since=None)


def _column(records: pa.RecordBatch, name: str) -> pa.Array:
    index = records.schema.get_field_index(name)
    return pa.nulls(records.num_rows) if index < 0 else records.column(index)


def _instants(array: pa.Array, part: TimePart, column: str) -> pa.Array:
    """Timestamps in `part.time_zone`."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        array = array.dictionary_decode()
        kind = array.type
    zone = part.time_zone
    if pa.types.is_null(kind):
        return array.cast(pa.timestamp("us", zone))
    if pa.types.is_integer(kind):
        if part.unit is None:
            raise ColumnTypeError(f"column {column!r}: expected a time, got {kind}; declare the unit of integers")
        return array.cast(pa.int64()).cast(pa.timestamp(part.unit, zone))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return _parse(array, part, column)
    if pa.types.is_date(kind):
        return pc.assume_timezone(array.cast(pa.timestamp("ms")), zone, ambiguous="earliest", nonexistent="earliest")
    if pa.types.is_timestamp(kind):
        if kind.tz is None:
            return pc.assume_timezone(array, zone, ambiguous="earliest", nonexistent="earliest")
        return array.cast(pa.timestamp(kind.unit, zone))
    raise ColumnTypeError(f"column {column!r}: expected a date, timestamp, integer or text time, got {kind}")


def _parse(array: pa.Array, part: TimePart, column: str) -> pa.Array:
    zone = part.time_zone
    array = array.cast(pa.string())
    try:
        if part.format is not None:
            local = pc.strptime(array, format=part.format, unit="us", error_is_null=False)
        else:
            try:
                local = array.cast(pa.timestamp("us"))
            except pa.ArrowInvalid:
                return array.cast(pa.timestamp("us", zone))
        return pc.assume_timezone(local, zone, ambiguous="earliest", nonexistent="earliest")
    except pa.ArrowInvalid as error:
        form = "an ISO 8601 time" if part.format is None else f"a time of format {part.format!r}"
        raise ValueEncodeError(f"column {column!r}: expected {form}, got other text ({error})") from None


def _micros(instants: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    unit = instants.type.unit
    ticks = instants.cast(pa.int64())
    is_null = np.asarray(ticks.is_null())
    values = np.asarray(ticks.fill_null(0))
    factor = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}[unit]
    return (values // 1_000 if unit == "ns" else values * factor), is_null
