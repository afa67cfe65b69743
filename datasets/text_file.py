"""A text file as blocks of whole records, with an index that lets reading begin in its middle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .errors import DataFileError
from .fresh_lock import FreshLock
from .record_ends import Positions, Quoting, record_ends, record_starts
from .text_source import Read, TextSource

BLOCK_BYTES = 4 << 20
MAX_RECORD_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Block:
    """Whole records as UTF-8 text; the first is data row `first_row` of the file, counted from 0."""

    text: bytes
    first_row: int
    rows: int


class TextFile:
    """Records of one text file; blank lines are none.

    Thread safety: any thread; the index is built once.
    """

    def __init__(self, source: TextSource, *, quoting: Quoting | None = None, piece_rows: int = 65_536) -> None:
        self._source, self._quoting, self._piece_rows = source, quoting, piece_rows
        self._lock = FreshLock()
        self._index: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        self._data_start: int | None = None

    @property
    def path(self) -> str:
        """Name of the file."""
        return self._source.path

    def begin(
        self,
        *,
        skip_lines: int = 0,
        skip_to: str | None = None,
        comment: str | None = None,
        has_header: bool = False,
    ) -> bytes:
        """Fix where the data begins, before anything is read; gives the header's text (empty without one).

        skip_lines: lines before the header; skip_to: the header follows the first line that equals it, blanks and
        case aside; comment: lines there that begin with it are passed over.
        Raises: DataFileError where the file has no such line."""
        with self._source.open() as read:
            text = _read_full(read)
        position = self._source.mark_bytes(text)
        for _ in range(skip_lines):
            position = _after_line(text, position)
        while skip_to is not None:
            if position >= len(text):
                raise DataFileError(f"expected a line {skip_to!r} in the first {len(text)} bytes", path=self.path)
            line = text[position : (position := _after_line(text, position))]
            if line.decode(errors="replace").strip().lower() == skip_to.strip().lower():
                break
        while comment is not None and text.startswith(comment.encode(), position):
            position = _after_line(text, position)
        header = b""
        if has_header:
            ends = record_ends(text[position:], self._quoting, is_last=len(text) < BLOCK_BYTES)
            starts = record_starts(text[position:], ends)
            if not starts.size:
                raise DataFileError("expected a header line, got none", path=self.path)
            end = position + int(ends[np.searchsorted(ends, starts[0])]) + 1
            header = text[position + int(starts[0]) : end]
            position = end
        self._data_start = position
        return self._source.decoded(header)

    def pieces(self) -> tuple[int, ...] | None:
        """Rows of each piece reading can begin at, None where it always begins at the first row.

        Cost: one pass over the bytes, about as fast as memory is copied."""
        return self._indexed()[0] if self._source.can_seek else None

    def blocks(self, start: int = 0, stop: int | None = None) -> Iterator[Block]:
        """Blocks that together hold rows [start, stop); the first and the last may hold rows outside."""
        row, offset = 0, self._start()
        if start > 0 and self._source.can_seek:
            pieces, offsets = self._indexed()
            for rows, piece_offset in zip(pieces, offsets, strict=True):
                offset = piece_offset
                if row + rows > start:
                    break
                row += rows
        for text, ends in self._cut(offset, row):
            rows = int(record_starts(text, ends).size)
            if rows and row + rows > start:
                yield Block(self._source.decoded(text), row, rows)
            row += rows
            if stop is not None and row >= stop:
                return

    def _start(self) -> int:
        if self._data_start is None:
            self.begin()
        return self._data_start or 0

    def _indexed(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Rows of each piece and the byte it begins at."""
        with self._lock:
            if self._index is None:
                pieces: list[int] = []
                offsets: list[int] = []
                offset, held = self._start(), self._piece_rows
                for text, ends in self._cut(offset, 0):
                    starts = record_starts(text, ends)
                    while starts.size:
                        if held == self._piece_rows:
                            pieces.append(0)
                            offsets.append(offset + int(starts[0]))
                            held = 0
                        taken = min(self._piece_rows - held, int(starts.size))
                        pieces[-1] += taken
                        held += taken
                        starts = starts[taken:]
                    offset += len(text)
                self._index = tuple(pieces), tuple(offsets)
            return self._index

    def _cut(self, offset: int, row: int) -> Iterator[tuple[bytes, Positions]]:
        """(text of whole records, their ends) from byte `offset` on, which is data row `row`."""
        with self._source.open(offset) as read:
            rest = b""
            while True:
                more = read(BLOCK_BYTES)
                text = rest + more
                ends = record_ends(text, self._quoting, is_last=not more)
                if ends.size:
                    cut = int(ends[-1]) + 1
                    yield text[:cut], ends
                    row += int(ends.size)
                    text = text[cut:]
                if not more:
                    return
                rest = text
                if len(rest) > MAX_RECORD_BYTES:
                    what = "line break" if self._quoting is None else "line break outside quotes"
                    raise DataFileError(f"expected a {what} within {len(rest)} bytes", path=self.path, row=row + 1)


def _read_full(read: Read) -> bytes:
    """A block's worth of bytes, or all there are; a decompressing stream may give fewer at a time."""
    parts = [read(BLOCK_BYTES)]
    while parts[-1] and sum(map(len, parts)) < BLOCK_BYTES:
        parts.append(read(BLOCK_BYTES))
    return b"".join(parts)


def _after_line(text: bytes, position: int) -> int:
    end = text.find(b"\n", position)
    return len(text) if end < 0 else end + 1
