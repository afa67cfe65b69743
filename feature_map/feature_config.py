"""What a feature is: frozen configurations, checked once. A feature map is a list of these."""

from __future__ import annotations

import itertools
from typing import Annotated, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.\-/]{0,127}$"
MAX_DIM = 4096

Id = Literal["int64", "uint64", "text"]
Pooling = Literal["sum", "mean", "sqrtn", "max", "none"]
Transform = Literal["log1p", "signed_log1p", "standardise", "min_max"]
TimePartName = Literal[
    "second", "minute", "hour", "weekday", "day", "day_of_year", "month", "year", "hour_of_week", "epoch_seconds",
    "age_days", "age_hours",
]  # fmt: skip


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _as_tuple(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _as_mapping(value: object) -> object:
    return {"column": value} if isinstance(value, str) else value


NullValue = Annotated[str, BeforeValidator(_as_text)]


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _known_zone(zone: str) -> str:
    try:
        pc.assume_timezone(pa.scalar(0, pa.timestamp("s")), zone)
    except pa.ArrowInvalid:
        raise ValueError(f"expected a time zone of the IANA database, such as Europe/Oslo, got {zone!r}") from None
    return zone


TimeZone = Annotated[str, AfterValidator(_known_zone)]


class TimePart(_Config):
    """Which part of a point in time a feature reads; the named transform that date and timestamp columns need.

    part:        hour 0–23, weekday 0 (Monday)–6, day 1–31, day_of_year 1–366, month 1–12, hour_of_week 0–167,
                 epoch_seconds (UTC, floor), age_days / age_hours (whole ones from the column to `since`).
    unit:        of an integer column: time since 1970-01-01 UTC in s, ms, us or ns.
    format:      of a text column: strptime format; without it text is ISO 8601.
    time_zone:   IANA name the part is read in, and the zone of text and zoneless timestamps. Default UTC.
    since:       for an age: column with the later time (same unit, format and zone), or an ISO 8601 instant.
    """

    part: TimePartName
    unit: Literal["s", "ms", "us", "ns"] | None = None
    format: str | None = None
    time_zone: TimeZone = "UTC"
    since: str | None = None

    @model_validator(mode="after")
    def _check(self) -> TimePart:
        if self.part.startswith("age_") != (self.since is not None):
            raise ValueError(f"expected `since` with an age and only there, got part {self.part}, since {self.since}")
        if self.unit is not None and self.format is not None:
            raise ValueError("expected unit (integers) or format (text), got both")
        return self


class ColumnValues(_Config):
    """How a click-log column becomes categorical values.

    id:               int64, uint64 or text; other column types are cast exactly or refused.
    column:           the click-log column.
    null_values:      values that stand for null, in every format, beside the map's own.
    missing:          `learn`: a null row has the missing key of its key space; `skip`: it has no key.
    default:          value that a null row stands for, in place of the missing key.
    null_elements:    a null inside a list is dropped, or stands as the missing key (`learn`: lists stay aligned).
    is_list:          text formats parse the column as a list; typed formats say so themselves.
    delimiter:        split text into values; an empty piece is a null element, empty text is an empty list.
    weight_delimiter: pieces are `value:weight`; a piece without it weighs 1.
    weights:          column with a weight a value (a number, or lists as long as the values').
    time:             the column is a point in time; its part is the value.
    """

    id: Id = "int64"
    column: str = Field(default="", max_length=1024)
    null_values: tuple[NullValue, ...] = ()
    missing: Literal["learn", "skip"] = "learn"
    default: int | str | None = None
    null_elements: Literal["drop", "learn"] = "drop"
    is_list: bool = False
    delimiter: str = ""
    weight_delimiter: str = ""
    weights: str | None = None
    time: TimePart | None = None
    required: bool = True

    @model_validator(mode="after")
    def _check_values(self) -> ColumnValues:
        if self.weight_delimiter and not self.delimiter:
            raise ValueError(f"expected a delimiter with weight_delimiter {self.weight_delimiter!r}, got none")
        if self.delimiter and self.delimiter == self.weight_delimiter:
            raise ValueError(f"expected delimiter and weight_delimiter to differ, got {self.delimiter!r} twice")
        if self.weights is not None and self.delimiter:
            raise ValueError(f"expected weights in a column or in delimited text, got both (weights {self.weights!r})")
        if self.is_list and self.delimiter:
            raise ValueError("expected is_list or a delimiter, got both")
        if self.default is not None:
            if self.missing == "skip":
                raise ValueError(f"expected default or missing: skip, got both (default {self.default!r})")
            if (self.id == "text") != isinstance(self.default, str):
                raise ValueError(f"expected a default of id type {self.id}, got {self.default!r}")
            low, high = (0, 1 << 64) if self.id == "uint64" else (-(1 << 63), 1 << 63)
            if isinstance(self.default, int) and not low <= self.default < high:
                raise ValueError(f"expected a default of id type {self.id}, got {self.default}")
        if self.time is not None and (self.id != "int64" or self.delimiter or self.is_list):
            raise ValueError(f"expected id int64 and one value a row with a time part, got id {self.id}")
        return self


class _Feature(_Config):
    """What all features share; `name` may be given by position."""

    name: str = Field(pattern=NAME_PATTERN)

    def __init__(self, name: str | None = None, **fields: Any) -> None:
        super().__init__(**(fields if name is None else {"name": name, **fields}))

    @model_validator(mode="before")
    @classmethod
    def _fill_names(cls, data: object) -> object:
        if not isinstance(data, dict) or not isinstance(data.get("name"), str):
            return data
        filled = dict(data)
        for field in ("column", "table"):
            if field in cls.model_fields and not filled.get(field):
                filled[field] = filled["name"]
        return filled


class _Embedded(_Feature):
    """A feature whose keys have rows.

    table:     where its rows are; features with the same table share them. Default: the feature's own name.
    key_space: namespace (salt) of the keys; the table's name unless given, and kept when the table is renamed.
    dim:       weights a row; None leaves it to the map's or the model's dim.
    pooling:   how the vectors of a row's values become one; `none` keeps them apart.
    required:  False reads a file without the column as all null (a column that was added to the log later).
    """

    table: str = Field(default="", pattern=NAME_PATTERN)
    key_space: str = ""
    dim: int | None = Field(default=None, ge=1, le=MAX_DIM)
    pooling: Pooling = "sum"


class Categorical(_Embedded, ColumnValues):
    """One value a row, or a bag of them (list columns, delimited text), each with a row of its own.

    keep_values: the value dictionary remembers the text behind the keys (text ids)."""

    kind: Literal["categorical"] = "categorical"
    keep_values: bool = False

    @property
    def max_length(self) -> int:
        """Values a row at most; 0: no limit."""
        return 0


class Sequence(_Embedded, ColumnValues):
    """An ordered list of values, cut to `max_length` of them (the last ones, or the first)."""

    kind: Literal["sequence"] = "sequence"
    pooling: Pooling = "none"
    max_length: int = Field(default=50, ge=1)
    keep: Literal["last", "first"] = "last"
    keep_values: bool = False

    @model_validator(mode="before")
    @classmethod
    def _fill_list(cls, data: object) -> object:
        if isinstance(data, dict) and not data.get("delimiter"):
            return {"is_list": True, **data}
        return data


class CrossPart(ColumnValues):
    """One part of a cross or lookup that is no feature of its own."""


class Cross(_Embedded):
    """Combinations of two or more features' values, in order; lists give every combination.

    of: names of categorical features of the map, or columns with rules of their own."""

    kind: Literal["cross"] = "cross"
    of: tuple[str | CrossPart, ...] = Field(min_length=2, max_length=8)


class Bucketize(_Embedded):
    """A number as the bucket it falls in: bucket i holds edges[i-1] ≤ x < edges[i]; NaN and infinities are null.

    edges:     ascending; or None with `quantiles` = number of equally filled buckets, learned by a pass over the log.
    fill:      number that a null stands for; else a null has the missing key (or none, `missing: skip`)."""

    kind: Literal["bucketize"] = "bucketize"
    column: str = ""
    edges: tuple[float, ...] | None = None
    quantiles: int | None = Field(default=None, ge=2, le=100_000)
    fill: float | None = None
    null_values: tuple[NullValue, ...] = ()
    missing: Literal["learn", "skip"] = "learn"
    time: TimePart | None = None
    required: bool = True

    @property
    def learns(self) -> str | None:
        """`quantiles` where the edges must be learned before this feature can be encoded."""
        return "quantiles" if self.edges is None else None

    @model_validator(mode="after")
    def _check(self) -> Bucketize:
        _check_edges(self.edges, self.quantiles, 1)
        return self


class SoftBuckets(_Embedded):
    """A number as a point between learned vectors: the two centres around x, weighted by nearness.

    Below the first and above the last centre x is that centre. Source: piecewise linear encoding, Gorishniy 2022 §3.2.
    centres:   ascending, at least two; or None with `quantiles` = number of centres, learned by a pass over the log."""

    kind: Literal["soft_buckets"] = "soft_buckets"
    column: str = ""
    centres: tuple[float, ...] | None = None
    quantiles: int | None = Field(default=None, ge=2, le=100_000)
    fill: float | None = None
    null_values: tuple[NullValue, ...] = ()
    missing: Literal["learn", "skip"] = "learn"
    time: TimePart | None = None
    required: bool = True

    @property
    def edges(self) -> tuple[float, ...] | None:
        """The centres, under the name that `Bucketize` has for its numbers."""
        return self.centres

    @property
    def learns(self) -> str | None:
        """`quantiles` where the centres must be learned before this feature can be encoded."""
        return "quantiles" if self.centres is None else None

    @model_validator(mode="after")
    def _check(self) -> SoftBuckets:
        _check_edges(self.centres, self.quantiles, 2)
        return self


class Constant(_Embedded):
    """The same value in every row: a bias with a row of its own."""

    kind: Literal["constant"] = "constant"
    value: int | str = 0


class Lookup(_Embedded):
    """What a small table has beside the values of one or more features.

    of:      names of categorical features, or columns with rules of their own; several are matched together.
    id:      type of what is looked up.
    entries: rows of the table: a value per part, then the result.   file: Parquet or CSV file to read them from once.
    keys, result: column names in that file.
    A value that is not in the table has the missing key (`missing: learn`) or none (`skip`)."""

    kind: Literal["lookup"] = "lookup"
    of: tuple[str | CrossPart, ...] = Field(min_length=1, max_length=8)
    id: Id = "int64"
    entries: tuple[tuple[int | str, ...], ...] = ()
    file: str | None = None
    keys: tuple[str, ...] = ()
    result: str = ""
    missing: Literal["learn", "skip"] = "learn"

    @model_validator(mode="after")
    def _check(self) -> Lookup:
        if bool(self.entries) == (self.file is not None):
            raise ValueError("expected entries or a file, got " + ("both" if self.entries else "neither"))
        for row in self.entries:
            if len(row) != len(self.of) + 1:
                raise ValueError(f"expected {len(self.of)} values and a result in each entry, got {list(row)}")
            if (self.id == "text") != isinstance(row[-1], str):
                raise ValueError(f"expected results of id type {self.id}, got {row[-1]!r}")
        if self.file is not None and (len(self.keys) != len(self.of) or not self.result):
            raise ValueError(f"expected {len(self.of)} key columns and a result column for file {self.file!r}")
        return self


class Numeric(_Feature):
    """Dense floats. NaN and infinities are null; what comes out is finite.

    fill:              number that a null stands for, before the transforms; None gives 0 after them.
    clip:              (low, high), before the transforms.
    transform:         in order: log1p (ln(1 + max(x, 0))), signed_log1p (sign(x)·ln(1 + |x|)),
                       standardise ((x − mean) / std), min_max ((x − low) / (high − low)).
    mean, std, low, high: of the values as they reach that step; None: learned by a pass over the log.
    missing_indicator: one more output column, 1 where the value was null.
    width:             numbers a row; above 1 the column is lists of this length."""

    kind: Literal["numeric"] = "numeric"
    column: str = ""
    fill: float | None = None
    clip: tuple[float, float] | None = None
    transform: Annotated[tuple[Transform, ...], BeforeValidator(_as_tuple)] = ()
    mean: float | None = None
    std: float | None = Field(default=None, ge=0)
    low: float | None = None
    high: float | None = None
    missing_indicator: bool = False
    width: int = Field(default=1, ge=1, le=MAX_DIM)
    null_values: tuple[NullValue, ...] = ()
    time: TimePart | None = None
    required: bool = True

    @model_validator(mode="after")
    def _check(self) -> Numeric:
        if self.clip is not None and not self.clip[0] < self.clip[1]:
            raise ValueError(f"expected clip (low, high) with low < high, got {list(self.clip)}")
        if len(set(self.transform)) != len(self.transform):
            raise ValueError(f"expected each transform once, got {list(self.transform)}")
        for names, step in ((("mean", "std"), "standardise"), (("low", "high"), "min_max")):
            given = [name for name in names if getattr(self, name) is not None]
            if given and step not in self.transform:
                raise ValueError(f"expected transform {step} with {given[0]}, got {list(self.transform)}")
            if len(given) == 1:
                raise ValueError(f"expected both {names[0]} and {names[1]} or neither, got {given[0]} alone")
        if self.low is not None and self.high is not None and not self.low <= self.high:
            raise ValueError(f"expected low ≤ high, got {self.low}, {self.high}")
        if "standardise" in self.transform and "min_max" in self.transform:
            raise ValueError(f"expected standardise or min_max, got both in {list(self.transform)}")
        if self.time is not None and self.width != 1:
            raise ValueError(f"expected width 1 with a time part, got {self.width}")
        return self

    @property
    def learns(self) -> str | None:
        """The transform whose statistics must be learned before this feature can be encoded, if there is one."""
        for name, known in (("standardise", self.mean), ("min_max", self.low)):
            if name in self.transform and known is None:
                return name
        return None

    @property
    def output_width(self) -> int:
        """Columns of the dense block that this feature fills."""
        return self.width + int(self.missing_indicator)


EmbeddedFeature = Categorical | Sequence | Cross | Bucketize | SoftBuckets | Constant | Lookup
Feature = Annotated[EmbeddedFeature | Numeric, Field(discriminator="kind")]


class Label(_Config):
    """A label column: numbers in [0, 1] as they stand, or a yes/no made from other values.

    at_least: 1 where the number is at least this, else 0.   positive: 1 where the value is one of these, else 0."""

    column: str = Field(min_length=1)
    at_least: float | None = None
    positive: tuple[int | str, ...] | None = Field(default=None, min_length=1)
    null_values: tuple[NullValue, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Label:
        if self.at_least is not None and self.positive is not None:
            raise ValueError("expected at_least or positive, got both")
        if self.positive is not None and len({type(value) for value in self.positive}) != 1:
            raise ValueError(f"expected positive values of one type, got {list(self.positive)}")
        return self


class Group(_Config):
    """The id that grouped metrics group by (a user, a request)."""

    column: str = Field(min_length=1)
    id: Id = "int64"


class EventTime(_Config):
    """When the example happened; see `TimePart` for unit, format and time_zone."""

    column: str = Field(min_length=1)
    unit: Literal["s", "ms", "us", "ns"] | None = None
    format: str | None = None
    time_zone: TimeZone = "UTC"


def _as_labels(value: object) -> object:
    return () if value is None else [value] if isinstance(value, str | dict | Label) else value


_LabelColumn = Annotated[Label, BeforeValidator(_as_mapping)]


class FeatureMapConfig(_Config):
    """The feature map file.

    version:     of the map; raised by each change of its features.
    null_values: texts and numbers that stand for null in every column of every format.
    dim:         weights a row of features that do not say."""

    format_version: Literal[1] = 1
    version: int = Field(default=1, ge=1)
    label: Annotated[tuple[_LabelColumn, ...], BeforeValidator(_as_labels)] = ()
    example_weight: str | None = None
    group: Annotated[Group, BeforeValidator(_as_mapping)] | None = None
    event_time: Annotated[EventTime, BeforeValidator(_as_mapping)] | None = None
    null_values: tuple[NullValue, ...] = ()
    dim: int | None = Field(default=None, ge=1, le=MAX_DIM)
    features: tuple[Feature, ...] = Field(min_length=1)


def _check_edges(edges: tuple[float, ...] | None, quantiles: int | None, at_least: int) -> None:
    if edges is None and quantiles is None:
        raise ValueError("expected edges (centres) or quantiles, got neither")
    if edges is not None and len(edges) < at_least:
        raise ValueError(f"expected at least {at_least} numbers, got {list(edges)}")
    if edges is not None and any(not a < b for a, b in itertools.pairwise(edges)):
        raise ValueError(f"expected ascending numbers, got {list(edges)}")
