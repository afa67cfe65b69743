"""A lock for objects that are pickled to loader workers."""

from __future__ import annotations

import threading


class FreshLock:
    """A mutex; a pickled copy is a new, open one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[FreshLock], tuple[()]]:
        return FreshLock, ()
