"""A lock that is a file: held while a process lives, with its pid in it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from .errors import LockHeldError

PATIENCE_SECONDS = 1.0
_POLL_SECONDS = 0.01


@contextlib.contextmanager
def hold_lock(path: Path, refusal: Callable[[LockHeldError], Exception] | None = None) -> Iterator[Callable[[], bool]]:
    """Hold an exclusive lock on `path`, which has this process's pid; gone with the process, however it ends.

    Gives a function that tells whether the file is still there, and not another one since somebody removed it.
    Raises: LockHeldError where another process holds it, or what `refusal` makes of that."""
    try:
        locked = _open_locked(path)
    except LockHeldError as error:
        if refusal is None:
            raise
        raise refusal(error) from None
    with locked as file:
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        try:
            yield lambda: _is_at(file, path)
        finally:
            if _is_at(file, path):
                path.unlink(missing_ok=True)


def lock_holder(path: Path) -> int | None:
    """Pid of the process that holds the lock of `hold_lock`, or None where nobody does."""
    try:
        file: TextIO = path.open("r", encoding="ascii")
    except FileNotFoundError:
        return None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = file.read().strip()
            return int(text) if text else None
        return None


def _is_at(file: TextIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # a file system that does not answer now
        return True


def _open_locked(path: Path) -> TextIO:
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        file = path.open("a+", encoding="ascii")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(file, path):
                return file
            file.close()
        except BlockingIOError:
            # It may be held by someone who looks who holds it, for a moment.
            file.seek(0)
            holder = file.read().strip()
            file.close()
            if time.monotonic() > until:
                raise LockHeldError(path, int(holder) if holder else None) from None
            time.sleep(_POLL_SECONDS)
