"""One epoch of encoded batches, read ahead in the background, with a position to go on from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Generic, TypeVar

from .hand_over import HandOver

BatchT = TypeVar("BatchT")


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """Where to go on: batch `batch` of the `unit`-th work unit in the order of epoch `epoch`."""

    epoch: int
    unit: int = 0
    batch: int = 0


@dataclass(frozen=True, slots=True)
class Placed(Generic[BatchT]):
    """A batch and the position after it."""

    batch: BatchT
    after: ReadPosition


class BatchStream(Generic[BatchT]):
    """Iterable over the encoded batches of one epoch; `position` says where to go on after the batch given last.

    Each `iter` starts anew at the position the stream was made with. Thread safety: one consumer at a time.
    """

    def __init__(self, read: Callable[[], Iterator[Placed[BatchT]]], start: ReadPosition, prefetch: int) -> None:
        self._read, self._start, self._prefetch = read, start, prefetch
        self._position = start

    @property
    def epoch(self) -> int:
        """The epoch it reads."""
        return self._start.epoch

    @property
    def position(self) -> ReadPosition:
        """Position after the batch given last; pass it as `start` to go on with the next one."""
        return self._position

    def __iter__(self) -> Iterator[BatchT]:
        """The batches in order; the background thread ends with the iterator, however it ends."""
        self._position = self._start
        if self._prefetch == 0:
            yield from self._track(self._read())
            return
        with closing(HandOver(self._read, self._prefetch, name="click-log-reader")) as ahead:
            yield from self._track(ahead)

    def _track(self, placed: Iterator[Placed[BatchT]]) -> Iterator[BatchT]:
        for item in placed:
            self._position = item.after
            yield item.batch
