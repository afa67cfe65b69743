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

    Which tablets a push has is a function of its step (`Push.step`) alone: so the bits of a run depend neither on where
    it was stopped, saved or evaluated, nor on batches without a push, nor on how many shards there are.
    now: the latest time of the pushes so far.
    Thread safety: `before_push` belongs to the thread that makes the pushes; everything else comes when it rests.
    """

    def __init__(self, store: EmbeddingStore, every: int | None, *, evicts: bool, step: int) -> None:
        """every: steps; None: only when `all_tablets` says so.   evicts: whether there is a table to look at.
        step: of the push that was made last."""
        self._store = store
        self._every = every
        self._evicts = evicts
        self._step, self.now = step, 0
        self.evicted: Counter[str] = Counter()

    @property
    def follows_epochs(self) -> bool:
        """Whether rows leave at the ends of epochs."""
        return self._evicts and self._every is None

    def go_on(self, step: int, now: int) -> None:
        """The push of `step` is made; of all so far, the latest one was of time `now`."""
        self._step, self.now = step, now

    def before_push(self, push: Push) -> None:
        """Evict from the tablets whose turn it is before this push, and before those that came without this call."""
        if self._evicts and self._every is not None and push.step > self._every:
            tablets = 1 << self._store.tablet_bits
            for step in range(max(self._step, push.step - self._every, self._every) + 1, push.step + 1):
                turn = (step - 1) % self._every
                first, last = turn * tablets // self._every, (turn + 1) * tablets // self._every
                if first < last:
                    self._evict(first, last)
        self._step, self.now = push.step, max(self.now, push.now)

    def all_tablets(self) -> None:
        """Evict from all tablets."""
        if not self._evicts:
            return
        for first, last in _cut(1 << self._store.tablet_bits, CALLS_AT_ONCE):
            self._evict(first, last)

    def _evict(self, first: int, last: int) -> None:
        tablets = np.zeros(1 << self._store.tablet_bits, np.bool_)
        tablets[first:last] = True
        self.evicted.update(self._store.evict(self.now, tablets=tablets))


def _cut(count: int, pieces: int) -> Iterator[tuple[int, int]]:
    pieces = min(pieces, count)
    return ((piece * count // pieces, (piece + 1) * count // pieces) for piece in range(pieces))
