"""The push log's seam to the file system: a folder of files that are written at their end."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .errors import PushLogInUseError

LOCK_FILE = "lock"
_BUFFERS_A_CALL = 512
"""Below IOV_MAX of every system (1,024 on Linux)."""


class LogFile(Protocol):
    """An open file. Thread safety: `sync` with any other method; else one caller at a time."""

    def write(self, offset: int, buffers: Sequence[bytes | memoryview]) -> None:
        """Write the buffers one after another. Raises: OSError; any part of them may have been written."""

    def read(self, offset: int, size: int) -> npt.NDArray[np.uint8]:
        """(≤ size,) bytes from `offset`, fewer at the end of the file."""

    def size(self) -> int:
        """Bytes in the file."""

    def truncate(self, size: int) -> None:
        """Cut the file off after `size` bytes."""

    def sync(self) -> None:
        """Return when the file's bytes and size are on the disk."""

    def close(self) -> None:
        """Close; idempotent."""


class LogFolder(Protocol):
    """A folder of log files. Thread safety: none; one caller at a time."""

    def names(self) -> list[str]:
        """Names of the files there are, in order."""

    def create(self, name: str) -> LogFile:
        """A new, empty file, replacing one of that name."""

    def open(self, name: str) -> LogFile:
        """A file that is there."""

    def replace(self, name: str, data: bytes) -> None:
        """Give the file this content, on the disk and all at once: a crash leaves the old or the new."""

    def remove(self, name: str) -> None:
        """Remove the file."""

    def sync(self) -> None:
        """Return when created and removed names are on the disk."""

    def path(self, name: str) -> str:
        """What error messages call the file."""

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Keep other processes from writing. Raises: PushLogInUseError naming the process."""


class DiskFile:
    """A file of this machine's file system, written with gathering writes."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, offset: int, buffers: Sequence[bytes | memoryview]) -> None:
        """Write the buffers one after another, without joining them."""
        pending = [memoryview(buffer) for buffer in buffers]
        first = 0
        while first < len(pending):
            written = os.pwritev(self._descriptor, pending[first : first + _BUFFERS_A_CALL], offset)
            offset += written
            while first < len(pending) and written >= len(pending[first]):
                written -= len(pending[first])
                first += 1
            if written:
                pending[first] = pending[first][written:]

    def read(self, offset: int, size: int) -> npt.NDArray[np.uint8]:
        """(≤ size,) bytes from `offset`, fewer at the end of the file."""
        data = np.empty(size, np.uint8)
        view, got = data.data, 0
        while got < size:
            count = os.preadv(self._descriptor, [view[got:]], offset + got)
            if count == 0:
                break
            got += count
        return data[:got]

    def size(self) -> int:
        """Bytes in the file."""
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        """Cut the file off after `size` bytes."""
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        """Return when the file's bytes and size are on the disk."""
        if hasattr(os, "fdatasync"):
            os.fdatasync(self._descriptor)
        else:
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Close; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class DiskFolder:
    """A folder of this machine's file system; made if it is not there."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._path.mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str]:
        """Names of the files there are, in order."""
        return sorted(os.listdir(self._path))

    def create(self, name: str) -> DiskFile:
        """A new, empty file, replacing one of that name."""
        flags = os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_CLOEXEC
        return DiskFile(os.open(self._path / name, flags, 0o644))

    def open(self, name: str) -> DiskFile:
        """A file that is there."""
        return DiskFile(os.open(self._path / name, os.O_RDWR | os.O_CLOEXEC))

    def replace(self, name: str, data: bytes) -> None:
        """Give the file this content, on the disk and all at once."""
        partial = f"{name}.partial"
        try:
            file = self.create(partial)
            try:
                file.write(0, [data])
                file.sync()
            finally:
                file.close()
            os.replace(self._path / partial, self._path / name)
        except OSError:
            with contextlib.suppress(OSError):  # the first error counts
                self.remove(partial)
            raise
        self.sync()

    def remove(self, name: str) -> None:
        """Remove the file."""
        (self._path / name).unlink()

    def sync(self) -> None:
        """Return when created and removed names are on the disk."""
        descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def path(self, name: str) -> str:
        """What error messages call the file."""
        return str(self._path / name)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from writing; gone with this process, however it ends."""
        descriptor = os.open(self._path / LOCK_FILE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
                raise PushLogInUseError(
                    f"expected no other writer of the push log in {self._path}, got process {holder}"
                ) from None
            os.ftruncate(descriptor, 0)
            with contextlib.suppress(OSError):  # it is for people; on a full disk the lock is held without it
                os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(descriptor)
