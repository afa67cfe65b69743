"""A bounded hand-over from one background thread to its consumer."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class HandOver(Generic[T]):
    """Iterator over what a background thread reads ahead: at most `depth` items wait, the thread waits beyond that.

    An error of the thread is raised here after the items before it. `close` (also at the end, on an error, when the
    iterator is dropped and at interpreter exit) stops the thread and waits for it; the source is closed by the thread.

    Thread safety: one consumer. Invariants: 1. Items come in order, each once. 2. No thread outlives `close`.
    """

    def __init__(self, make_source: Callable[[], Iterator[T]], depth: int, *, name: str) -> None:
        self._room = _Room[T](depth)
        # The thread knows only the room: with a reference to this object, dropping it could never stop the thread.
        self._thread = threading.Thread(target=_fill, args=(self._room, make_source), name=name, daemon=True)
        self._finalizer = weakref.finalize(self, _stop, self._room, self._thread)
        self._thread.start()

    def __iter__(self) -> HandOver[T]:
        """Itself."""
        return self

    def __next__(self) -> T:
        """The next item; waits for it. Raises: what the source raised."""
        try:
            return self._room.take()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop and join the thread; idempotent."""
        self._finalizer()


class _Room(Generic[T]):
    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._items: deque[T] = deque()
        self._end: BaseException | None = None
        self._is_closed = False
        self._changed = threading.Condition()

    def put(self, item: T) -> bool:
        """Wait for room; False if the consumer has gone."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or len(self._items) < self._depth)
            if self._is_closed:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def finish(self, end: BaseException) -> None:
        with self._changed:
            self._end = end
            self._changed.notify_all()

    def take(self) -> T:
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._end is not None or self._is_closed)
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                return item
            raise self._end if self._end is not None else StopIteration

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._items.clear()
            self._changed.notify_all()


def _fill(room: _Room[T], make_source: Callable[[], Iterator[T]]) -> None:
    end: BaseException = StopIteration()
    try:
        source = make_source()
        try:
            for item in source:
                if not room.put(item):
                    break
        finally:
            close = getattr(source, "close", None)
            if close is not None:
                close()
    except BaseException as error:
        end = error
    room.finish(end)


def _stop(room: _Room[T], thread: threading.Thread) -> None:
    room.close()
    if thread is not threading.current_thread():
        thread.join()
