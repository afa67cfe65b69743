"""Files that appear whole or not at all, and errors of writing that say which file it was."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Name of a file beside `path` to write, which takes its place, synced, when the block ended well.

    It has the same suffix. Otherwise it is removed and an older file stays as it was. Raises: OSError naming `path`."""
    target = Path(path)
    partial = target.with_name(f".{target.stem}.{os.getpid()}.partial{target.suffix}")
    try:
        with naming_file(target, partial):
            yield partial
            descriptor = os.open(partial, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            partial.replace(target)
    finally:
        with suppress(OSError):  # a read-only file system refuses this too, in place of the error that counts
            partial.unlink()


@contextmanager
def naming_file(path: str | Path, written_as: Path | None = None) -> Iterator[None]:
    """An OSError of the block that names no file, as those of writing do not, or `written_as`, names `path`."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename not in (None, written_as, str(written_as)):
            raise
        raise OSError(error.errno or 0, error.strerror or str(error), str(path)) from error
