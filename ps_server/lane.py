"""Lane: callers go one at a time, in the order they came."""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType


class Lane:
    """A lock that is handed over first come, first served (a plain lock may let a later caller pass).

    Thread safety: any thread. Not re-entrant.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._busy = False
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> Lane:
        with self._guard:
            if not self._busy:
                self._busy = True
                return self
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        try:
            turn.acquire()
        except BaseException:  # interrupted: nobody else would hand on what it has, or gets yet
            with self._guard:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                else:
                    self._hand_over()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._guard:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._waiting:
            self._waiting.popleft().release()
        else:
            self._busy = False
