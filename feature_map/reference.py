"""Encoding, value by value in plain Python: the definition that the native plan is held to; slow."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import mmh3
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .batch import FeatureBatch
from .encode_plan import number_steps
from .feature_config import (
    Bucketize,
    Categorical,
    ColumnValues,
    Constant,
    Cross,
    CrossPart,
    EmbeddedFeature,
    Id,
    Lookup,
    Numeric,
    SoftBuckets,
)
from .feature_config import Sequence as SequenceFeature
from .feature_map import FeatureMap
from .time_parts import TimeColumn

UINT64 = (1 << 64) - 1
Weighted = tuple[int, float]


def mix64(h: int) -> int:
    """Murmur3's fmix64."""
    h ^= h >> 33
    h = h * 0xFF51AFD7ED558CCD & UINT64
    h ^= h >> 33
    h = h * 0xC4CEB9FE1A85EC53 & UINT64
    return h ^ h >> 33


def text_hash(text: str | bytes) -> int:
    """First 64 bits of Murmur3 x64-128 with seed 0, of UTF-8 bytes."""
    return int(mmh3.hash64(text, signed=False)[0])


MISSING = text_hash("embershard/missing")


def make_key(key_space: str, parts: Sequence[int]) -> int:
    """k = salt; for h in parts: k = mix64(k XOR h)."""
    key = text_hash(key_space)
    for h in parts:
        key = mix64(key ^ h)
    return key


def reference_encode(feature_map: FeatureMap, records: pa.RecordBatch | pa.Table) -> FeatureBatch:
    """What `feature_map.encode(records)` gives, without labels and their company."""
    config, rows = feature_map.config, records.num_rows
    table = records if isinstance(records, pa.Table) else pa.Table.from_batches([records])
    keys: list[int] = []
    weights: list[float] = []
    offsets, scalar = [0], []
    has_weights = False
    for feature in feature_map.categorical:
        bags = list(_bags(feature, feature_map, table))
        has_weights |= _is_weighted(feature, feature_map, table)
        scalar.append(all(len(bag) == 1 for bag in bags))
        for bag in bags:
            keys += [key for key, _ in bag]
            weights += [weight for _, weight in bag]
            offsets.append(len(keys))
    dense = [np.zeros((rows, 0), np.float32), *(_dense(f, config.null_values, table) for f in feature_map.numeric)]
    return FeatureBatch(
        size=rows,
        features=tuple(f.name for f in feature_map.categorical),
        keys=np.array(keys, np.uint64),
        offsets=np.array(offsets, np.int64),
        scalar=tuple(scalar),
        dense=np.concatenate(dense, axis=1),
        weights=np.array(weights, np.float32) if has_weights else None,
    )


def _column(table: pa.Table, rule: Any) -> list[Any]:
    if rule.time is not None:
        made = TimeColumn(rule.column, rule.time)
        return [value for batch in table.to_batches() for value in made.read(batch).to_pylist()]
    if rule.column not in table.schema.names:
        return [None] * table.num_rows
    column: list[Any] = table.column(rule.column).to_pylist()
    return column


def _is_null(value: Any, markers: Sequence[str]) -> bool:
    if value is None:
        return True
    if isinstance(value, bytes):
        return any(value == marker.encode() for marker in markers)
    if isinstance(value, int | float):
        return any(_same_number(value, marker) for marker in markers)
    return value in markers


def _same_number(value: float, marker: str) -> bool:
    try:
        return value == (int(marker) if isinstance(value, int) else float(marker))
    except ValueError:
        return False


def _hash(value: Any, id: Id) -> int:
    if id == "text":
        if isinstance(value, bool):
            value = str(value).lower()
        return text_hash(str(value) if isinstance(value, int) else value)
    return int(value) & UINT64


def _values(
    rule: ColumnValues, null_values: Sequence[str], table: pa.Table, *, learn: bool
) -> Iterator[list[Weighted]]:
    """(hash, weight) of each value of each row."""
    markers = (*null_values, *rule.null_values)
    max_length = rule.max_length if isinstance(rule, SequenceFeature) else 0
    keep_last = not isinstance(rule, SequenceFeature) or rule.keep == "last"
    weights = None if rule.weights is None else table.column(rule.weights).to_pylist()
    kind = table.schema.field(rule.column).type if rule.column in table.schema.names else pa.null()
    is_list = pa.types.is_nested(kind) or (rule.is_list and pa.types.is_null(kind))
    for row, value in enumerate(_column(table, rule)):
        bag: list[Weighted] = []
        if rule.delimiter:
            pieces = [] if _is_null(value, markers) or not value else str(value).split(rule.delimiter)
            for piece in pieces:
                text, weight = piece, 1.0
                if rule.weight_delimiter and rule.weight_delimiter in piece:
                    text, _, number = piece.rpartition(rule.weight_delimiter)
                    weight = float(number)
                bag += _element(text if text else None, weight, rule, markers)
        elif isinstance(value, list):
            row_weights = [1.0] * len(value) if weights is None else weights[row]
            for element, weight in zip(value, row_weights, strict=True):
                item, w = element if isinstance(element, tuple) else (element, weight)
                bag += _element(item, w, rule, markers)
        elif value is None and is_list:
            pass
        elif not _is_null(value, markers):
            bag.append((_hash(value, rule.id), 1.0 if weights is None else weights[row]))
        elif learn or rule.missing == "learn":
            missing = MISSING if rule.default is None else _hash(rule.default, rule.id)
            bag.append((missing, 1.0 if weights is None else weights[row]))
        if max_length and len(bag) > max_length:
            bag = bag[-max_length:] if keep_last else bag[:max_length]
        yield bag


def _element(value: Any, weight: float, rule: ColumnValues, markers: Sequence[str]) -> list[Weighted]:
    if not _is_null(value, markers):
        return [(_hash(value, rule.id), weight)]
    return [(MISSING, weight)] if rule.null_elements == "learn" else []


def _rules(feature: EmbeddedFeature, feature_map: FeatureMap) -> list[ColumnValues]:
    if isinstance(feature, Categorical | SequenceFeature):
        return [feature]
    if not isinstance(feature, Cross | Lookup):
        return []
    rules: list[ColumnValues] = []
    for part in feature.of:
        found = part if isinstance(part, CrossPart) else feature_map.feature(part)
        assert isinstance(found, ColumnValues)
        rules.append(found)
    return rules


def _bags(feature: EmbeddedFeature, feature_map: FeatureMap, table: pa.Table) -> Iterator[list[Weighted]]:
    """(key, weight) of each value of each row of one feature."""
    nulls = feature_map.config.null_values
    rules = _rules(feature, feature_map)
    if isinstance(feature, Categorical | SequenceFeature):
        for bag in _values(feature, nulls, table, learn=False):
            yield [(make_key(feature.key_space, [h]), weight) for h, weight in bag]
    elif isinstance(feature, Cross):
        for bags in zip(*(_values(rule, nulls, table, learn=True) for rule in rules), strict=True):
            yield [
                (make_key(feature.key_space, [h for h, _ in combination]), math.prod(w for _, w in combination))
                for combination in itertools.product(*bags)
            ]
    elif isinstance(feature, Lookup):
        entries = {
            tuple(_hash(v, r.id) for v, r in zip(e, rules, strict=False)): e[-1] for e in reversed(feature.entries)
        }
        for bags in zip(*(_values(rule, nulls, table, learn=True) for rule in rules), strict=True):
            yield [
                (make_key(feature.key_space, [_hash(entries[found], feature.id) if found in entries else MISSING]), 1.0)
                for found in itertools.product(*([h for h, _ in bag] for bag in bags))
                if found in entries or feature.missing == "learn"
            ]
    elif isinstance(feature, Constant):
        h = _hash(feature.value, "text" if isinstance(feature.value, str) else "int64")
        yield from ([(make_key(feature.key_space, [h]), 1.0)] for _ in range(table.num_rows))
    else:
        for bucket in _buckets(feature, nulls, table):
            yield [(make_key(feature.key_space, [h]), weight) for h, weight in bucket]


def _number(value: Any, markers: Sequence[str]) -> float | None:
    if _is_null(value, markers):
        return None
    x = float(value)
    return x if math.isfinite(x) and not any(_same_number(x, marker) for marker in markers) else None


def _buckets(feature: Bucketize | SoftBuckets, nulls: Sequence[str], table: pa.Table) -> Iterator[list[Weighted]]:
    edges = feature.edges
    assert edges is not None
    for value in _column(table, feature):
        x = _number(value, (*nulls, *feature.null_values))
        x = feature.fill if x is None else x
        if x is None:
            yield [(MISSING, 1.0)] if feature.missing == "learn" else []
            continue
        above = bisect.bisect_right(edges, x)
        if isinstance(feature, Bucketize):
            yield [(above, 1.0)]
        elif above in (0, len(edges)):
            yield [(max(above - 1, 0), 1.0)]
        else:
            share = np.float32((x - edges[above - 1]) / (edges[above] - edges[above - 1]))
            yield [(above - 1, float(np.float32(1) - share)), *([(above, float(share))] if share > 0 else [])]


def _is_weighted(feature: EmbeddedFeature, feature_map: FeatureMap, table: pa.Table) -> bool:
    """Do the values have weights of their own, as the column's type and the configuration say?"""
    if isinstance(feature, SoftBuckets):
        return table.num_rows > 0
    rules = [] if isinstance(feature, Lookup) else _rules(feature, feature_map)
    return table.num_rows > 0 and any(
        rule.weights is not None
        or bool(rule.weight_delimiter)
        or (rule.column in table.schema.names and pa.types.is_map(table.schema.field(rule.column).type))
        for rule in rules
    )


def _dense(feature: Numeric, nulls: Sequence[str], table: pa.Table) -> npt.NDArray[np.float32]:
    markers = (*nulls, *feature.null_values)
    out = np.zeros((table.num_rows, feature.output_width), np.float32)
    for row, value in enumerate(_column(table, feature)):
        elements = ([None] * feature.width if value is None else value) if feature.width > 1 else [value]
        numbers = [_number(element, markers) for element in elements]
        for i, x in enumerate(numbers):
            filled = feature.fill if x is None else x
            out[row, i] = 0.0 if filled is None else _transform(feature, filled)
        if feature.missing_indicator:
            out[row, feature.width] = float(None in numbers)
    return out


def _transform(feature: Numeric, x: float) -> float:
    for kind, a, b in number_steps(feature):
        if kind == "clip":
            x = min(max(x, a), b)
        elif kind == "log1p":
            x = math.log1p(max(x, 0.0))
        elif kind == "signed_log1p":
            x = math.copysign(math.log1p(abs(x)), x)
        else:
            x = (x - a) * b
    limit = float(np.finfo(np.float32).max)
    return min(max(x, -limit), limit)
