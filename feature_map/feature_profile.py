"""The feature profile: one streaming pass over a click log, numbers for each feature, suggestions for its table."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ..datasets.whole_file import whole_file
from . import _native
from .batch import FeatureBatch
from .encode_plan import salt_of
from .feature_map import FeatureMap
from .key_counts import DistinctSketch, KeyCounts, binary_entropy_bits
from .text_sources import TextSample

TOP_VALUES = 20
COVERAGE = 0.97
FEW_KEYS = 1000
THRESHOLDS = (1, 2, 3, 5, 10, 20, 50, 100)
SAMPLE_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class TopValue:
    """A frequent value: its key, the value where it can be told, occurrences, click rate among them."""

    key: int
    value: str | None
    count: int
    click_rate: float | None


@dataclass(frozen=True, slots=True)
class CategoricalProfile:
    """A feature with keys.

    distinct:          distinct keys, counted exactly (`is_exact`) or by HyperLogLog.
    null_share:        rows with no key or only the missing key.     values_per_row: keys a row, on average.
    entropy_bits:      of the keys' distribution.
    label_information: share of the label's entropy that the value tells, corrected for chance; None without labels.
    suggested_dim:     8 + distinct^¼, a multiple of 4, at most 64.
    suggested_min_count, coverage, rows_kept: the highest admission threshold that still covers 97 % of occurrences;
                       1 below a thousand keys.
    bytes_at_full_size: rows of every key with `dim` weights and as many state floats, and 8 bytes of key."""

    name: str
    table: str
    dim: int
    rows: int
    distinct: float
    is_exact: bool
    null_share: float
    values_per_row: float
    entropy_bits: float
    label_information: float | None
    suggested_dim: int
    suggested_min_count: int
    coverage: float
    rows_kept: int
    bytes_at_full_size: int
    top: tuple[TopValue, ...]
    rank_counts: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class NumericProfile:
    """A dense column, as the model sees it. `label_auc`: how well the number alone ranks the labels; ½ says nothing."""

    name: str
    rows: int
    mean: float
    std: float
    low: float
    high: float
    zero_share: float
    quantiles: tuple[float, ...]
    label_auc: float | None
    warning: str = ""


@dataclass(frozen=True, slots=True)
class FeatureProfile:
    """What a click log holds, feature by feature."""

    rows: int
    click_rate: float | None
    categorical: tuple[CategoricalProfile, ...]
    numeric: tuple[NumericProfile, ...]

    def to_table(self) -> pa.Table:
        """One row a feature; `kind` tells categorical from numeric, what does not apply is null."""
        rows = [{"kind": "categorical", **asdict(p)} for p in self.categorical]
        rows += [{"kind": "numeric", **asdict(p)} for p in self.numeric]
        return pa.Table.from_pylist(rows, schema=PROFILE_SCHEMA)

    def save(self, path: str | Path) -> None:
        """Write the numbers as Parquet. Raises: OSError."""
        with whole_file(path) as partial:
            pq.write_table(self.to_table(), partial)


PROFILE_SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("name", pa.string()),
        ("table", pa.string()),
        ("rows", pa.int64()),
        ("dim", pa.int32()),
        ("distinct", pa.float64()),
        ("is_exact", pa.bool_()),
        ("null_share", pa.float64()),
        ("values_per_row", pa.float64()),
        ("entropy_bits", pa.float64()),
        ("label_information", pa.float64()),
        ("suggested_dim", pa.int32()),
        ("suggested_min_count", pa.int32()),
        ("coverage", pa.float64()),
        ("rows_kept", pa.int64()),
        ("bytes_at_full_size", pa.int64()),
        (
            "top",
            pa.list_(
                pa.struct(
                    [
                        ("key", pa.uint64()),
                        ("value", pa.string()),
                        ("count", pa.int64()),
                        ("click_rate", pa.float64()),
                    ]
                )
            ),
        ),
        ("mean", pa.float64()),
        ("std", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("zero_share", pa.float64()),
        ("quantiles", pa.list_(pa.float64())),
        ("label_auc", pa.float64()),
        ("warning", pa.string()),
    ]
)


@dataclass(slots=True)
class _Column:
    """Running numbers of one embedded feature."""

    sketch: DistinctSketch = field(default_factory=DistinctSketch)
    counts: KeyCounts = field(default_factory=KeyCounts)
    values: int = 0
    null_rows: int = 0


class FeatureProfiler:
    """Takes encoded batches one after the other; `result` gives the profile of what it saw.

    dim: weights a row of features that do not say. Memory: at most about 50 MB a feature, whatever the log's size."""

    def __init__(self, feature_map: FeatureMap, *, dim: int = 16) -> None:
        self._features = feature_map
        self._dim = dim
        self._texts = TextSample(feature_map)
        self._columns = [_Column() for _ in feature_map.categorical]
        self._missing = [_native.mix64(_native.MISSING_HASH ^ salt_of(f.key_space)) for f in feature_map.categorical]
        self._rows = 0
        self._clicks = 0.0
        self._has_label = True
        self._moments = np.zeros((4, feature_map.dense_width))
        self._range = np.array([[math.inf], [-math.inf]]) * np.ones(feature_map.dense_width)
        self._sample: list[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]] = []
        self._sampled = 0

    def add(self, batch: FeatureBatch, records: pa.RecordBatch | pa.Table | None = None) -> None:
        """Count one batch; with the records it was made from, frequent texts can be shown."""
        if records is not None:
            self._texts.add(records)
        label = _first_label(batch)
        self._has_label &= label is not None
        clicks = np.zeros(batch.size) if label is None else label.astype(np.float64)
        self._rows += batch.size
        self._clicks += float(clicks.sum())
        for index, column in enumerate(self._columns):
            keys = batch.keys[batch.feature_slice(index)]
            lengths = np.diff(batch.offsets[index * batch.size : (index + 1) * batch.size + 1])
            is_missing = keys == np.uint64(self._missing[index])
            missing_rows = np.repeat(np.arange(batch.size), lengths)[is_missing]
            column.null_rows += int((lengths == 0).sum()) + int((lengths[missing_rows] == 1).sum())
            column.values += len(keys)
            column.sketch.add(keys[~is_missing])
            column.counts.add(keys, np.repeat(clicks, lengths))
        self._add_dense(batch, clicks)

    def result(self) -> FeatureProfile:
        """The profile so far."""
        rate = self._clicks / self._rows if self._has_label and self._rows else None
        return FeatureProfile(
            rows=self._rows,
            click_rate=rate,
            categorical=tuple(self._categorical(index, rate) for index in range(len(self._columns))),
            numeric=tuple(self._numeric(rate)),
        )

    def _add_dense(self, batch: FeatureBatch, clicks: npt.NDArray[np.float64]) -> None:
        if not batch.size or not self._features.dense_width:
            return
        dense = batch.dense.astype(np.float64)
        self._moments += [dense.sum(0), (dense**2).sum(0), (dense == 0).sum(0), np.full(dense.shape[1], batch.size)]
        self._range = np.array([np.minimum(self._range[0], dense.min(0)), np.maximum(self._range[1], dense.max(0))])
        if self._sampled < SAMPLE_ROWS:
            self._sample.append((batch.dense, clicks.astype(np.float32)))
            self._sampled += batch.size

    def _categorical(self, index: int, rate: float | None) -> CategoricalProfile:
        feature, column = self._features.categorical[index], self._columns[index]
        counts = column.counts
        counts.settle()
        is_missing = counts.keys == np.uint64(self._missing[index])
        distinct = float(len(counts.keys) - int(is_missing.sum())) if counts.is_exact else column.sketch.estimate()
        threshold, coverage, kept = _admission(counts)
        information = None
        if rate is not None:
            label_bits = float(binary_entropy_bits(np.array([rate]))[0])
            information = counts.label_information_bits() / label_bits if label_bits > 0 else 0.0
        dim = feature.dim or self._features.config.dim or self._dim
        order = counts.top(TOP_VALUES)
        return CategoricalProfile(
            name=feature.name,
            table=feature.table,
            dim=dim,
            rows=self._rows,
            distinct=distinct,
            is_exact=counts.is_exact,
            null_share=column.null_rows / max(self._rows, 1),
            values_per_row=column.values / max(self._rows, 1),
            entropy_bits=counts.entropy_bits(distinct),
            label_information=information,
            suggested_dim=suggested_dim(distinct),
            suggested_min_count=threshold,
            coverage=coverage,
            rows_kept=kept,
            bytes_at_full_size=int(distinct * row_bytes(dim)),
            top=tuple(self._top_value(index, int(place), rate) for place in order),
            rank_counts=tuple(np.sort(counts.counts)[::-1][:100_000].tolist()),
        )

    def _top_value(self, index: int, place: int, rate: float | None) -> TopValue:
        feature, counts = self._features.categorical[index], self._columns[index].counts
        key, count = int(counts.keys[place]), int(counts.counts[place])
        table = next(t for t in self._features.tables if t.name == feature.table)
        value = self._texts.find(feature.table, key)
        if key == self._missing[index]:
            value = "(missing)"
        elif table.id in ("int64", "uint64"):
            value = str(self._features.value(feature.name, key))
        return TopValue(key, value, count, float(counts.clicks[place]) / count if rate is not None else None)

    def _numeric(self, rate: float | None) -> Iterable[NumericProfile]:
        if not self._rows or not self._features.dense_width:
            return
        dense = np.concatenate([d for d, _ in self._sample])
        clicks = np.concatenate([c for _, c in self._sample])
        at = 0
        for feature in self._features.numeric:
            for part in range(feature.output_width):
                column, place = dense[:, at], at
                at += 1
                mean = float(self._moments[0, place]) / self._rows
                low, high = float(self._range[0, place]), float(self._range[1, place])
                large = max(abs(low), abs(high)) > 1e3
                yield NumericProfile(
                    name=_column_name(feature.name, part, feature.width, feature.output_width),
                    rows=self._rows,
                    mean=mean,
                    std=math.sqrt(max(float(self._moments[1, place]) / self._rows - mean**2, 0.0)),
                    low=low,
                    high=high,
                    zero_share=float(self._moments[2, place]) / self._rows,
                    quantiles=tuple(np.quantile(column, np.linspace(0, 1, 21)).tolist()),
                    label_auc=None if rate is None else ranking_auc(column, clicks),
                    warning="numbers beyond ±1,000 reach the model: a transform is missing" if large else "",
                )


def profile_features(
    feature_map: FeatureMap, records: Iterable[pa.RecordBatch | pa.Table], *, dim: int = 16
) -> FeatureProfile:
    """The profile of a click log, from one pass over its records. Raises: as `FeatureMap.encode`."""
    profiler = FeatureProfiler(feature_map, dim=dim)
    for part in records:
        profiler.add(feature_map.encode(part), part)
    return profiler.result()


def row_bytes(dim: int) -> int:
    """Bytes of a row with `dim` float32 weights, as many state floats (adagrad), and its key."""
    return dim * 4 + dim * 4 + 8


def suggested_dim(distinct: float) -> int:
    """8 + distinct^¼ as a multiple of 4, at most 64; 4 for a handful of values (TorchEasyRec's feature guide)."""
    if distinct <= 8:
        return 4
    return min(64, 4 * round((8 + distinct**0.25) / 4))


def ranking_auc(scores: npt.NDArray[np.float32], labels: npt.NDArray[np.float32]) -> float | None:
    """Area under the ROC curve, ties counted half (Mann-Whitney); None where the labels are of one kind."""
    positive = labels >= 0.5
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        return None
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2.0
    return (float(ranks[inverse][positive].sum()) - ones * (ones + 1) / 2) / (ones * zeros)


def _first_label(batch: FeatureBatch) -> npt.NDArray[np.float32] | None:
    if batch.label is None:
        return None
    label: npt.NDArray[np.float32] = batch.label if batch.label.ndim == 1 else batch.label[:, 0]
    return label


def _admission(counts: KeyCounts) -> tuple[int, float, int]:
    best = (1, 1.0, len(counts.keys))
    if len(counts.keys) < FEW_KEYS:
        return best
    for threshold in THRESHOLDS:
        coverage, kept = counts.share_seen_at_least(threshold)
        if coverage < COVERAGE:
            break
        best = (threshold, coverage, kept)
    return best


def _column_name(name: str, part: int, width: int, output_width: int) -> str:
    if output_width == 1:
        return name
    return f"{name}.is_missing" if part == width else name if width == 1 else f"{name}[{part}]"
