"""EvictionSweep: a training run's evictions, tablet by tablet between its pushes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from ..embedding.store import EmbeddingStore, Push

CALLS_AT_ONCE = 64
"""Calls of an eviction of all tablets: other users of the store get their turns in between."""


class EvictionSweep:
    """Looks at every tablet's rows once in `every` pushes, a few tablets before each, from push `every` + 1 on.

    Which tablets a push has is a function of its step alone: so the bits of a run depend neither on where it was
    stopped, saved or evaluated, nor on how many shards there are.
    Thread safety: `before_push` belongs to the thread that makes the pushes; everything else comes when it rests.
    """

    def __init__(self, store: EmbeddingStore, every: int | None) -> None:
        """every: steps; None: only when `all_tablets` says so."""
        self._store = store
        self._every = every
        self._step = self._now = 0
        self.evicted: Counter[str] = Counter()

    def go_on(self, step: int, now: int) -> None:
        """`step` pushes were made so far, the latest one of time `now`."""
        self._step, self._now = step, now

    def before_push(self, push: Push) -> None:
        """Evict from the tablets whose turn it is before the next push."""
        self._step += 1
        if self._every is not None and self._step > self._every:
            turn, tablets = (self._step - 1) % self._every, 1 << self._store.tablet_bits
            first, last = turn * tablets // self._every, (turn + 1) * tablets // self._every
            if first < last:
                self._evict(first, last)
        self._now = max(self._now, push.now)

    def all_tablets(self) -> None:
        """Evict from all tablets."""
        for first, last in _cut(1 << self._store.tablet_bits, CALLS_AT_ONCE):
            self._evict(first, last)

    def _evict(self, first: int, last: int) -> None:
        tablets = np.zeros(1 << self._store.tablet_bits, np.bool_)
        tablets[first:last] = True
        self.evicted.update(self._store.evict(self._now, tablets=tablets))


def _cut(count: int, pieces: int) -> Iterator[tuple[int, int]]:
    pieces = min(pieces, count)
    return ((piece * count // pieces, (piece + 1) * count // pieces) for piece in range(pieces))
