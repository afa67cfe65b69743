"""From a feature map's configuration to the native plan that encodes record batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from . import _native
from .errors import FeatureMapError
from .feature_config import (
    Bucketize,
    Categorical,
    ColumnValues,
    Constant,
    Cross,
    EmbeddedFeature,
    FeatureMapConfig,
    Id,
    Label,
    Lookup,
    Numeric,
    Sequence,
    SoftBuckets,
    TimePart,
)
from .time_parts import TimeColumn

UINT64 = (1 << 64) - 1


def salt_of(key_space: str) -> int:
    """The uint64 that keys of this key space are salted with: murmur3 of its UTF-8 name."""
    return _native.murmur3(key_space.encode())


def hash_of(value: int | str, id: Id) -> int:
    """`h` of one value of a declared id type, before salt and mix."""
    if isinstance(value, str) != (id == "text"):
        raise FeatureMapError(f"expected a value of id type {id}, got {value!r}")
    return _native.murmur3(value.encode()) if isinstance(value, str) else value & UINT64


@dataclass(slots=True)
class PlanBuilder:
    """Gathers the plan of one feature map: numbers its columns, resolves names, turns rules into plain values."""

    config: FeatureMapConfig
    columns: dict[str, int] = field(default_factory=dict)
    is_required: list[bool] = field(default_factory=list)
    time_columns: dict[str, TimeColumn] = field(default_factory=dict)

    def build(self) -> tuple[_native.Plan, tuple[TimeColumn, ...]]:
        """The native plan, and the columns that must be made before it runs. Raises: FeatureMapError."""
        config = self.config
        spec: dict[str, Any] = {
            "features": [self._feature(f) for f in config.features if not isinstance(f, Numeric)],
            "dense": [self._numeric(f) for f in config.features if isinstance(f, Numeric)],
            "labels": [self._label(label) for label in config.label],
        }
        if config.example_weight is not None:
            spec["example_weight_column"] = self._column(config.example_weight, required=False)
        if config.group is not None:
            column = self._column(config.group.column, required=False)
            spec["group"] = {"column": column, "id": config.group.id, **self._markers(())}
        if config.event_time is not None:
            time = config.event_time
            part = TimePart(part="epoch_seconds", unit=time.unit, format=time.format, time_zone=time.time_zone)
            spec["event_time_column"] = self._column(time.column, part, required=False)
        spec["columns"] = list(self.columns)
        spec["is_required"] = self.is_required
        return _native.Plan(spec), tuple(self.time_columns.values())

    def _column(self, name: str, time: TimePart | None = None, *, required: bool = True) -> int:
        if time is not None:
            made = TimeColumn(name, time)
            self.time_columns[made.name] = made
            name = made.name
        if name not in self.columns:
            self.columns[name] = len(self.columns)
            self.is_required.append(False)
        index = self.columns[name]
        self.is_required[index] |= required
        return index

    def _markers(self, own: tuple[str, ...]) -> dict[str, Any]:
        texts = [*self.config.null_values, *own]
        integers = [int(text) & UINT64 for text in texts if _is_integer(text)]
        numbers = [float(text) for text in texts if _is_number(text)]
        return {
            "null_texts": [text.encode() for text in texts],
            "null_integers": integers,
            "null_numbers": numbers,
        }

    def _values(
        self, rule: ColumnValues, *, feature: str, max_length: int = 0, keep_last: bool = True
    ) -> dict[str, Any]:
        spec = {
            "column": self._column(rule.column, rule.time, required=rule.required),
            "id": rule.id,
            "skip_missing": rule.missing == "skip",
            "is_list": rule.is_list,
            "keep_null_elements": rule.null_elements == "learn",
            "delimiter": rule.delimiter,
            "weight_delimiter": rule.weight_delimiter,
            "max_length": max_length,
            "keep_last": keep_last,
            **self._markers(rule.null_values),
        }
        if rule.default is not None:
            spec["missing"] = hash_of(rule.default, rule.id)
        if rule.weights is not None:
            spec["weights_column"] = self._column(rule.weights, required=rule.required)
        return spec

    def _part(self, part: str | ColumnValues, feature: str) -> dict[str, Any]:
        if isinstance(part, str):
            named = next((f for f in self.config.features if f.name == part), None)
            if not isinstance(named, Categorical | Sequence):
                raise FeatureMapError(f"feature {feature!r}: expected a categorical feature in `of`, got {part!r}")
            spec = self._of_feature(named)
        else:
            if not part.column:
                raise FeatureMapError(f"feature {feature!r}: expected a column in each part of `of`, got none")
            spec = self._values(part, feature=feature)
        return {**spec, "skip_missing": False}

    def number_rules(self, feature: Numeric | Bucketize | SoftBuckets) -> dict[str, Any]:
        """How the native code reads the numbers of one feature before any transform."""
        return self._markers(feature.null_values)

    def value_rules(self, feature: Categorical | Sequence) -> dict[str, Any]:
        """How the native code reads the values of one feature."""
        return self._of_feature(feature)

    def _of_feature(self, feature: Categorical | Sequence) -> dict[str, Any]:
        keep_last = feature.keep == "last" if isinstance(feature, Sequence) else True
        return self._values(feature, feature=feature.name, max_length=feature.max_length, keep_last=keep_last)

    def _feature(self, feature: EmbeddedFeature) -> dict[str, Any]:
        spec: dict[str, Any] = {"name": feature.name, "salt": salt_of(feature.key_space)}
        if isinstance(feature, Categorical | Sequence):
            return {**spec, "kind": "values", "parts": [self._of_feature(feature)]}
        if isinstance(feature, Cross):
            return {**spec, "kind": "cross", "parts": [self._part(part, feature.name) for part in feature.of]}
        if isinstance(feature, Constant):
            id: Id = "text" if isinstance(feature.value, str) else "int64"
            return {**spec, "kind": "constant", "constant": hash_of(feature.value, id)}
        if isinstance(feature, Lookup):
            return {**spec, **self._lookup(feature)}
        return {**spec, **self._buckets(feature)}

    def _lookup(self, feature: Lookup) -> dict[str, Any]:
        if feature.file is not None:
            raise FeatureMapError(f"feature {feature.name!r}: expected entries, got file {feature.file!r} not yet read")
        parts = [self._part(part, feature.name) for part in feature.of]
        ids = [part["id"] for part in parts]
        froms = []
        for row in feature.entries:
            hashes = [hash_of(value, id) for value, id in zip(row[:-1], ids, strict=True)]
            folded = hashes[0] if len(hashes) == 1 else 0
            for h in hashes if len(hashes) > 1 else ():
                folded = _native.mix64(folded ^ h)
            froms.append(folded)
        return {
            "kind": "lookup",
            "parts": [{**part, "skip_missing": False} for part in parts],
            "lookup_hashes": froms,
            "lookup_values": [hash_of(row[-1], feature.id) for row in feature.entries],
            "lookup_skip": feature.missing == "skip",
            "constant": _native.MISSING_HASH,
        }

    def _buckets(self, feature: Bucketize | SoftBuckets) -> dict[str, Any]:
        if feature.edges is None:
            raise FeatureMapError(
                f"feature {feature.name!r}: expected edges, got {feature.quantiles} quantiles not learned yet; "
                "call learn_statistics over the click log first"
            )
        column = self._column(feature.column, feature.time, required=feature.required)
        return {
            "kind": "buckets" if isinstance(feature, Bucketize) else "soft_buckets",
            "parts": [{"skip_missing": feature.missing == "skip"}],
            "number": {
                "column": column,
                "has_fill": feature.fill is not None,
                "fill": feature.fill or 0.0,
                **self._markers(feature.null_values),
            },
            "edges": list(feature.edges),
        }

    def _numeric(self, feature: Numeric) -> dict[str, Any]:
        return {
            "column": self._column(feature.column, feature.time, required=feature.required),
            "has_fill": feature.fill is not None,
            "fill": feature.fill or 0.0,
            "has_indicator": feature.missing_indicator,
            "width": feature.width,
            "steps": number_steps(feature),
            **self._markers(feature.null_values),
        }

    def _label(self, label: Label) -> dict[str, Any]:
        spec: dict[str, Any] = {
            "column": self._column(label.column, required=False),
            **self._markers(label.null_values),
        }
        if label.at_least is not None:
            spec |= {"has_threshold": True, "threshold": label.at_least}
        if label.positive is not None:
            id: Id = "text" if isinstance(label.positive[0], str) else "int64"
            spec |= {"has_positives": True, "id": id, "positives": [hash_of(v, id) for v in label.positive]}
        return spec


def number_steps(feature: Numeric, *, before: str | None = None) -> list[tuple[str, float, float]]:
    """The transforms of a numeric feature as (kind, a, b); those before the one named, if one is.

    Raises: FeatureMapError where statistics are not learned."""
    steps: list[tuple[str, float, float]] = []
    if feature.clip is not None:
        steps.append(("clip", *feature.clip))
    for name in feature.transform:
        if name == before:
            break
        if name in ("log1p", "signed_log1p"):
            steps.append((name, 0.0, 0.0))
            continue
        shift, top = (feature.mean, feature.std) if name == "standardise" else (feature.low, feature.high)
        if shift is None or top is None:
            raise FeatureMapError(
                f"feature {feature.name!r}: expected statistics for {name}, got none; "
                "give them or call learn_statistics over the click log first"
            )
        spread = top if name == "standardise" else top - shift
        steps.append(("affine", shift, 1.0 / spread if spread > 0 else 0.0))
    return steps


def _is_integer(text: str) -> bool:
    digits = text[1:] if text[:1] in ("-", "+") else text
    return digits.isascii() and digits.isdigit() and -(1 << 63) <= int(text) < 1 << 64


def _is_number(text: str) -> bool:
    try:
        return float(text) == float(text)
    except ValueError:
        return False
