"""Files being written: counted, summed and made durable beside the thread that fills them."""

from __future__ import annotations

import hashlib
import io
import mmap
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import IO, Any

import pyarrow as pa

_GATHER_BYTES = 1 << 20
_VIEWS_A_CALL = 512
_SUM_BYTES = 4 << 20
"""Checksums are taken of this much at a time: each piece costs the summing thread one wait for the interpreter."""
_SYNC_BYTES = 8 << 20
"""The disk is set to work each time a file has grown by this much, not only at its end."""


class BackgroundWork:
    """Two threads for the files of one save: one takes checksums, one closes files and makes them durable.

    So processor, disk and the thread that fills files work at the same time. Thread safety: one thread at a time.
    """

    def __init__(self) -> None:
        self._sums = ThreadPoolExecutor(1, "checksums")
        self._closing = ThreadPoolExecutor(1, "file-close")
        self._pending: list[Future[None]] = []

    def sum(self, file: ChecksumFile, start: int, stop: int) -> Future[None]:
        """Queue bytes [start, stop) of a file for its checksum; those of one file are summed in the order queued."""
        return self._sums.submit(file.sum, start, stop)

    def sync(self, file: ChecksumFile) -> None:
        """Queue what a file has been given so far for the disk. Raises: OSError of work queued before."""
        self._queue(file.sync)

    def close(self, file: ChecksumFile) -> None:
        """Queue the end of a file. Raises: OSError of work queued before."""
        self._queue(file.close)

    def finish(self) -> None:
        """Wait for all files. Raises: OSError of the first that failed."""
        self.shut_down()
        for future in self._pending:
            future.result()

    def shut_down(self) -> None:
        """Wait until everything queued is done, whatever became of it."""
        self._sums.shutdown(wait=True)
        self._closing.shutdown(wait=True)

    def _queue(self, call: Callable[[], None]) -> None:
        done = [future for future in self._pending if future.done()]
        self._pending = [future for future in self._pending if future not in done]
        for future in done:
            future.result()
        self._pending.append(self._closing.submit(call))


class ChecksumFile(io.RawIOBase):
    """A file being written: counts bytes and sums them (sha256), on `work`'s thread where there is one.

    file: an unbuffered file of a local disk, open for reading as well, or a pyarrow stream. Bytes are gathered and
    written a MiB at a time, so buffers must not be changed after `write`. Thread safety: one thread at a time.
    """

    def __init__(self, file: IO[bytes], work: BackgroundWork | None = None) -> None:
        super().__init__()
        self._file = file
        self._is_local = not isinstance(file, pa.NativeFile)
        self._work = work if self._is_local else None
        self._digest = hashlib.sha256()
        self._bytes = self._gathered_bytes = self._synced = self._summed = 0
        self._gathered: list[memoryview] = []
        self._summing: list[Future[None]] = []

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, data: Any) -> int:
        """Bytes taken, which is all of `data`. Raises: OSError, of this write or of one before it."""
        view = memoryview(data).cast("B")
        self._gathered.append(view)
        self._gathered_bytes += len(view)
        self._bytes += len(view)
        if self._gathered_bytes >= _GATHER_BYTES:
            self._write_gathered()
            if self._work is not None and self._bytes - self._synced >= _SYNC_BYTES:
                self._synced = self._bytes
                self._work.sync(self)
        return len(view)

    def tell(self) -> int:
        """Bytes written so far."""
        return self._bytes

    def sha256(self) -> str:
        """sha256 of the bytes so far, in hex."""
        self._write_gathered()
        if self._work is not None:
            self._sum_later(self._work)
        for future in self._summing:
            future.result()
        self._summing = []
        return self._digest.hexdigest()

    def sum(self, start: int, stop: int) -> None:
        """Take bytes [start, stop) of a local file into the checksum, as the disk's cache holds them."""
        first = start - start % mmap.ALLOCATIONGRANULARITY
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        length = stop - first
        with (
            mmap.mmap(self._file.fileno(), length, flags=flags, prot=mmap.PROT_READ, offset=first) as pages,
            memoryview(pages) as view,
            view[start - first :] as part,
        ):
            self._digest.update(part)

    def sync(self) -> None:
        """Have the disk write what is there; nothing for files that are no longer, or not on a local disk."""
        if not self.closed and self._is_local:
            os.fdatasync(self._file.fileno())

    def close(self) -> None:
        """Write what is left, make it durable (on a local disk), close."""
        if not self.closed:
            try:
                self._write_gathered()
                self._file.flush()
                if self._is_local:
                    os.fsync(self._file.fileno())
            finally:
                super().close()
                self._file.close()

    def abandon(self) -> None:
        """Close without caring for what was written; never raises."""
        self._gathered, self._gathered_bytes = [], 0
        with suppress(OSError, ValueError):
            super().close()
            self._file.close()

    def _write_gathered(self) -> None:
        views, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if not views:
            return
        if self._is_local:
            _write_all(self._file.fileno(), views)
        else:
            for view in views:
                self._file.write(view)
        if self._work is None:
            for view in views:
                self._digest.update(view)
        elif self._bytes - self._summed >= _SUM_BYTES:
            self._sum_later(self._work)

    def _sum_later(self, work: BackgroundWork) -> None:
        if self._bytes > self._summed:
            self._summing.append(work.sum(self, self._summed, self._bytes))
            self._summed = self._bytes


def _write_all(descriptor: int, views: list[memoryview]) -> None:
    """Write all bytes in few system calls; a call may take less than it was given."""
    position = 0
    while position < len(views):
        written = os.writev(descriptor, views[position : position + _VIEWS_A_CALL])
        while position < len(views) and written >= len(views[position]):
            written -= len(views[position])
            position += 1
        if written:
            views = [*views[:position], views[position][written:], *views[position + 1 :]]
