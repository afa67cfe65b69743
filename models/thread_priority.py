"""Which threads may take the step's cores."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

YIELD = 10


class YieldingThread:
    """A thread that works ahead of the step and leaves it the cores: `begin`, `rest` and `end` are its own calls.

    A parallel region of torch is as slow as its slowest thread, so a thread that takes one of its cores for a moment
    holds up all of them. From `begin` on the thread has a lower priority, and after `rest` it runs only where a core is
    idle (SCHED_IDLE), until somebody waits for it. The latter needs the right to undo it, which root has. Linux only (a
    thread has a priority of its own there); elsewhere, or where a sandbox forbids it, the thread only competes.
    Threads that it starts (a decoder's pool) inherit what it has: they stop resting with it, and have the priority that
    it began with after its end.

    Thread safety: `awaited` belongs to one other thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._first_priority = 0
        self._at_begin: frozenset[int] = frozenset()
        self._at_rest: frozenset[int] = frozenset()
        self._is_resting = False
        self._is_awaited = False

    def begin(self) -> None:
        """Lower the calling thread's priority."""
        if sys.platform != "linux":
            return
        thread = threading.get_native_id()
        try:
            self._first_priority = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, self._first_priority + YIELD)
        except OSError:
            return
        if _can_stop_resting():
            _yielding.add(thread)
            self._thread, self._at_begin = thread, _threads()

    def rest(self) -> None:
        """Run only where a core is idle, unless somebody waits: there is work ahead."""
        with self._lock:
            if not self._is_awaited:
                self._set_resting(True)

    def end(self) -> None:
        """Rest no more. To be called before the thread ends: its number may be another one's soon."""
        with self._lock:
            self._set_resting(False)
            if self._thread is not None:
                lowered = os.getpriority(os.PRIO_PROCESS, self._thread)
                for thread in _threads() - self._at_begin - _yielding:
                    _stop_resting(thread)
                    with suppress(OSError):  # it has ended
                        if os.getpriority(os.PRIO_PROCESS, thread) == lowered:
                            os.setpriority(os.PRIO_PROCESS, thread, self._first_priority)
                _yielding.discard(self._thread)
            self._thread = None

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """While somebody waits for the thread: it does not rest."""
        with self._lock:
            self._is_awaited = True
            self._set_resting(False)
        try:
            yield
        finally:
            with self._lock:
                self._is_awaited = False

    def _set_resting(self, resting: bool) -> None:
        if sys.platform != "linux" or self._thread is None or self._is_resting == resting:
            return
        if resting:
            self._at_rest = _threads()
        try:
            os.sched_setscheduler(self._thread, os.SCHED_IDLE if resting else os.SCHED_OTHER, os.sched_param(0))
        except OSError:
            _yielding.discard(self._thread)
            self._thread = None  # it has ended
            return
        self._is_resting = resting
        if not resting:
            for thread in _threads() - self._at_rest - _yielding:
                _stop_resting(thread)


_yielding: set[int] = set()
"""Threads between their `begin` and `end`: what they have, they have not from another one."""


def _threads() -> frozenset[int]:
    try:
        return frozenset(map(int, os.listdir("/proc/self/task")))
    except OSError:  # a sandbox without it
        return frozenset()


def _stop_resting(thread: int) -> None:
    if sys.platform == "linux":
        with suppress(OSError):  # it has ended
            if os.sched_getscheduler(thread) == os.SCHED_IDLE:
                os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


@cache
def _can_stop_resting() -> bool:
    """Whether a thread of this process may enter SCHED_IDLE and leave it again; tried by one made for it."""
    done: list[bool] = []

    def go_and_return() -> None:
        if sys.platform != "linux":
            return
        try:
            if os.sched_getscheduler(0) != os.SCHED_OTHER:
                return
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        except OSError:
            return
        done.append(True)

    attempt = threading.Thread(target=go_and_return, name="priority-trial")
    try:
        attempt.start()
    except RuntimeError:  # the system has no thread left
        return False
    attempt.join()
    return bool(done)
