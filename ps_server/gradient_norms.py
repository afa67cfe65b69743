"""Running gradient norms per table: what one worker's push is measured against."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable

from .wire import NormSummary

DECAY = 0.99
"""Weight of what is known at each push; the mean covers about the last 100 pushes."""


class GradientNorms:
    """Exponential mean and deviation of each table's gradient norm over the pushes of all workers.

    Thread safety: any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[str, tuple[float, float, int]] = {}

    def add(self, norms: dict[str, float]) -> None:
        """Take the norms of one push in; norms that are not finite are left out."""
        with self._lock:
            for table, norm in norms.items():
                if not math.isfinite(norm):
                    continue
                mean, square, pushes = self._tables.get(table, (0.0, 0.0, 0))
                # Early on all pushes weigh the same, so that the first one does not count for a hundred.
                keep = min(DECAY, pushes / (pushes + 1))
                self._tables[table] = (
                    keep * mean + (1 - keep) * norm,
                    keep * square + (1 - keep) * norm * norm,
                    pushes + 1,
                )

    def summaries(self, tables: Iterable[str]) -> dict[str, NormSummary]:
        """What is known of these tables."""
        with self._lock:
            return {table: _summary(*self._tables[table]) for table in tables if table in self._tables}

    def all(self) -> dict[str, NormSummary]:
        """What is known of every table."""
        with self._lock:
            return {table: _summary(*entry) for table, entry in self._tables.items()}


def _summary(mean: float, square: float, pushes: int) -> NormSummary:
    return NormSummary(mean, math.sqrt(max(square - mean * mean, 0.0)), pushes)
