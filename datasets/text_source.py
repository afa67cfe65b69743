"""The bytes of a text file in an ASCII-compatible encoding: plain, compressed or transcoded."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyarrow import fs

from .errors import DataFileError
from .file_paths import DataFile

Read = Callable[[int], bytes]
_UTF8_MARK = codecs.BOM_UTF8
_SKIP_BYTES = 1 << 20


class TextSource:
    """Opens one file's text at any byte.

    Plain files in UTF-8 or a one-byte extension of ASCII are read as they stand, so that reading can begin anywhere at
    no cost; `decoded` makes UTF-8 of a part. All others are decompressed and transcoded to UTF-8 from their beginning.
    """

    def __init__(self, file: DataFile, encoding: str = "utf-8") -> None:
        self._file = file
        try:
            self._encoding = codecs.lookup(encoding).name
        except LookupError:
            raise DataFileError(f"expected a known encoding, got {encoding!r}", path=file.path) from None
        self.can_seek = file.compression is None and (self._encoding == "utf-8" or _is_one_byte(self._encoding))

    @property
    def path(self) -> str:
        """Name of the file."""
        return self._file.path

    @contextmanager
    def open(self, offset: int = 0) -> Iterator[Read]:
        """A function that reads the next n bytes of the text from `offset` on. Raises: DataFileError."""
        try:
            if self.can_seek:
                with self._file.filesystem.open_input_file(self.path) as source:
                    source.seek(offset)
                    yield source.read
                return
            with open_stream(self._file.filesystem, self.path, self._file.compression) as stream:
                read = stream.read if self._encoding == "utf-8" else _transcoded(stream.read, self._encoding)
                while offset > 0:
                    skipped = read(min(offset, _SKIP_BYTES))
                    if not skipped:
                        break
                    offset -= len(skipped)
                yield read
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataFileError(f"expected readable {self._encoding} text, got: {error}", path=self.path) from error

    def mark_bytes(self, text: bytes) -> int:
        """Length of the byte-order mark at the beginning of the file's first bytes `text`.

        Raises: DataFileError for a UTF-16 mark where UTF-8 is expected."""
        if self._encoding in ("utf-8", "utf-8-sig", "ascii") and text[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise DataFileError("expected UTF-8 text, got a UTF-16 byte-order mark (encoding: utf-16)", path=self.path)
        return len(_UTF8_MARK) if text.startswith(_UTF8_MARK) else 0

    def decoded(self, text: bytes) -> bytes:
        """UTF-8 of a part of the text; UTF-8 itself is checked where it is parsed, not here."""
        if not self.can_seek or self._encoding == "utf-8":
            return text
        try:
            return text.decode(self._encoding).encode()
        except UnicodeDecodeError as error:
            raise DataFileError(f"expected {self._encoding} text, got: {error}", path=self.path) from error


def open_stream(filesystem: fs.FileSystem, path: str, compression: str | None) -> pa.NativeFile:
    """The file's content from its beginning, decompressed."""
    raw = filesystem.open_input_stream(path, compression=None)
    return raw if compression is None else pa.CompressedInputStream(raw, compression)


def _is_one_byte(encoding: str) -> bool:
    """Whether every byte is a character of its own and ASCII stands for itself."""
    ascii_bytes = bytes(range(128))
    try:
        return ascii_bytes.decode(encoding) == ascii_bytes.decode("ascii") and all(
            len(bytes([byte, 0x41]).decode(encoding, "replace")) == 2 for byte in range(128, 256)
        )
    except UnicodeDecodeError:
        return False


def _transcoded(read: Read, encoding: str) -> Read:
    decoder = codecs.getincrementaldecoder(encoding)()

    def read_utf8(count: int) -> bytes:
        while True:
            raw = read(count)
            text = decoder.decode(raw, final=not raw)
            if text or not raw:
                return text.encode()

    return read_utf8
