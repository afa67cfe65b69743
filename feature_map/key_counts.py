"""What a stream of keys holds: distinct ones, frequent ones, how they go with the label. Bounded memory."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]

_PRECISION = 14
_PENDING = 1 << 18
_RARE = 10


class DistinctSketch:
    """HyperLogLog over keys, which are uniform hashes already; standard error 0.8 %, 16 KiB.

    Source: Flajolet et al. 2007, with linear counting below 2.5 m as their small-range correction."""

    def __init__(self) -> None:
        self._registers = np.zeros(1 << _PRECISION, np.uint8)

    def add(self, keys: Keys) -> None:
        """Count these keys."""
        index = (keys >> np.uint64(64 - _PRECISION)).astype(np.int64)
        rest = (keys << np.uint64(_PRECISION)) | np.uint64(1 << (_PRECISION - 1))
        _, exponent = np.frexp((rest >> np.uint64(11)).astype(np.float64))
        np.maximum.at(self._registers, index, (54 - exponent).astype(np.uint8))

    def merge(self, other: DistinctSketch) -> None:
        """Count what `other` counted too."""
        np.maximum(self._registers, other._registers, out=self._registers)

    def estimate(self) -> float:
        """About how many distinct keys were added."""
        size = len(self._registers)
        raw = 0.7213 / (1 + 1.079 / size) * size * size / float(np.ldexp(1.0, -self._registers.astype(np.int32)).sum())
        empty = int((self._registers == 0).sum())
        return size * math.log(size / empty) if raw <= 2.5 * size and empty else raw


class KeyCounts:
    """Occurrences and label sums of each key; beyond `capacity` keys the rarest are let go and only counted.

    keys (n,) uint64 ascending · counts (n,) occurrences · clicks (n,) sums of labels · lost: occurrences let go."""

    def __init__(self, capacity: int = 1 << 20) -> None:
        self.capacity = capacity
        self.keys: Keys = np.empty(0, np.uint64)
        self.counts: Floats = np.empty(0)
        self.clicks: Floats = np.empty(0)
        self.lost = 0.0
        self.lost_clicks = 0.0
        self._pending: list[tuple[Keys, Floats]] = []
        self._pending_size = 0

    def add(self, keys: Keys, labels: Floats) -> None:
        """Count keys (n,), each with the label (n,) of its example."""
        self._pending.append((keys, labels))
        self._pending_size += len(keys)
        if self._pending_size >= _PENDING:
            self.settle()

    def settle(self) -> None:
        """Bring `keys`, `counts` and `clicks` up to date."""
        if not self._pending:
            return
        all_keys = np.concatenate([self.keys, *(keys for keys, _ in self._pending)])
        counts = np.concatenate([self.counts, np.ones(self._pending_size)])
        clicks = np.concatenate([self.clicks, *(labels for _, labels in self._pending)])
        self._pending, self._pending_size = [], 0
        keys, inverse = np.unique(all_keys, return_inverse=True)
        self.counts = np.bincount(inverse, counts, minlength=len(keys)).astype(np.float64)
        self.clicks = np.bincount(inverse, clicks, minlength=len(keys)).astype(np.float64)
        self.keys = keys
        if len(keys) > self.capacity:
            kept = np.sort(np.argpartition(-self.counts, self.capacity // 2)[: self.capacity // 2])
            self.lost += float(self.counts.sum() - self.counts[kept].sum())
            self.lost_clicks += float(self.clicks.sum() - self.clicks[kept].sum())
            self.keys, self.counts, self.clicks = self.keys[kept], self.counts[kept], self.clicks[kept]

    @property
    def is_exact(self) -> bool:
        """Is every key still counted?"""
        return self.lost == 0.0

    @property
    def total(self) -> float:
        """Occurrences of all keys."""
        return float(self.counts.sum()) + self.lost

    def top(self, count: int) -> npt.NDArray[np.int64]:
        """Places of the most frequent keys, most frequent first."""
        order = np.argsort(-self.counts, kind="stable")[:count]
        return order.astype(np.int64)

    def entropy_bits(self, distinct: float) -> float:
        """Entropy of the keys' distribution; keys let go count as equally rare."""
        if self.total == 0:
            return 0.0
        shares = self.counts[self.counts > 0] / self.total
        bits = float(-(shares * np.log2(shares)).sum())
        if self.lost > 0:
            share = self.lost / self.total
            bits -= share * math.log2(share / max(distinct - len(self.keys), 1.0))
        return max(bits, 0.0)

    def label_information_bits(self) -> float:
        """Mutual information of key and yes/no label, less what chance alone shows (Miller 1955); at least 0.

        Keys with under ten occurrences, and those let go, count as one value: they tell little and overfit much."""
        total = self.total
        if total == 0:
            return 0.0
        often = self.counts >= _RARE
        rare_count, rare_clicks = total - self.counts[often].sum(), self.clicks[~often].sum() + self.lost_clicks
        counts, clicks = self.counts[often], self.clicks[often]
        if rare_count > 0:
            counts, clicks = np.append(counts, rare_count), np.append(clicks, rare_clicks)
        rate = float(clicks.sum()) / total
        inside = float((counts * binary_entropy_bits(clicks / np.maximum(counts, 1e-300))).sum()) / total
        bias = (len(counts) - 1) / (2 * total * math.log(2))
        return max(float(binary_entropy_bits(np.array([rate]))[0]) - inside - bias, 0.0)

    def share_seen_at_least(self, threshold: int) -> tuple[float, int]:
        """Share of occurrences that belong to keys seen at least so often, and how many keys those are."""
        enough = self.counts >= threshold
        return float(self.counts[enough].sum()) / max(self.total, 1.0), int(enough.sum())


def binary_entropy_bits(rates: Floats) -> Floats:
    """Entropy of yes/no variables with these rates."""
    p = np.clip(rates, 0.0, 1.0)
    q = 1.0 - p
    logs = -(p * np.log2(np.where(p > 0, p, 1.0)) + q * np.log2(np.where(q > 0, q, 1.0)))
    return np.asarray(logs, np.float64)
