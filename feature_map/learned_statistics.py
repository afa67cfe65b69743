"""Statistics that features learn from the click log: means, ranges, quantiles. One pass, bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..datasets.schema import ColumnSpec
from ..datasets.work_unit import BatchId
from . import _native
from .encode_plan import PlanBuilder, number_steps
from .errors import FeatureMapError
from .feature_config import Bucketize, Numeric, SoftBuckets
from .feature_map import FeatureMap
from .key_arithmetic import mix64
from .time_parts import TimeColumn, with_time_columns

SAMPLE_VALUES = 200_000
Learning = Numeric | Bucketize | SoftBuckets
LearnedNumbers = list[npt.NDArray[np.float64]]


def learn_statistics(
    feature_map: FeatureMap, records: Iterable[pa.RecordBatch | pa.Table], *, seed: int = 0
) -> FeatureMap:
    """The feature map with the statistics that its `unlearned` features need, from one pass over `records`.

    Means, deviations and ranges are exact (float64); quantiles are those of a uniform sample of 200,000 values, which
    is the same for the same records and seed. Nulls are left out. What is learned is saved with the map.
    Raises: FeatureMapError naming a feature without a single value; as `FeatureMap.encode`."""
    learner = StatisticsLearner(feature_map, seed=seed)
    if not feature_map.unlearned:
        return feature_map
    for part in records:
        for chunk in [part] if isinstance(part, pa.RecordBatch) else part.to_batches():
            learner.add(learner.encode(chunk))
    return learner.learned()


class StatisticsLearner:
    """Learns the statistics of a feature map record batch by record batch.

    `encode` reads the numbers of a record batch, `add` takes them in, in the order of the log. It may so stand in the
    map's place in `ClickLog.batches`, which says of a number that cannot be read where it stands: file and row.
    Thread safety: `encode` from any number of threads; `add` and `learned` from one.
    """

    def __init__(self, feature_map: FeatureMap, *, seed: int = 0) -> None:
        """seed: of the sample that quantiles are taken from."""
        self._map = feature_map
        self._learners = [
            _Learner.of(f, PlanBuilder(feature_map.config).number_rules(f), seed)
            for f in feature_map.features
            if isinstance(f, Numeric | Bucketize | SoftBuckets) and f.learns is not None
        ]
        self._times = tuple(learner.time for learner in self._learners if learner.time is not None)

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        """The click-log columns of the whole map, so that one that is missing is found before anything is learned."""
        return self._map.columns

    def encode(self, records: pa.RecordBatch, id: BatchId | None = None) -> LearnedNumbers:
        """The numbers of each feature that learns; pure. Raises: as `FeatureMap.encode`."""
        capsules = (with_time_columns(records, self._times) if self._times else records).__arrow_c_array__()
        return [_native.read_numbers(capsules, learner.column, learner.rules) for learner in self._learners]

    def add(self, numbers: LearnedNumbers) -> None:
        """Take in what `encode` gave."""
        for learner, values in zip(self._learners, numbers, strict=True):
            learner.add(values)

    def learned(self) -> FeatureMap:
        """The map with what was learned. Raises: FeatureMapError naming a feature without a single value."""
        learned = {learner.feature.name: learner.learned() for learner in self._learners}
        features = tuple(learned.get(f.name, f) for f in self._map.features)
        return FeatureMap.of(self._map.config.model_copy(update={"features": features}))


@dataclass(slots=True)
class _Learner:
    """Running statistics of one feature."""

    feature: Learning
    column: str
    rules: dict[str, Any]
    time: TimeColumn | None
    seed: int
    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    sample: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    ranks: npt.NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))

    @classmethod
    def of(cls, feature: Learning, rules: dict[str, Any], seed: int) -> _Learner:
        time = None if feature.time is None else TimeColumn(feature.column, feature.time)
        steps = number_steps(feature, before=feature.learns) if isinstance(feature, Numeric) else []
        return cls(feature, feature.column if time is None else time.name, {**rules, "steps": steps}, time, seed)

    def add(self, numbers: npt.NDArray[np.float64]) -> None:
        values = numbers[~np.isnan(numbers)]
        if not len(values):
            return
        if isinstance(self.feature, Numeric):
            self._add_moments(values)
        else:
            self._add_sample(values)
        self.count += len(values)

    def _add_moments(self, values: npt.NDArray[np.float64]) -> None:
        """Chan, Golub, LeVeque 1979: the squared deviations of two parts and of their means."""
        mean, total = float(values.mean()), self.count + len(values)
        delta = mean - self.mean
        self.squares += float(((values - mean) ** 2).sum()) + delta**2 * self.count * len(values) / total
        self.mean += delta * len(values) / total
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))

    def _add_sample(self, values: npt.NDArray[np.float64]) -> None:
        """Each value has a random rank by its place in the log; those of the lowest ranks stay."""
        ranks = _mixed(np.arange(self.count, self.count + len(values), dtype=np.uint64), self.seed)
        self.sample, self.ranks = np.concatenate([self.sample, values]), np.concatenate([self.ranks, ranks])
        if len(self.sample) > 2 * SAMPLE_VALUES:
            self._cut()

    def _cut(self) -> None:
        if len(self.sample) > SAMPLE_VALUES:
            kept = np.sort(np.argpartition(self.ranks, SAMPLE_VALUES)[:SAMPLE_VALUES])
            self.sample, self.ranks = self.sample[kept], self.ranks[kept]

    def learned(self) -> Learning:
        if self.count == 0:
            raise FeatureMapError(
                f"feature {self.feature.name!r}: expected values to learn from, got none that is finite"
            )
        if isinstance(self.feature, Numeric):
            if self.feature.learns == "standardise":
                return self.feature.model_copy(update={"mean": self.mean, "std": math.sqrt(self.squares / self.count)})
            return self.feature.model_copy(update={"low": self.low, "high": self.high})
        self._cut()
        parts = self.feature.quantiles or 2
        if isinstance(self.feature, Bucketize):
            shares = np.arange(1, parts) / parts
            return self.feature.model_copy(update={"edges": self._quantiles(shares)})
        centres = self._quantiles(np.linspace(0, 1, parts))
        if len(centres) < 2:
            centres = (centres[0], centres[0] + 1.0)
        return self.feature.model_copy(update={"centres": centres})

    def _quantiles(self, shares: npt.NDArray[np.float64]) -> tuple[float, ...]:
        return tuple(np.unique(np.quantile(self.sample, shares, method="inverted_cdf")).tolist())


def _mixed(numbers: npt.NDArray[np.uint64], seed: int) -> npt.NDArray[np.uint64]:
    return mix64(numbers ^ np.uint64(_native.mix64((seed + 1) & ((1 << 64) - 1))))
