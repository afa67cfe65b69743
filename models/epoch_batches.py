"""Batches of one epoch, handed out in segments between which a run evaluates and saves."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from ..datasets.batch_stream import ReadPosition
from ..datasets.click_log import ClickLog
from ..datasets.work_unit import BatchId
from ..feature_map import FeatureMap
from ..feature_map.batch import FeatureBatch


class EpochBatches:
    """The batches of an epoch from a position on, in segments: the click log is opened once, however many there are.

    is_end: after a segment, whether the epoch has no batch left. `looks_ahead` reads a batch more to know; a log that
    ends when it ends may let that batch wait for long, so without it an empty segment tells.
    Thread safety: one thread at a time. A segment that is left early closes the log, as `close` does.
    """

    def __init__(
        self,
        log: ClickLog,
        features: FeatureMap,
        batch_size: int,
        start: ReadPosition,
        *,
        seed: int,
        shuffle: bool,
        looks_ahead: bool,
    ) -> None:
        self.is_end = False
        self._looks_ahead = looks_ahead
        self._ahead: list[FeatureBatch] = []
        self._failure: Exception | None = None
        self._is_reading = False
        self._stream = log.batches(
            features,
            batch_size,
            epoch=start.epoch,
            seed=seed,
            shuffle=shuffle,
            start=start,
            prefetch=0,  # who asks for a segment has a thread for it
        )
        self._batches = iter(self._stream)

    def after(self, batch: BatchId) -> ReadPosition:
        """Position after a batch of the epoch."""
        return self._stream.after(batch)

    def segment(self, limit: int | None) -> Iterator[FeatureBatch]:
        """The next `limit` batches; None: all that are left. Raises: what reading raised."""
        try:
            for _ in count() if limit is None else range(limit):
                batch = self._ahead.pop() if self._ahead else self._read()
                if batch is None:
                    self.is_end = True
                    return
                yield batch
        except BaseException:
            self.close()
            raise
        if self._looks_ahead:
            self._look_ahead()

    def close(self) -> None:
        """Close the files and end their threads; a thread that is inside `segment` does it when it comes out."""
        if not self._is_reading:
            self._batches.close()  # type: ignore[attr-defined]

    def _look_ahead(self) -> None:
        try:
            batch = self._read()
        except Exception as error:  # it comes in its place, in the next segment
            self._failure = error
            return
        self.is_end = batch is None
        self._ahead = [] if batch is None else [batch]

    def _read(self) -> FeatureBatch | None:
        if self._failure is not None:
            raise self._failure
        self._is_reading = True
        try:
            return next(self._batches, None)
        finally:
            self._is_reading = False
