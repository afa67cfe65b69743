"""Bytes of the push log's segment and record headers; see docs/push_log_format.md. No files are touched here."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

import mmh3

FORMAT_VERSION = 1

SEGMENT_MAGIC = b"EMBSPLOG"
RECORD_MARK = 0x4352504C
"""`LPRC`: what a record starts with."""

_SEGMENT = struct.Struct("<8sIIQQQQ")
_MARK = struct.Struct("<Q")
_RECORD = struct.Struct("<IHHQQ16s")
_DIGEST_BYTES = 8

MARK_OFFSET = _SEGMENT.size + _DIGEST_BYTES
SEGMENT_HEADER_BYTES = MARK_OFFSET + _MARK.size + _DIGEST_BYTES
RECORD_HEADER_BYTES = _RECORD.size + _DIGEST_BYTES

_SEGMENT_NAME = re.compile(r"segment-(\d{20})\.log")


class MalformedHeaderError(ValueError):
    """The bytes are no header of this format; the message says what is wrong with them."""


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """Whose log it is: cluster (0 where it has no number), shard, and 2^tablet_bits tablets."""

    shard: int
    cluster: int
    tablet_bits: int


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """Head of a segment file. first: position of its first record."""

    identity: LogIdentity
    generation: int
    first: int

    def pack(self) -> bytes:
        """The header with the mark of a segment without records."""
        who = self.identity
        fixed = _SEGMENT.pack(
            SEGMENT_MAGIC, FORMAT_VERSION, who.tablet_bits, who.shard, who.cluster, self.generation, self.first
        )
        return fixed + _short_digest(fixed) + pack_mark(self.first)

    @classmethod
    def unpack(cls, data: bytes) -> SegmentHeader:
        """The header in `SEGMENT_HEADER_BYTES` bytes. Raises: MalformedHeaderError."""
        fixed, digest = data[: _SEGMENT.size], data[_SEGMENT.size : MARK_OFFSET]
        magic, version, bits, shard, cluster, generation, first = _SEGMENT.unpack(fixed)
        if magic != SEGMENT_MAGIC:
            raise MalformedHeaderError(f"expected magic {SEGMENT_MAGIC!r}, got {magic!r}")
        if _short_digest(fixed) != digest:
            raise MalformedHeaderError("expected a segment header that fits its checksum, got another checksum")
        if version != FORMAT_VERSION:
            raise MalformedHeaderError(f"expected format {FORMAT_VERSION}, got format {version}")
        return cls(LogIdentity(shard, cluster, bits), generation, first)


@dataclass(frozen=True, slots=True)
class RecordHeader:
    """Head of a record. kind: which mutation.   body_bytes, body_digest: of the bytes that follow."""

    kind: int
    position: int
    body_bytes: int
    body_digest: bytes

    def pack(self) -> bytes:
        """`RECORD_HEADER_BYTES` bytes."""
        fixed = _RECORD.pack(RECORD_MARK, self.kind, 0, self.position, self.body_bytes, self.body_digest)
        return fixed + _short_digest(fixed)

    @classmethod
    def unpack(cls, data: bytes) -> RecordHeader:
        """The header in `RECORD_HEADER_BYTES` bytes. Raises: MalformedHeaderError."""
        fixed, digest = data[: _RECORD.size], data[_RECORD.size :]
        mark, kind, zero, position, body_bytes, body_digest = _RECORD.unpack(fixed)
        if mark != RECORD_MARK or zero:
            raise MalformedHeaderError(f"expected a record to start with {RECORD_MARK:#x}, got {mark:#x}")
        if _short_digest(fixed) != digest:
            raise MalformedHeaderError("expected a record header that fits its checksum, got another checksum")
        return cls(kind, position, body_bytes, body_digest)


def pack_mark(position: int) -> bytes:
    """Bytes of a segment's mark, which lie at `MARK_OFFSET`: nothing from `position` on was acknowledged."""
    fixed = _MARK.pack(position)
    return fixed + _short_digest(fixed)


def unpack_mark(header: bytes) -> int:
    """Position in the mark of a segment header. Raises: MalformedHeaderError."""
    fixed = header[MARK_OFFSET : MARK_OFFSET + _MARK.size]
    if _short_digest(fixed) != header[MARK_OFFSET + _MARK.size : SEGMENT_HEADER_BYTES]:
        raise MalformedHeaderError("expected a mark that fits its checksum, got another checksum")
    (position,) = _MARK.unpack(fixed)
    return int(position)


def segment_name(first: int) -> str:
    """File name of the segment whose first record has position `first`."""
    return f"segment-{first:020d}.log"


def first_of_segment(name: str) -> int | None:
    """Position in the name of a segment file, or None for another file."""
    match = _SEGMENT_NAME.fullmatch(name)
    return int(match[1]) if match else None


def _short_digest(data: bytes) -> bytes:
    return mmh3.mmh3_x64_128_digest(data)[:_DIGEST_BYTES]
