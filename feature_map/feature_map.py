"""The feature map: named features, and the pure function from record batches to keys, dense floats and labels."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..datasets.schema import ColumnSpec
from ..datasets.work_unit import BatchId
from . import _native
from .batch import FeatureBatch
from .config_file import did_you_mean, read_yaml, validate
from .encode_plan import PlanBuilder, salt_of
from .errors import FeatureMapError, ValueEncodeError
from .feature_columns import column_specs, columns_of
from .feature_config import (
    Categorical,
    Constant,
    Cross,
    EmbeddedFeature,
    EventTime,
    Feature,
    FeatureMapConfig,
    Group,
    Label,
    Lookup,
    Numeric,
)
from .feature_config import Sequence as SequenceFeature
from .lookup_file import with_entries
from .time_parts import with_time_columns
from .yaml_file import write_yaml

_FIXED = (Categorical, SequenceFeature, Cross, Constant, Lookup)
KeyId = Literal["int64", "uint64", "text", "cross"]


@dataclass(frozen=True, slots=True)
class FeatureTable:
    """A table that features need.

    id:  what its keys were made from; int64 and uint64 ids are recovered from keys by arithmetic, text by a value
         dictionary, a cross's not at all.
    dim: weights a row, or None where neither feature nor map says."""

    name: str
    key_space: str
    dim: int | None
    features: tuple[str, ...]
    id: KeyId


class FeatureMap:
    """Named features, in order, with label, example weight, group and event time.

        es.FeatureMap([es.Categorical("user", dim=16), es.Numeric("price", transform="log1p")], label="click")

    features: `Categorical`, `Sequence`, `Cross`, `Bucketize`, `SoftBuckets`, `Lookup`, `Constant`, `Numeric`.
    Raises:   ConfigError, FeatureMapError where features contradict each other.
    Thread safety: immutable; `encode` from any number of threads."""

    def __init__(
        self,
        features: Iterable[EmbeddedFeature | Numeric],
        *,
        label: str | Label | Sequence[str | Label] | None = None,
        example_weight: str | None = None,
        group: str | Group | None = None,
        event_time: str | EventTime | None = None,
        null_values: Sequence[str | int | float] = (),
        dim: int | None = None,
        version: int = 1,
    ) -> None:
        self._set(
            validate(
                FeatureMapConfig,
                {
                    "features": tuple(features),
                    "label": label,
                    "example_weight": example_weight,
                    "group": group,
                    "event_time": event_time,
                    "null_values": tuple(null_values),
                    "dim": dim,
                    "version": version,
                },
                "feature map",
            ),
            Path(),
        )

    @classmethod
    def of(cls, config: FeatureMapConfig, folder: str | Path = "") -> FeatureMap:
        """The feature map of a checked configuration; files of lookups are relative to `folder`.

        Raises: FeatureMapError where features contradict each other."""
        made = cls.__new__(cls)
        made._set(config, Path(folder))
        return made

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], source: str = "feature map", folder: str | Path = "") -> FeatureMap:
        """The feature map that `to_dict` gave, or a file holds.

        source: named in errors.   folder: where files of lookups are. Raises: ConfigError, FeatureMapError."""
        return cls.of(validate(FeatureMapConfig, dict(data), source), folder)

    @classmethod
    def load(cls, path: str | Path) -> FeatureMap:
        """The feature map in a YAML file. Raises: FileNotFoundError, ConfigError naming file and path in it."""
        return cls.from_dict(read_yaml(path), str(path), Path(path).parent)

    def save(self, path: str | Path) -> None:
        """Write the YAML file; `load` gives back an equal map. The file is replaced at once or not at all."""
        write_yaml(path, self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers; what is left out is at its default."""
        data = self._config.model_dump(mode="json", exclude_defaults=True)
        data["features"] = [
            {"name": f.name, "kind": f.kind, **f.model_dump(mode="json", exclude_defaults=True)}
            for f in self._config.features
        ]
        return {"format_version": self._config.format_version, "version": self._config.version, **data}

    # --- what it says ---------------------------------------------------------------------------------------------

    @property
    def config(self) -> FeatureMapConfig:
        """The configuration, with tables and key spaces filled in."""
        return self._config

    @property
    def version(self) -> int:
        """Number that each change of the features raises."""
        return self._config.version

    @property
    def hash(self) -> str:
        """sha256 (hex) of everything that decides keys and layout; equal for equal maps, whatever their version."""
        data = self.to_dict()
        del data["version"]
        return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    @property
    def features(self) -> tuple[EmbeddedFeature | Numeric, ...]:
        """All features, in map order."""
        return self._config.features

    @property
    def categorical(self) -> tuple[EmbeddedFeature, ...]:
        """Features with keys, in the order of `FeatureBatch.features`."""
        return self._embedded

    @property
    def numeric(self) -> tuple[Numeric, ...]:
        """Features with dense floats, in the order of the columns of `FeatureBatch.dense`."""
        return self._numeric

    @property
    def dense_width(self) -> int:
        """`W`: columns of `FeatureBatch.dense`."""
        return sum(f.output_width for f in self._numeric)

    @property
    def unlearned(self) -> tuple[str, ...]:
        """Features that `learn_statistics` must see the click log for before anything is encoded."""
        return tuple(f.name for f in self._config.features if not isinstance(f, _FIXED) and f.learns is not None)

    @property
    def labels(self) -> tuple[str, ...]:
        """Label columns."""
        return tuple(label.column for label in self._config.label)

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        """The click-log columns that encoding reads, with the types that text formats parse them as."""
        return self._columns

    @property
    def tables(self) -> tuple[FeatureTable, ...]:
        """The tables that the features need, in the order they first appear."""
        return self._tables

    def feature(self, name: str) -> EmbeddedFeature | Numeric:
        """One feature. Raises: FeatureMapError naming the features there are."""
        for feature in self._config.features:
            if feature.name == name:
                return feature
        hint = did_you_mean(name, [f.name for f in self._config.features])
        raise FeatureMapError(f"unknown feature {name!r}; {hint}")

    def without_label(self) -> FeatureMap:
        """The same features with neither label nor example weight, for records that have none (predict)."""
        return FeatureMap.of(self._config.model_copy(update={"label": (), "example_weight": None}))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FeatureMap) and self._config == other._config

    def __hash__(self) -> int:
        return int(self.hash[:15], 16)

    def __repr__(self) -> str:
        names = ", ".join(f.name for f in self._config.features)
        return f"FeatureMap(version={self.version}, features=[{names}], label={list(self.labels)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return FeatureMap.from_dict, (self.to_dict(),)

    # --- encoding -------------------------------------------------------------------------------------------------

    def encode(self, records: pa.RecordBatch | pa.Table, id: BatchId | None = None) -> FeatureBatch:
        """Keys, dense floats and labels of `records`; columns are found by name, the others are ignored.

        Pure: the same records give the same bits in every process, on every machine. Label, example weight, group and
        event time are None where the records have no such column.
        Raises:  MissingColumnError, ColumnTypeError, ValueEncodeError, LabelError naming column, row and value.
        Threads: safe; the GIL is released.   Cost: one native call, one pass over each column, no copies of text."""
        if isinstance(records, pa.RecordBatch):
            chunks = [records]
        elif isinstance(records, pa.Table):
            chunks = records.to_batches() or [pa.RecordBatch.from_pylist([], schema=records.schema)]
        else:
            raise TypeError(
                f"expected a pyarrow RecordBatch or Table, got {type(records).__name__}; ClickLog.from_table takes it"
            )
        if self._time_columns:
            chunks = [with_time_columns(chunk, self._time_columns) for chunk in chunks]
        size, keys, offsets, scalar, dense, label, weights, example_weight, group, event_time = self._plan.encode(
            [chunk.__arrow_c_array__() for chunk in chunks]
        )
        return FeatureBatch(
            size=size,
            features=self._names,
            keys=keys,
            offsets=offsets,
            scalar=scalar,
            dense=dense,
            label=label,
            weights=weights,
            example_weight=example_weight,
            group=group,
            event_time=event_time,
            id=id,
        )

    def encode_one(self, record: Mapping[str, Any]) -> FeatureBatch:
        """The batch of size 1 of one record given as a mapping of column to value, as JSON gives them.

        The same keys as from any file: 5, a column of 5 and "5" are one id. None and columns that are not required and
        not there are null. Raises: as `encode`."""
        arrays, names = [], []
        for spec in self._columns:
            if spec.name in record:
                names.append(spec.name)
                arrays.append(_one(record[spec.name], spec))
        if not arrays:
            arrays, names = [pa.nulls(1)], [""]
        return self.encode(pa.RecordBatch.from_arrays(arrays, names=names))

    def encode_values(self, feature: str, values: Any) -> npt.NDArray[np.uint64]:
        """(n,) uint64 keys of values given one by one, without their click log (raw ids of a KeyedJaggedTensor).

        values: array of n non-null values of the feature's id type: NumPy, Arrow or a sequence. Lists and delimiters of
        the feature are left aside. Raises: FeatureMapError for a feature that is no plain column; ColumnTypeError …"""
        found = self.feature(feature)
        if not isinstance(found, Categorical | SequenceFeature):
            raise FeatureMapError(f"expected a categorical feature or sequence, got {found.kind} feature {feature!r}")
        array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
        plan = self._value_plan(found)
        table = pa.table({found.column: array})
        return (
            plan.encode([b.__arrow_c_array__() for b in table.to_batches()])[1]
            if len(array)
            else np.empty(0, np.uint64)
        )

    def key(self, feature: str, value: Any) -> int:
        """The key of one value of a feature: of a column value, or of a tuple with a value for each column it reads.

        Raises: FeatureMapError where the value gives none or several keys (a list); as `encode`."""
        found = self.feature(feature)
        if isinstance(found, Numeric):
            raise FeatureMapError(f"expected a feature with keys, got numeric feature {feature!r}")
        columns = columns_of(found, self._config)
        values = (value,) if len(columns) == 1 else () if not columns else value
        if not isinstance(values, tuple | list) or len(values) != len(columns):
            raise FeatureMapError(f"feature {feature!r}: expected a value for each of {list(columns)}, got {value!r}")
        batch = self._alone(found).encode_one(dict(zip(columns, values, strict=True)))
        keys = batch.keys_of(feature)
        if len(keys) != 1:
            raise FeatureMapError(f"feature {feature!r}: expected a value with one key, got {value!r} with {len(keys)}")
        return int(keys[0])

    def value(self, feature: str, key: int) -> int | None:
        """The integer id behind a key; None for the missing key. For buckets it is the bucket's number.

        Raises: FeatureMapError for text (its export has a value dictionary) and crosses."""
        found = self.feature(feature)
        table = next((t for t in self._tables if not isinstance(found, Numeric) and t.name == found.table), None)
        if table is None or table.id in ("text", "cross"):
            what = "a numeric feature" if table is None else f"{table.id} keys"
            raise FeatureMapError(f"feature {feature!r}: expected integer ids, got {what}: no arithmetic inverse")
        if not 0 <= key < 1 << 64:
            raise FeatureMapError(f"feature {feature!r}: expected a key in 0 … 2^64-1, got {key}")
        h = _native.unmix64(key) ^ salt_of(table.key_space)
        if h == _native.MISSING_HASH:
            return None
        return h - (1 << 64) if table.id == "int64" and h >> 63 else h

    # --- how it is made -------------------------------------------------------------------------------------------

    def _set(self, config: FeatureMapConfig, folder: Path) -> None:
        self._config = _with_key_spaces(with_entries(config, folder))
        self._embedded = tuple(f for f in self._config.features if not isinstance(f, Numeric))
        self._numeric = tuple(f for f in self._config.features if isinstance(f, Numeric))
        self._names = tuple(f.name for f in self._embedded)
        self._tables = _tables_of(self._config, self._embedded)
        self._columns = column_specs(self._config)
        self._lazy_plan: tuple[_native.Plan, Any] | None = None

    @property
    def _plan(self) -> _native.Plan:
        if self._lazy_plan is None:
            self._lazy_plan = PlanBuilder(self._config).build()
        return self._lazy_plan[0]

    @property
    def _time_columns(self) -> Any:
        if self._lazy_plan is None:
            self._lazy_plan = PlanBuilder(self._config).build()
        return self._lazy_plan[1]

    def _alone(self, feature: EmbeddedFeature) -> FeatureMap:
        needed = [f for f in self._config.features if f is feature or f.name in _named_parts(feature)]
        return FeatureMap.of(
            FeatureMapConfig(features=tuple(needed), null_values=self._config.null_values, dim=self._config.dim)
        )

    def _value_plan(self, feature: Categorical | SequenceFeature) -> _native.Plan:
        plain = Categorical(
            name=feature.name, id=feature.id, column=feature.column, table=feature.table, key_space=feature.key_space,
            null_values=feature.null_values,
        )  # fmt: skip
        return PlanBuilder(FeatureMapConfig(features=(plain,), null_values=self._config.null_values)).build()[0]


def _one(value: Any, spec: ColumnSpec) -> pa.Array:
    """Array of one value: in the declared type where it fits exactly, else in its own (and then cast or refused)."""
    if value is None:
        return pa.nulls(1)
    is_plain_int = isinstance(value, int) and not isinstance(value, bool)
    if spec.type is not None and (is_plain_int or isinstance(value, list | tuple | dict)):
        try:
            return pa.array([value], spec.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            pass
    try:
        return pa.array([value])
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        raise ValueEncodeError(
            f"column {spec.name!r}: expected a value of {spec.type or 'one type'}, got {value!r} ({error})"
        ) from None


def _named_parts(feature: Feature) -> tuple[str, ...]:
    return tuple(p for p in feature.of if isinstance(p, str)) if isinstance(feature, Cross | Lookup) else ()


def _with_key_spaces(config: FeatureMapConfig) -> FeatureMapConfig:
    """Every feature with its table's key space: the one that a feature of the table gives, else the table's name."""
    given: dict[str, str] = {}
    names: set[str] = set()
    for feature in config.features:
        if feature.name in names:
            raise FeatureMapError(f"expected distinct feature names, got {feature.name!r} twice")
        names.add(feature.name)
        if isinstance(feature, Numeric) or not feature.key_space:
            continue
        known = given.setdefault(feature.table, feature.key_space)
        if known != feature.key_space:
            raise FeatureMapError(
                f"table {feature.table!r}: expected one key space, got {known!r} and {feature.key_space!r}"
            )
    labels = [label.column for label in config.label]
    for column in labels:
        if labels.count(column) > 1:
            raise FeatureMapError(f"expected distinct label columns, got {column!r} twice")
    features = [
        f if isinstance(f, Numeric) else f.model_copy(update={"key_space": given.get(f.table, f.table)})
        for f in config.features
    ]
    return config.model_copy(update={"features": tuple(features)})


def _key_id(feature: EmbeddedFeature) -> KeyId:
    if isinstance(feature, Cross):
        return "cross"
    if isinstance(feature, Constant):
        return "text" if isinstance(feature.value, str) else "int64"
    return feature.id if isinstance(feature, Categorical | SequenceFeature | Lookup) else "int64"


def _tables_of(config: FeatureMapConfig, features: tuple[EmbeddedFeature, ...]) -> tuple[FeatureTable, ...]:
    tables: dict[str, FeatureTable] = {}
    ids: dict[str, tuple[str, KeyId]] = {}
    for feature in features:
        id = _key_id(feature)
        dim = feature.dim if feature.dim is not None else config.dim
        owner, known_id = ids.setdefault(feature.key_space, (feature.name, id))
        if known_id != id:
            raise FeatureMapError(
                f"key space {feature.key_space!r}: expected one id type, got {known_id} (feature {owner!r}) "
                f"and {id} (feature {feature.name!r})"
            )
        table = tables.get(feature.table)
        if table is None:
            tables[feature.table] = FeatureTable(feature.table, feature.key_space, dim, (feature.name,), id)
            continue
        if table.dim != dim:
            raise FeatureMapError(
                f"table {table.name!r}: expected one dim, got {table.dim} (feature {table.features[0]!r}) "
                f"and {dim} (feature {feature.name!r})"
            )
        tables[feature.table] = FeatureTable(
            table.name, table.key_space, dim, (*table.features, feature.name), table.id
        )
    return tuple(tables.values())
