"""The click-log columns that a feature map reads, and the types that text formats parse them as."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from ..datasets.schema import ColumnSpec
from .errors import FeatureMapError
from .feature_config import (
    Bucketize,
    Categorical,
    ColumnValues,
    Constant,
    Cross,
    EventTime,
    Feature,
    FeatureMapConfig,
    Lookup,
    Numeric,
    Sequence,
    SoftBuckets,
    TimePart,
)

_ID_TYPES = {"int64": pa.int64(), "uint64": pa.uint64(), "text": pa.string()}


def column_specs(config: FeatureMapConfig) -> tuple[ColumnSpec, ...]:
    """Every column once, in the order the features first read them, then label, weight, group and event time.

    A column that several features read as different types is parsed as text, which all of them cast exactly; ids before
    numbers. Raises: FeatureMapError where a list column is also read as no list, and where a feature reads a label."""
    found: dict[str, ColumnSpec] = {}
    labels = {label.column for label in config.label}
    for feature in config.features:
        for spec in _feature_specs(feature, config):
            if spec.name in labels:
                raise FeatureMapError(
                    f"feature {feature.name!r}: expected columns that are no label, got label column {spec.name!r}: "
                    "the model would be told what it is to predict"
                )
    for spec in _all_specs(config):
        known = found.get(spec.name)
        if known is None:
            found[spec.name] = spec
        else:
            found[spec.name] = ColumnSpec(spec.name, _common_type(known, spec), known.required or spec.required)
    return tuple(found.values())


def columns_of(feature: Feature, config: FeatureMapConfig) -> tuple[str, ...]:
    """The columns one feature reads values from, in order."""
    if isinstance(feature, Cross | Lookup):
        return tuple(dict.fromkeys(rule.column for rule in rules_of(feature, config)))
    return () if isinstance(feature, Constant) else (feature.column,)


def rules_of(feature: Cross | Lookup, config: FeatureMapConfig) -> Iterator[ColumnValues]:
    """The rules of each part of a cross or lookup, in order. Raises: FeatureMapError naming a part that is none."""
    by_name = {f.name: f for f in config.features}
    for part in feature.of:
        if not isinstance(part, str):
            yield part
            continue
        named = by_name.get(part)
        if not isinstance(named, Categorical | Sequence):
            raise FeatureMapError(f"feature {feature.name!r}: expected a categorical feature in `of`, got {part!r}")
        yield named


def _all_specs(config: FeatureMapConfig) -> Iterator[ColumnSpec]:
    for feature in config.features:
        yield from _feature_specs(feature, config)
    for label in config.label:
        is_text = label.positive is not None and isinstance(label.positive[0], str)
        yield ColumnSpec(label.column, pa.string() if is_text else pa.float64())
    if config.example_weight is not None:
        yield ColumnSpec(config.example_weight, pa.float64())
    if config.group is not None:
        yield ColumnSpec(config.group.column, _ID_TYPES[config.group.id])
    if config.event_time is not None:
        yield ColumnSpec(config.event_time.column, _time_type(config.event_time))


def _feature_specs(feature: Feature, config: FeatureMapConfig) -> Iterator[ColumnSpec]:
    if isinstance(feature, Cross | Lookup):
        for rule in rules_of(feature, config):
            yield from _value_specs(rule)
    elif isinstance(feature, Categorical | Sequence):
        yield from _value_specs(feature)
    elif isinstance(feature, Bucketize | SoftBuckets | Numeric):
        yield from _number_specs(feature)


def _value_specs(rule: ColumnValues) -> Iterator[ColumnSpec]:
    value = pa.string() if rule.delimiter else _ID_TYPES[rule.id]
    if rule.time is not None:
        yield from _time_specs(rule.column, rule.time, rule.required)
    else:
        yield ColumnSpec(rule.column, pa.list_(value) if rule.is_list else value, rule.required)
    if rule.weights is not None:
        yield ColumnSpec(rule.weights, pa.list_(pa.float64()) if rule.is_list else pa.float64(), rule.required)


def _number_specs(feature: Bucketize | SoftBuckets | Numeric) -> Iterator[ColumnSpec]:
    if feature.time is not None:
        yield from _time_specs(feature.column, feature.time, feature.required)
    else:
        is_list = isinstance(feature, Numeric) and feature.width > 1
        yield ColumnSpec(feature.column, pa.list_(pa.float64()) if is_list else pa.float64(), feature.required)


def _time_specs(column: str, part: TimePart, required: bool) -> Iterator[ColumnSpec]:
    yield ColumnSpec(column, _time_type(part), required)
    if part.since is not None and not part.since[:1].isdigit():
        yield ColumnSpec(part.since, _time_type(part), required)


def _time_type(time: TimePart | EventTime) -> pa.DataType:
    return pa.int64() if time.unit is not None else pa.string()


def _common_type(a: ColumnSpec, b: ColumnSpec) -> pa.DataType:
    if a.type == b.type:
        return a.type
    lists = [spec.type for spec in (a, b) if spec.type is not None and pa.types.is_list(spec.type)]
    if len(lists) == 1:
        raise FeatureMapError(
            f"column {a.name!r}: expected lists for all features that read it, got {a.type} and {b.type}"
        )
    if lists:
        return pa.list_(_common_scalar(lists[0].value_type, lists[1].value_type))
    return _common_scalar(a.type, b.type)


def _common_scalar(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    numbers = [t for t in (a, b) if pa.types.is_floating(t)]
    if len(numbers) == 1 and pa.types.is_integer(a if numbers[0] == b else b):
        return a if numbers[0] == b else b
    return pa.string()
