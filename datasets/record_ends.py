"""Where the records of a text end: at line breaks, but not those inside quoted fields."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

_LF, _CR = 10, 13
Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Quoting:
    """How a field may hold line breaks: `quote` right after a delimiter or line break opens it."""

    delimiter: bytes
    quote: bytes
    escape: bytes | None = None

    @cached_property
    def quoted_field(self) -> re.Pattern[bytes]:
        """Matches a quoted field up to its closing quote or the end of the text."""
        quote = re.escape(self.quote)
        escape = re.escape(self.escape) if self.escape else b""
        plain = b"[^" + quote + escape + b"]+"
        doubled = quote + quote
        escaped = b"|" + escape + b"(?s:.)" if escape else b""
        opening = rb"(?:\A|(?<=[\r\n])|(?<=" + re.escape(self.delimiter) + b"))" + quote
        return re.compile(opening + b"(?:" + plain + b"|" + doubled + escaped + b")*(?:" + quote + rb"|\Z)")


def is_unclosed(record: bytes, quoting: Quoting | None) -> bool:
    """Whether a quoted field is still open at the end of `record`, which begins at a record's first byte."""
    if quoting is None or quoting.quote not in record:
        return False
    fields = [match.group() for match in quoting.quoted_field.finditer(record) if match.end() == len(record)]
    if not fields:
        return False
    inside = re.sub(re.escape(quoting.escape) + b"(?s:.)", b"", fields[0]) if quoting.escape else fields[0]
    return inside.count(quoting.quote) % 2 == 1


def record_ends(text: bytes, quoting: Quoting | None, *, is_last: bool) -> Positions:
    """Position of the last byte of each whole record; `text` begins at a record's first byte.

    `is_last`: no text follows, so what is left over is a record too."""
    data = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(data == _LF)
    if _CR in text:
        # A bare CR ends a line too, as for Arrow's parser; one at the very end may be the first half of a CRLF.
        returns = np.flatnonzero(data[:-1] == _CR)
        bare = returns[data[returns + 1] != _LF]
        ends = np.union1d(ends, bare) if bare.size else ends
    if quoting is not None and ends.size:
        ends = _outside_quotes(text, data, ends, quoting)
    if is_last and data.size and (not ends.size or ends[-1] != data.size - 1):
        ends = np.append(ends, data.size - 1)
    return ends


def record_starts(text: bytes, ends: Positions) -> Positions:
    """Position of the first byte of each record that is not a blank line."""
    if not ends.size:
        return ends
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))
    data = np.frombuffer(text, np.uint8)
    first = data[starts]
    is_blank = (first == _LF) | ((first == _CR) & (ends - starts <= 1))
    return starts[~is_blank] if is_blank.any() else starts


def _outside_quotes(text: bytes, data: npt.NDArray[np.uint8], ends: Positions, quoting: Quoting) -> Positions:
    quotes = np.flatnonzero(data == quoting.quote[0])
    if not quotes.size:
        return ends
    if _all_open_fields(text, data, quotes, quoting):
        return ends[np.searchsorted(quotes, ends) & 1 == 0]
    spans = [match.span() for match in quoting.quoted_field.finditer(text)]
    if not spans:
        return ends
    starts, stops = np.array(spans, np.int64).T
    field = np.searchsorted(starts, ends, side="right") - 1
    inside: npt.NDArray[np.bool_] = (field >= 0) & (ends < stops[field])
    return ends[~inside]


def _all_open_fields(text: bytes, data: npt.NDArray[np.uint8], quotes: Positions, quoting: Quoting) -> bool:
    """Whether every second quote opens a field or is the second of a doubled one, so that counting quotes is enough.

    A stray quote inside an unquoted field makes it False, as do escapes and delimiters of several characters."""
    if len(quoting.delimiter) > 1 or (quoting.escape is not None and quoting.escape in text):
        return False
    opening = quotes[::2]
    before = data[opening[opening > 0] - 1]
    allowed = np.zeros(256, np.bool_)
    allowed[[quoting.delimiter[0], quoting.quote[0], _LF, _CR]] = True
    return bool(allowed[before].all())
