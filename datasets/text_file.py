"""A text file as blocks of whole records, with an index that lets reading begin in its middle."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .errors import DataFileError
from .fresh_lock import FreshLock
from .record_ends import Positions, Quoting, is_unclosed, record_ends, record_starts
from .text_source import Read, TextSource

BLOCK_BYTES = 4 << 20
MAX_RECORD_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Block:
    """Whole records as UTF-8 text; the first is data row `first_row` of the file, counted from 0."""

    text: bytes
    first_row: int
    rows: int


@dataclass(frozen=True, slots=True)
class _Place:
    first_row: int
    rows: int
    offset: int
    bytes: int


class TextFile:
    """Records of one text file; blank lines are none.

    Thread safety: any thread; the index is built once.
    """

    def __init__(self, source: TextSource, *, quoting: Quoting | None = None, piece_rows: int = 65_536) -> None:
        self._source, self._quoting, self._piece_rows = source, quoting, piece_rows
        self._lock = FreshLock()
        self._index: list[_Place] | None = None
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

        Cost: one pass over the bytes, a fraction of what parsing them takes."""
        if not self._source.can_seek:
            return None
        rows = sum(place.rows for place in self._indexed())
        whole, rest = divmod(rows, self._piece_rows)
        return (self._piece_rows,) * whole + ((rest,) if rest else ())

    def blocks(self, start: int = 0, stop: int | None = None) -> Iterator[Block]:
        """Blocks that together hold rows [start, stop); the first and the last may hold rows outside.

        Raises: DataFileError."""
        if self._source.can_seek and (start > 0 or self._index is not None):
            yield from self._indexed_blocks(start, stop)
            return
        row = 0
        for text, ends in self._cut(self._start(), row):
            rows = int(record_starts(text, ends).size)
            if rows and row + rows > start:
                yield Block(self._source.decoded(text), row, rows)
            row += rows
            if stop is not None and row >= stop:
                return

    def _indexed_blocks(self, start: int, stop: int | None) -> Iterator[Block]:
        index = self._indexed()
        number = bisect.bisect_right(index, start, key=lambda place: place.first_row) - 1
        if number < 0 or (stop is not None and stop <= start):
            return
        with self._source.open(index[number].offset) as read:
            for place in index[number:]:
                if stop is not None and place.first_row >= stop:
                    return
                text = read(place.bytes)
                if len(text) != place.bytes:
                    raise DataFileError("expected the file as it was indexed, it is shorter now", path=self.path)
                yield Block(self._source.decoded(text), place.first_row, place.rows)

    def _start(self) -> int:
        if self._data_start is None:
            self.begin()
        return self._data_start or 0

    def _indexed(self) -> list[_Place]:
        """Where blocks begin: at most a read's worth of text each, and one at the start of every piece."""
        with self._lock:
            if self._index is None:
                index: list[_Place] = []
                offset, row = self._start(), 0
                for text, ends in self._cut(offset, 0):
                    starts = record_starts(text, ends)
                    into = 0  # rows of this text that are in the index
                    while into < starts.size:
                        taken = min(self._piece_rows - row % self._piece_rows, int(starts.size) - into)
                        first, after = int(starts[into]), into + taken
                        end = int(starts[after]) if after < starts.size else len(text)
                        index.append(_Place(row, taken, offset + first, end - first))
                        row, into = row + taken, after
                    offset += len(text)
                self._index = index
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
                    if not more:
                        self._check_closed(text, ends, row)
                    yield text[:cut], ends
                    row += int(record_starts(text[:cut], ends).size)
                    text = text[cut:]
                if not more:
                    return
                rest = text
                if len(rest) > MAX_RECORD_BYTES:
                    what = "line break" if self._quoting is None else "line break outside quotes"
                    raise DataFileError(f"expected a {what} within {len(rest)} bytes", path=self.path, row=row + 1)

    def _check_closed(self, text: bytes, ends: Positions, row: int) -> None:
        """A quote that nobody closes makes one cell of the rest of the file, which is never meant."""
        last = int(ends[-2]) + 1 if ends.size > 1 else 0
        if is_unclosed(text[last : int(ends[-1]) + 1], self._quoting):
            rows = int(record_starts(text, ends).size)
            raise DataFileError(
                "expected a closing quote before the end of the file, got a quoted cell that goes on to it",
                path=self.path,
                row=row + max(rows, 1),
            )


def _read_full(read: Read) -> bytes:
    """A block's worth of bytes, or all there are; a decompressing stream may give fewer at a time."""
    parts = [read(BLOCK_BYTES)]
    while parts[-1] and sum(map(len, parts)) < BLOCK_BYTES:
        parts.append(read(BLOCK_BYTES))
    return b"".join(parts)


def _after_line(text: bytes, position: int) -> int:
    end = text.find(b"\n", position)
    return len(text) if end < 0 else end + 1
