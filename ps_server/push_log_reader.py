"""Reads a push log back: every record once and in order, or a refusal that names file and offset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import mmh3
import numpy as np
import numpy.typing as npt

from .errors import CorruptPushLogError, PushLogMismatchError
from .mutation import Mutation
from .mutation_encoding import MalformedMutationError, decode_mutation
from .push_log_files import LogFile, LogFolder
from .push_log_format import (
    MARK_OFFSET,
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    LogIdentity,
    MalformedHeaderError,
    RecordHeader,
    SegmentHeader,
    first_of_segment,
    pack_mark,
    segment_name,
    unpack_mark,
)

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class TornTail:
    """What a crash left of appends that were never acknowledged: the bytes of `file` from `offset` on."""

    file: str
    offset: int
    size: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: {self.size} bytes from offset {self.offset} on ({self.reason})"


class PushLogReader:
    """The reading end of a push log that nobody writes.

    Behind the last segment's mark nothing was acknowledged: what does not fit its checksum there is the torn tail of a
    crash; `records` ends before it and `torn` says where. Anywhere else it is damage, and refused.
    Thread safety: none.
    """

    def __init__(self, folder: LogFolder, identity: LogIdentity | None = None) -> None:
        """identity: whose log it has to be (None: any).

        Raises: CorruptPushLogError, PushLogMismatchError."""
        self._folder = folder
        self.torn: TornTail | None = None
        self._end: int | None = None
        self._place = (folder.path(""), 0)
        firsts = sorted(first for first in map(first_of_segment, folder.names()) if first is not None)
        segments = [_Segment(folder, first, is_last=first == firsts[-1]) for first in firsts]
        if segments and segments[-1].header is None:
            self.torn = segments.pop().torn
        self._segments = segments
        for segment in segments:
            segment.check(identity)

    @property
    def first(self) -> int:
        """Position of the first record that is there, or would be."""
        return self._segments[0].first if self._segments else 0

    @property
    def end(self) -> int:
        """Position behind the last record, known once `records` has run to its end."""
        if self._end is None:
            raise RuntimeError("expected the records to be read to their end first")
        return self._end

    @property
    def place(self) -> tuple[str, int]:
        """File and offset of the record read last."""
        return self._place

    def records(self, since: int | None = None) -> Iterator[tuple[int, Mutation]]:
        """(position, mutation) of every record from position `since` (None: the first) on.

        Raises: PushLogMismatchError where the log begins after `since` or ends before it; CorruptPushLogError."""
        since = self.first if since is None else since
        if since < self.first:
            raise self._mismatch(since, f"one that begins at {self.first}")
        position = self.first
        for index, segment in enumerate(self._segments):
            following = self._segments[index + 1] if index + 1 < len(self._segments) else None
            if following is not None and following.first <= since:
                position = following.first
                continue
            for record in segment.records(since):
                self._place = segment.path, segment.last_offset
                yield record
            position = segment.position
            if following is not None and following.first != position:
                raise CorruptPushLogError(
                    segment.path, segment.size, f"expected records up to {following.first}, got up to {position}"
                )
            self.torn = self.torn or segment.torn
        if position < since:
            raise self._mismatch(since, f"one that ends at {position}")
        self._end = position

    def cut_torn_tail(self) -> None:
        """Remove the torn tail, if there is one, so that the log can be written again."""
        if self.torn is None:
            return
        if self.torn.offset == 0:
            self._folder.remove(self.torn.file)
            self._folder.sync()
        else:
            _cut(self._folder, self.torn.file, self.torn.offset)
        self.torn = None

    def cut_last_record(self) -> None:
        """Remove the last record as well, and the torn tail; `end` goes down by one."""
        last = self._segments[-1]
        if not last.last_offset:
            raise ValueError(f"expected a record in {last.path}, got none")
        self.cut_torn_tail()
        self._end = self.end - 1
        _cut(self._folder, last.name, last.last_offset, mark=self._end)

    def _mismatch(self, since: int, got: str) -> PushLogMismatchError:
        return PushLogMismatchError(f"expected a push log with position {since}, got {got} ({self._folder.path('')})")


class _Segment:
    """One segment file. After `records`: position behind the last record, and the torn tail if there is one."""

    def __init__(self, folder: LogFolder, first: int, *, is_last: bool) -> None:
        self.name = segment_name(first)
        self.path = folder.path(self.name)
        self.first = self.position = first
        self.torn: TornTail | None = None
        self.last_offset = 0
        """Of the last record; 0 where there is none."""
        self._folder = folder
        self._is_last = is_last
        self._mark = first
        file = folder.open(self.name)
        try:
            self.size = file.size()
            self.header = self._read_header(file)
        finally:
            file.close()

    def check(self, identity: LogIdentity | None) -> None:
        """Raises: PushLogMismatchError unless it belongs to `identity` and is named as it should be."""
        if self.header is None:
            return
        if identity is not None and self.header.identity != identity:
            raise PushLogMismatchError(f"expected the push log of {identity}, got {self.header.identity} ({self.path})")
        if self.header.first != self.first:
            raise CorruptPushLogError(self.path, 0, f"expected first position {self.first}, got {self.header.first}")

    def records(self, since: int) -> Iterator[tuple[int, Mutation]]:
        """(position, mutation) of every record of the segment from position `since` on. Raises: CorruptPushLogError."""
        file = self._folder.open(self.name)
        try:
            offset = SEGMENT_HEADER_BYTES
            while offset < self.size:
                record = self._read_record_header(file, offset)
                if record is None:
                    break
                start, wanted = offset + RECORD_HEADER_BYTES, self.position >= since
                body = file.read(start, record.body_bytes) if wanted else None
                if body is not None and mmh3.mmh3_x64_128_digest(body.data) != record.body_digest:
                    self._end_at(offset, "expected a record that fits its checksum, got another checksum")
                    break
                self.last_offset, offset = offset, start + record.body_bytes
                self.position += 1
                if body is not None:
                    yield self.position - 1, self._decode(record, body, start)
            if self.position < self._mark:
                raise CorruptPushLogError(
                    self.path, offset, f"expected records up to {self._mark}, got up to {self.position}"
                )
        finally:
            file.close()

    def _read_header(self, file: LogFile) -> SegmentHeader | None:
        head = file.read(0, SEGMENT_HEADER_BYTES).tobytes()
        if self._is_last and (len(head) < SEGMENT_HEADER_BYTES or _is_zero(file, 0, self.size)):
            self.torn = TornTail(self.name, 0, self.size, "the segment's header is cut short")
            return None
        if len(head) < SEGMENT_HEADER_BYTES:
            raise CorruptPushLogError(self.path, 0, f"expected {SEGMENT_HEADER_BYTES} bytes of header, got {len(head)}")
        try:
            header = SegmentHeader.unpack(head)
            self._mark = unpack_mark(head)
        except MalformedHeaderError as error:
            raise CorruptPushLogError(self.path, 0, str(error)) from None
        return header

    def _read_record_header(self, file: LogFile, offset: int) -> RecordHeader | None:
        head = file.read(offset, RECORD_HEADER_BYTES).tobytes()
        if len(head) < RECORD_HEADER_BYTES:
            self._end_at(offset, "a record's header is cut short")
            return None
        try:
            record = RecordHeader.unpack(head)
        except MalformedHeaderError as error:
            self._end_at(offset, str(error))
            return None
        if record.position != self.position:
            self._end_at(offset, f"expected record {self.position}, got record {record.position}")
            return None
        if offset + RECORD_HEADER_BYTES + record.body_bytes > self.size:
            self._end_at(offset, "a record is cut short")
            return None
        return record

    def _end_at(self, offset: int, reason: str) -> None:
        """The log ends before the bytes at `offset`. Raises: CorruptPushLogError unless they are a torn tail."""
        if not self._is_last or self.position < self._mark:
            raise CorruptPushLogError(self.path, offset, f"record {self.position}: {reason}")
        self.torn = TornTail(self.name, offset, self.size - offset, reason)

    def _decode(self, record: RecordHeader, body: npt.NDArray[np.uint8], offset: int) -> Mutation:
        try:
            return decode_mutation(record.kind, body)
        except MalformedMutationError as error:
            raise CorruptPushLogError(self.path, offset, f"record {record.position}: {error}") from None


def _is_zero(file: LogFile, offset: int, stop: int) -> bool:
    """Whether all bytes from `offset` on are 0: a file that grew before its bytes were written."""
    while offset < stop:
        chunk = file.read(offset, min(_CHUNK_BYTES, stop - offset))
        if chunk.any():
            return False
        offset += max(len(chunk), 1)
    return True


def _cut(folder: LogFolder, name: str, offset: int, *, mark: int | None = None) -> None:
    file = folder.open(name)
    try:
        if mark is not None:
            file.write(MARK_OFFSET, [pack_mark(mark)])
        file.truncate(offset)
        file.sync()
    finally:
        file.close()
