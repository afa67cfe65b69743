"""Appends mutations to the push log; see docs/push_log_format.md."""

from __future__ import annotations

import contextlib
import errno
import threading
from dataclasses import dataclass
from typing import Literal

import mmh3

from .errors import PushLogFailedError, PushLogFullError
from .mutation import Mutation
from .mutation_encoding import encode_mutation
from .push_log_files import LogFile, LogFolder
from .push_log_format import (
    MARK_OFFSET,
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    LogIdentity,
    RecordHeader,
    SegmentHeader,
    first_of_segment,
    pack_mark,
    segment_name,
)

SEGMENT_BYTES = 256 << 20
"""A segment that has grown past this is followed by a new one: the grain in which trimming frees room."""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class LogLimits:
    """segment_bytes: when a new segment is begun.   log_bytes: past this the log wants a checkpoint (None: never)."""

    segment_bytes: int = SEGMENT_BYTES
    log_bytes: int | None = None


@dataclass(slots=True)
class _Segment:
    """One segment file: position of its first record, bytes in it, and the open file if it is the last one."""

    first: int
    size: int


class PushLogWriter:
    """The writing end of a push log; positions count records, and `end` is the position of the next one.

    A writer begins a new segment behind what is there, or goes on in the last one while there is no room. A record is
    durable once the segment's mark is behind it, and, with `fsync`, all before the mark is synced; one mark, and one
    sync, serve all records appended before. With `log` a durable record outlives the process, not the machine.

    Thread safety: `append`, `rewind`, `roll`, `trim`, `close` from one caller at a time; `wait_durable`, `end`,
    `size_bytes` from any thread.
    Invariants: 1. a failed append leaves the log as it was. 2. positions are never used twice, but by a record that was
    rewound. 3. after an error that leaves the log in doubt nothing is ever reported durable.
    """

    def __init__(
        self,
        folder: LogFolder,
        identity: LogIdentity,
        *,
        generation: int,
        end: int = 0,
        durability: Literal["log", "fsync"] = "log",
        limits: LogLimits | None = None,
    ) -> None:
        """end: position to go on at; what is in the folder ends there (`PushLogReader.end`).

        Raises: PushLogFullError where there is no room for the first segment's header."""
        self._folder = folder
        self._identity = identity
        self._generation = generation
        self._is_synced = durability == "fsync"
        self._limits = limits or LogLimits()
        self._end = self._durable = end
        self._failure: str | None = None
        self._syncing = threading.Lock()
        self._segments = [_Segment(first, self._size_of(first)) for first in _segments_in(folder) if first <= end]
        self._last_bytes = 0
        if self._is_synced:
            # Records that were replayed are acknowledged from now on, to whoever sends them again.
            self._sync_segments()
        self._file = self._first_file()

    @property
    def end(self) -> int:
        """Position of the next record."""
        return self._end

    @property
    def first(self) -> int:
        """Position of the first record that is still there."""
        return self._segments[0].first

    @property
    def size_bytes(self) -> int:
        """Bytes in all segment files."""
        return sum(segment.size for segment in self._segments)

    @property
    def wants_checkpoint(self) -> bool:
        """Whether the log is past `log_bytes`; a checkpoint and `trim` make it small again."""
        return self._limits.log_bytes is not None and self.size_bytes > self._limits.log_bytes

    def append(self, mutation: Mutation) -> int:
        """Position behind the new record, for `wait_durable`. Cost: one hash and one copy of the mutation's bytes.

        Raises: PushLogFullError (the log is as it was), PushLogFailedError (start again from the log)."""
        self._check()
        kind, body = encode_mutation(mutation)
        hasher, body_bytes = mmh3.mmh3_x64_128(), 0
        for buffer in body:
            hasher.update(buffer)
            body_bytes += len(buffer)
        header = RecordHeader(kind, self._end, body_bytes, hasher.digest())
        if self._segments[-1].size >= self._limits.segment_bytes:
            self.roll()
        last = self._segments[-1]
        self._write(last, [header.pack(), *body])
        self._last_bytes = RECORD_HEADER_BYTES + body_bytes
        last.size += self._last_bytes
        self._end += 1
        return self._end

    def rewind(self, end: int) -> None:
        """Take back the last record, which was appended up to `end` and refused when it was applied."""
        self._check()
        if end != self._end or not self._last_bytes:
            raise ValueError(f"expected the position {self._end} behind the last record, got {end}")
        last = self._segments[-1]
        with self._syncing:
            size = last.size - self._last_bytes
            try:
                # The mark first: behind it, a record that is still there is no acknowledged one.
                if self._durable == end:
                    self._file.write(MARK_OFFSET, [pack_mark(end - 1)])
                self._file.truncate(size)
            except OSError as error:
                raise self._fail(error) from error
            self._end = end - 1
            self._durable = min(self._durable, self._end)
            last.size, self._last_bytes = size, 0

    def wait_durable(self, end: int) -> None:
        """Return when all records before `end` are durable. Raises: PushLogFailedError."""
        if self._durable >= end:
            return
        with self._syncing:
            if self._durable < end:
                self._check()
                self._sync()

    def roll(self, generation: int | None = None) -> None:
        """Begin a new segment (of another generation), unless the last one has no record. Raises: as `append`."""
        self._check()
        if generation is not None:
            self._generation = generation
        if self._segments[-1].first == self._end:
            return
        with self._syncing:
            self._sync()
            before, self._file = self._file, self._begin_segment()
            before.close()

    def trim(self, position: int) -> None:
        """Remove the segments that hold only records before `position`, which a committed checkpoint makes unneeded."""
        if position > self._end:
            raise ValueError(f"expected a position up to the log's end {self._end}, got {position}")
        self._remove_before(position)
        if position == self._end:
            self.roll()  # there may be room for it only now
            self._remove_before(position)

    def close(self) -> None:
        """Sync and close, so that a clean stop outlives the machine with `log` too; idempotent."""
        try:
            if self._failure is None:
                with self._syncing:
                    self._sync()
                    if not self._is_synced:
                        self._sync_segments()
                self._failure = "was closed"
        finally:
            self._file.close()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _first_file(self) -> LogFile:
        """Where the next record goes: a new segment, or the last one if that is empty or there is no room."""
        if not self._segments:
            return self._begin_segment()
        if self._segments[-1].first < self._end:
            with contextlib.suppress(PushLogFullError):
                return self._begin_segment()
        file = self._folder.open(segment_name(self._segments[-1].first))
        try:
            file.write(MARK_OFFSET, [pack_mark(self._end)])
        except OSError as error:
            file.close()
            raise self._fail(error) from error
        return file

    def _remove_before(self, position: int) -> None:
        removed = False
        while len(self._segments) > 1 and self._segments[1].first <= position:
            self._folder.remove(segment_name(self._segments[0].first))
            del self._segments[0]
            removed = True
        if removed:
            self._folder.sync()

    def _write(self, segment: _Segment, buffers: list[bytes | memoryview]) -> None:
        try:
            self._file.write(segment.size, buffers)
        except OSError as error:
            try:
                self._file.truncate(segment.size)
            except OSError as second:
                raise self._fail(second) from error
            raise self._refusal(error) from error

    def _sync(self) -> None:
        """Make all that is appended durable; the caller holds `_syncing`."""
        end = self._end
        if self._durable == end:
            return
        try:
            if self._is_synced:
                self._file.sync()
            self._file.write(MARK_OFFSET, [pack_mark(end)])
        except OSError as error:
            # Pages whose write-back failed may be dropped as clean: a second sync would say yes for nothing.
            raise self._fail(error) from error
        self._durable = end

    def _sync_segments(self) -> None:
        """Bring to the disk what was left to the operating system."""
        for segment in self._segments:
            file = self._folder.open(segment_name(segment.first))
            try:
                file.sync()
            finally:
                file.close()
        self._folder.sync()

    def _begin_segment(self) -> LogFile:
        segment = _Segment(self._end, SEGMENT_HEADER_BYTES)
        name = segment_name(segment.first)
        header = SegmentHeader(self._identity, self._generation, segment.first)
        file: LogFile | None = None
        try:
            file = self._folder.create(name)
            file.write(0, [header.pack()])
            if self._is_synced:
                file.sync()
                self._folder.sync()
        except OSError as error:
            if file is not None:
                file.close()
                self._folder.remove(name)
            raise self._refusal(error) from error
        self._segments.append(segment)
        self._last_bytes = 0
        return file

    def _size_of(self, first: int) -> int:
        file = self._folder.open(segment_name(first))
        try:
            return file.size()
        finally:
            file.close()

    def _refusal(self, error: OSError) -> PushLogFullError | PushLogFailedError:
        if error.errno not in NO_ROOM:
            return self._fail(error)
        name = self._folder.path(segment_name(self._segments[-1].first if self._segments else self._end))
        reason = f"no room for record {self._end} of the push log, nothing was changed: {error.strerror}"
        return PushLogFullError(error.errno, reason, name)

    def _fail(self, error: OSError) -> PushLogFailedError:
        self._failure = f"failed with {type(error).__name__}: {error}"
        return self._failed()

    def _failed(self) -> PushLogFailedError:
        name = self._folder.path(segment_name(self._end))
        return PushLogFailedError(f"expected a push log that can be written, got one that {self._failure} ({name})")

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failed()


def _segments_in(folder: LogFolder) -> list[int]:
    """First positions of the segments in the folder, ascending."""
    return sorted(first for first in map(first_of_segment, folder.names()) if first is not None)
