"""The grouping report: which features go together, and which could share a table, be narrower, later or left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from . import _native
from .batch import FeatureBatch
from .encode_plan import salt_of
from .feature_config import Categorical, Sequence
from .feature_map import FeatureMap
from .feature_profile import CategoricalProfile, FeatureProfile, FeatureProfiler, row_bytes
from .key_arithmetic import mix64, unmix64

SAMPLE_ROWS = 50_000
SKETCH_VALUES = 1024
REDUNDANT = 0.95
SIMILAR = 0.5
SAME_VALUES = 0.5
FINER = 4.0
NO_INFORMATION = 1e-4
NOTHING_OF_THE_LABEL = "tells nothing of the label by itself; check crosses first"
NO_AUC_LOST = "the trained model loses no AUC without its values"

Action = Literal["leave out", "share a table", "narrower", "admit later"]


@dataclass(frozen=True, slots=True)
class Similarity:
    """Two features: how much one tells of the other, and how many of their values they have in common.

    redundancy: mutual information of the keys over the smaller of their entropies, 0–1: 1 says one decides the other.
    overlap:    distinct values of both over distinct values of either (Jaccard), whatever their tables."""

    a: str
    b: str
    redundancy: float
    overlap: float


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What could be done about a feature, and what it saves.

    bytes_per_example: of weights pulled, gradients pushed and keys sent, for an average example.
    bytes_of_rows:     of memory when every key has its row."""

    feature: str
    action: Action
    reason: str
    bytes_per_example: float
    bytes_of_rows: int


@dataclass(frozen=True, slots=True)
class GroupingReport:
    """Groups of features that say much the same, the most important first; what lies behind them; suggestions."""

    groups: tuple[tuple[str, ...], ...]
    similarities: tuple[Similarity, ...]
    importance: Mapping[str, float]
    suggestions: tuple[Suggestion, ...]


@dataclass(slots=True)
class FeatureGrouper:
    """Takes encoded batches, keeps a sample of one key a row and the smallest value hashes of each feature."""

    feature_map: FeatureMap
    columns: list[list[npt.NDArray[np.uint64]]] = field(default_factory=list)
    sketches: list[npt.NDArray[np.uint64]] = field(default_factory=list)
    rows: int = 0

    def add(self, batch: FeatureBatch) -> None:
        """Look at one batch."""
        if not self.columns:
            self.columns = [[] for _ in self.feature_map.categorical]
            self.sketches = [np.empty(0, np.uint64) for _ in self.feature_map.categorical]
        for index, feature in enumerate(self.feature_map.categorical):
            keys = batch.keys[batch.feature_slice(index)]
            sketch = np.union1d(self.sketches[index], _value_ranks(keys, feature.key_space))
            self.sketches[index] = sketch[:SKETCH_VALUES]
            if self.rows < SAMPLE_ROWS:
                self.columns[index].append(_one_a_row(batch, index))
        self.rows += batch.size

    def similarities(self) -> list[Similarity]:
        """Every pair of features, most redundant first."""
        names = [f.name for f in self.feature_map.categorical]
        codes = [np.unique(np.concatenate(c), return_inverse=True)[1] if c else np.empty(0, int) for c in self.columns]
        entropies = [_entropy(code) for code in codes]
        found = []
        for i in range(len(codes)):
            for j in range(i + 1, len(codes)):
                redundancy = _redundancy(codes[i], codes[j], entropies[i], entropies[j])
                found.append(Similarity(names[i], names[j], redundancy, _overlap(self.sketches[i], self.sketches[j])))
        return sorted(found, key=lambda s: -s.redundancy)


def group_features(
    feature_map: FeatureMap,
    records: Iterable[pa.RecordBatch | pa.Table],
    *,
    importance: Mapping[str, float] | None = None,
    dim: int = 16,
) -> tuple[FeatureProfile, GroupingReport]:
    """The profile and the grouping report, from one pass over the records.

    importance: of each feature, larger is more (such as the AUC lost without it); by default what its value tells of
    the label. Raises: as `FeatureMap.encode`."""
    profiler, grouper = FeatureProfiler(feature_map, dim=dim), FeatureGrouper(feature_map)
    for part in records:
        batch = feature_map.encode(part)
        profiler.add(batch, part)
        grouper.add(batch)
    profile = profiler.result()
    return profile, grouping_report(profile, grouper.similarities(), importance, feature_map)


def grouping_report(
    profile: FeatureProfile,
    similarities: list[Similarity],
    importance: Mapping[str, float] | None,
    feature_map: FeatureMap,
) -> GroupingReport:
    """Groups and suggestions from numbers that are there already."""
    known = importance or {p.name: p.label_information or 0.0 for p in profile.categorical}
    order = sorted((p.name for p in profile.categorical), key=lambda name: -known.get(name, 0.0))
    groups = _groups(order, [s for s in similarities if s.redundancy >= SIMILAR])
    return GroupingReport(
        groups=groups,
        similarities=tuple(similarities),
        importance=known,
        suggestions=tuple(_suggestions(profile, similarities, known, feature_map, importance is not None)),
    )


def _suggestions(
    profile: FeatureProfile,
    similarities: list[Similarity],
    importance: Mapping[str, float],
    feature_map: FeatureMap,
    is_measured: bool,
) -> Iterable[Suggestion]:
    by_name = {p.name: p for p in profile.categorical}
    left_out = set()
    has_importance = is_measured or profile.click_rate is not None
    for name, feature in by_name.items():
        reason = _reason_to_leave_out(feature, by_name, similarities, importance) if has_importance else ""
        if not reason and has_importance and importance.get(name, 0.0) < NO_INFORMATION:
            reason = NO_AUC_LOST if is_measured else NOTHING_OF_THE_LABEL
        if reason:
            left_out.add(name)
            yield Suggestion(name, "leave out", reason, _traffic(feature, feature.dim), feature.bytes_at_full_size)
    sharing: set[str] = set()
    for s in sorted(similarities, key=lambda s: -s.overlap):
        smaller = min((by_name[s.a], by_name[s.b]), key=lambda p: p.distinct)
        if s.overlap < SAME_VALUES or {s.a, s.b} & left_out or smaller.name in sharing:
            continue
        if not _may_share(feature_map, s.a, s.b):
            continue
        sharing.add(smaller.name)
        common = 2 * s.overlap / (1 + s.overlap) * smaller.distinct
        reason = f"{s.overlap:.0%} of the values of {s.a!r} and {s.b!r} are the same"
        yield Suggestion(smaller.name, "share a table", reason, 0.0, int(common * row_bytes(smaller.dim)))
    for name, feature in by_name.items():
        if name in left_out:
            continue
        if feature.suggested_dim < feature.dim:
            saved = feature.bytes_at_full_size - int(feature.distinct * row_bytes(feature.suggested_dim))
            reason = f"{feature.distinct:,.0f} values: dim {feature.suggested_dim} in place of {feature.dim}"
            traffic = _traffic(feature, feature.dim) - _traffic(feature, feature.suggested_dim)
            yield Suggestion(name, "narrower", reason, traffic, saved)
        if feature.suggested_min_count > 1 and feature.rows_kept < 0.9 * feature.distinct:
            saved = int((feature.distinct - feature.rows_kept) * row_bytes(feature.dim))
            reason = (
                f"{feature.rows_kept:,} values seen {feature.suggested_min_count} times or more are "
                f"{feature.coverage:.1%} of all occurrences"
            )
            traffic = _traffic(feature, feature.dim) * (1 - feature.coverage)
            yield Suggestion(name, "admit later", reason, traffic, saved)


def _reason_to_leave_out(
    feature: CategoricalProfile,
    by_name: Mapping[str, CategoricalProfile],
    similarities: list[Similarity],
    importance: Mapping[str, float],
) -> str:
    mine = importance.get(feature.name, 0.0)
    if feature.distinct <= 1 and not feature.null_share:
        return "one value in every row"
    for s in similarities:
        if s.redundancy < REDUNDANT or feature.name not in (s.a, s.b):
            continue
        other = by_name[s.b if feature.name == s.a else s.a]
        is_finer = (other.distinct, other.name) > (feature.distinct, feature.name)
        if is_finer and other.distinct <= FINER * feature.distinct and importance.get(other.name, 0.0) >= mine:
            return f"{other.name!r} decides it and matters at least as much"
    return ""


def _may_share(feature_map: FeatureMap, a: str, b: str) -> bool:
    """Ids of one type in two tables; the numbers of buckets mean another thing in each feature."""
    features = [feature_map.feature(name) for name in (a, b)]
    plain = [f for f in features if isinstance(f, Categorical | Sequence) and f.time is None]
    return len(plain) == 2 and plain[0].table != plain[1].table and plain[0].id == plain[1].id


def _traffic(feature: CategoricalProfile, dim: int) -> float:
    """Bytes an example: weights one way, gradients the other, and the key with each."""
    return feature.values_per_row * (dim * 4 * 2 + 8 * 2)


def _groups(order: list[str], pairs: list[Similarity]) -> tuple[tuple[str, ...], ...]:
    """Features connected by pairs, each group by importance."""
    group_of = {name: {name} for name in order}
    for pair in pairs:
        merged = group_of[pair.a] | group_of[pair.b]
        for name in merged:
            group_of[name] = merged
    seen: set[str] = set()
    groups = []
    for name in order:
        if name not in seen:
            groups.append(tuple(member for member in order if member in group_of[name]))
            seen |= group_of[name]
    return tuple(groups)


def _one_a_row(batch: FeatureBatch, index: int) -> npt.NDArray[np.uint64]:
    """A key a row: the only one, or for bags a mix of all of them, so that equal bags are equal."""
    offsets = batch.offsets[index * batch.size : (index + 1) * batch.size + 1]
    keys = batch.keys[offsets[0] : offsets[-1]]
    if batch.scalar[index]:
        return keys
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(keys, dtype=np.uint64)])
    at = offsets - offsets[0]
    mixed: npt.NDArray[np.uint64] = sums[at[1:]] - sums[at[:-1]]
    return mixed


def _value_ranks(keys: npt.NDArray[np.uint64], key_space: str) -> npt.NDArray[np.uint64]:
    """Hashes of the values behind keys that are equal in every key space, the smallest ones."""
    unique = np.unique(keys)
    h = unmix64(unique) ^ np.uint64(salt_of(key_space))
    ranks = np.sort(mix64(h ^ np.uint64(_native.MISSING_HASH)))
    return ranks[:SKETCH_VALUES]


def _overlap(a: npt.NDArray[np.uint64], b: npt.NDArray[np.uint64]) -> float:
    """Jaccard similarity from the smallest hashes of both. Source: bottom-k sketches, Cohen & Kaplan 2007."""
    smallest = np.union1d(a, b)[:SKETCH_VALUES]
    if not len(smallest):
        return 0.0
    return float((np.isin(smallest, a) & np.isin(smallest, b)).mean())


def _entropy(codes: npt.NDArray[np.int64]) -> float:
    shares = np.bincount(codes) / max(len(codes), 1) if len(codes) else np.empty(0)
    shares = shares[shares > 0]
    return float(-(shares * np.log2(shares)).sum())


def _redundancy(a: npt.NDArray[np.int64], b: npt.NDArray[np.int64], bits_a: float, bits_b: float) -> float:
    """Mutual information over the smaller entropy, less the part that two independent columns of these sizes show."""
    smaller = min(bits_a, bits_b)
    if smaller <= 0 or not len(a):
        return 0.0
    width = int(b.max()) + 1
    shared = bits_a + bits_b - _entropy(np.unique(a * width + b, return_inverse=True)[1])
    chance_a = np.random.default_rng(0).permutation(a)
    chance = bits_a + bits_b - _entropy(np.unique(chance_a * width + b, return_inverse=True)[1])
    return float(np.clip((shared - chance) / max(smaller - chance, 1e-9), 0.0, 1.0))
