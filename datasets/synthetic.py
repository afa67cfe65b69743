"""The built-in click log: power-law ids, a planted factorization machine, and the true click probability kept."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from .whole_file import whole_file

_CHUNK_ROWS = 65_536
_ID_STRIDE = 2_654_435_761  # spreads ranks over 40 bits, so that ids look as raw as real ones
_FEATURE_STRIDE = 97_531


@dataclass(frozen=True, kw_only=True, slots=True)
class SyntheticClicks:
    """What the log looks like; two logs of equal settings are equal.

    features:   number of categorical columns `c1` … ; ids: distinct ids a column has, from few to many.
    skew:       id ranks are ids·u^skew of uniform u: the greater, the heavier the head.
    numerics:   number of log-normal columns `n1` … .
    rank:       dimension of the planted factors.
    linear_std, factor_std: spread of the planted weights; base_logit sets the click rate.
    """

    rows: int = 200_000
    features: int = 8
    min_ids: int = 16
    max_ids: int = 4_000
    skew: float = 4.0
    numerics: int = 2
    rank: int = 4
    linear_std: float = 0.6
    factor_std: float = 0.45
    base_logit: float = -1.4
    seed: int = 7

    def ids_per_feature(self) -> npt.NDArray[np.int64]:
        """(features,) distinct ids of each categorical column."""
        counts: npt.NDArray[np.int64] = np.geomspace(self.min_ids, self.max_ids, self.features).round().astype(np.int64)
        return counts

    def tables(self) -> Iterator[pa.Table]:
        """The log in pieces of at most 65,536 rows: `label`, `true_probability`, `n…` and `c…` columns."""
        weights = np.random.default_rng([self.seed, 0])
        ids = self.ids_per_feature()
        linear = [weights.normal(0.0, self.linear_std, count).astype(np.float32) for count in ids]
        factors = [weights.normal(0.0, self.factor_std, (count, self.rank)).astype(np.float32) for count in ids]
        slopes = weights.normal(0.0, 0.15, self.numerics)
        for piece, start in enumerate(range(0, max(self.rows, 1), _CHUNK_ROWS)):
            random = np.random.default_rng([self.seed, 1, piece])
            count = min(_CHUNK_ROWS, self.rows - start)
            columns: dict[str, npt.NDArray[np.generic]] = {}
            logit = np.full(count, self.base_logit)
            total, squares = np.zeros((count, self.rank)), np.zeros((count, self.rank))
            for feature, distinct in enumerate(ids):
                ranks = np.minimum((distinct * random.random(count) ** self.skew).astype(np.int64), distinct - 1)
                logit += linear[feature][ranks]
                total += factors[feature][ranks]
                squares += factors[feature][ranks] ** 2
                columns[f"c{feature + 1}"] = (ranks * _ID_STRIDE + feature * _FEATURE_STRIDE) % (1 << 40)
            logit += 0.5 * (total**2 - squares).sum(axis=1)
            for numeric in range(self.numerics):
                amount = random.lognormal(1.0, 1.5, count)
                logit += slopes[numeric] * (np.log1p(amount) - 1.3)
                columns[f"n{numeric + 1}"] = amount.astype(np.float32)
            probability = 1.0 / (1.0 + np.exp(-logit))
            label = (random.random(count) < probability).astype(np.int8)
            yield pa.table({"label": label, "true_probability": probability, **columns})


def write_synthetic_clicks(path: str | Path, clicks: SyntheticClicks) -> Path:
    """The Parquet file written, in row groups of 65,536 rows; an older file is replaced when the new one is whole."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    pieces = clicks.tables()
    first = next(pieces)
    with whole_file(target) as partial, pq.ParquetWriter(partial, first.schema) as writer:
        for table in itertools.chain([first], pieces):
            writer.write_table(table)
    return target


def best_auc(probability: npt.NDArray[np.float64], label: npt.NDArray[np.generic]) -> float:
    """AUC that ranking by the true click probability reaches on `label`; no model can be expected to beat it.

    Ties count half. NaN where one class is missing."""
    clicked = np.asarray(label) > 0
    positives, negatives = int(clicked.sum()), int((~clicked).sum())
    if positives == 0 or negatives == 0:
        return float("nan")
    _, inverse, counts = np.unique(probability, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2.0
    return float((mean_rank[inverse][clicked].sum() - positives * (positives + 1) / 2.0) / (positives * negatives))
