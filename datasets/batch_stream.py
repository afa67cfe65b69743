"""One epoch of encoded batches, read ahead in the background, with a position to go on from."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Generic, TypeVar

from .errors import ClickLogError
from .hand_over import HandOver
from .work_unit import BatchId

BatchT = TypeVar("BatchT")
ItemT = TypeVar("ItemT")


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


class EncodePool(Generic[ItemT, BatchT]):
    """Calling it gives an iterator over the encoded items of `read`, in order, `threads` of them in work at a time."""

    def __init__(
        self, read: Callable[[], Iterator[ItemT]], encode: Callable[[ItemT], Placed[BatchT]], threads: int
    ) -> None:
        self._read, self._encode, self._threads = read, encode, threads

    def __call__(self) -> Iterator[Placed[BatchT]]:
        """A new pass over the source."""
        if self._threads == 1:
            yield from map(self._encode, self._read())
            return
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="click-log-encoder")
        pending: deque[Future[Placed[BatchT]]] = deque()
        try:
            for item in self._read():
                pending.append(pool.submit(self._encode, item))
                if len(pending) > self._threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


class BatchStream(Generic[BatchT]):
    """Iterable over the encoded batches of one epoch; `position` says where to go on after the batch given last.

    Each `iter` starts anew at the position the stream was made with. Thread safety: one consumer at a time.
    """

    def __init__(
        self,
        read: Callable[[], Iterator[Placed[BatchT]]],
        start: ReadPosition,
        prefetch: int,
        places: Mapping[int, int] | None = None,
    ) -> None:
        """places: of each unit in the order of the epoch, as batch ids name it."""
        self._read, self._start, self._prefetch = read, start, prefetch
        self._places = places or {}
        self._position = start

    @property
    def epoch(self) -> int:
        """The epoch it reads."""
        return self._start.epoch

    @property
    def position(self) -> ReadPosition:
        """Position after the batch given last; pass it as `start` to go on with the next one.

        `es.prefetch` takes batches before they are trained: there, `after(batch.id)` is what to note."""
        return self._position

    def after(self, batch: BatchId | None) -> ReadPosition:
        """Position after a batch of this stream. Raises: ClickLogError for what is none."""
        if batch is None or batch.unit not in self._places:
            raise ClickLogError(f"expected the id of a batch of epoch {self.epoch} of this stream, got {batch}")
        return ReadPosition(self.epoch, self._places[batch.unit], batch.index + 1)

    def __iter__(self) -> Iterator[BatchT]:
        """The batches in order; the background threads end with the iterator, however it ends."""
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
