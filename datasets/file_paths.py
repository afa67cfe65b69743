"""Which files a list of paths, globs and directories names, and what their names tell."""

from __future__ import annotations

import glob
import os
import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from .errors import ClickLogError, EmptyClickLogError

_FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".arrow": "ipc",
    ".ipc": "ipc",
    ".feather": "ipc",
    ".arrows": "ipc",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".libsvm": "libsvm",
    ".svm": "libsvm",
    ".libfm": "libsvm",
}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
_MAGIC = re.compile(r"[*?\[]")
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file to read.

    format, compression: what its name says, None where it says nothing.
    partitions: (key, value) of `key=value` folders below the directory or glob it was found by.
    """

    path: str
    filesystem: fs.FileSystem
    format: str | None
    compression: str | None
    partitions: tuple[tuple[str, str | None], ...] = ()


def find_files(paths: str | Path | Iterable[str | Path], filesystem: fs.FileSystem | None = None) -> list[DataFile]:
    """The files of `paths` in the order given; those of one glob or directory by name.

    A directory gives the files below it whose names say a format; names that begin with `_` or `.` are passed over.
    A path listed twice is read twice; one that two globs match is an error, since that is seldom meant.

    Raises: EmptyClickLogError naming the path that matched nothing."""
    if not isinstance(paths, (str, Path, Iterable)):
        raise TypeError(f"expected a path, a glob or a list of them, got {paths!r}")
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    if not given:
        raise EmptyClickLogError("expected at least one path, got an empty list")
    found: list[DataFile] = []
    seen: dict[str, str] = {}
    for path in given:
        text = os.fspath(path)
        files = _expand(text, filesystem)
        for file in files:
            if (is_pattern := [file.path] != [text]) and file.path in seen:
                raise ClickLogError(f"expected each file once, got {file.path!r} from {seen[file.path]!r} and {text!r}")
            if is_pattern:
                seen[file.path] = text
        found += files
    return found


def _expand(text: str, filesystem: fs.FileSystem | None) -> list[DataFile]:
    if filesystem is None and "://" in text:
        try:
            filesystem, text = fs.FileSystem.from_uri(text)
        except (pa.ArrowException, OSError) as error:
            raise ClickLogError(f"expected the URI of a file system that pyarrow has, got {text!r}: {error}") from error
    source = filesystem if filesystem is not None else fs.LocalFileSystem()
    is_local = isinstance(source, fs.LocalFileSystem)
    if _MAGIC.search(text) and source.get_file_info(text).type == fs.FileType.NotFound:
        matches = sorted(glob.glob(text, recursive=True)) if is_local else _remote_glob(text, source)
        root = posixpath.dirname(text[: _MAGIC.search(text).start()])  # type: ignore[union-attr]
        files = [_data_file(match, source, root) for match in matches if source.get_file_info(match).is_file]
        if not files:
            raise EmptyClickLogError(f"expected files matching {text!r}, found none")
        return files
    info = source.get_file_info(text)
    if info.type == fs.FileType.File:
        return [_data_file(text, source, posixpath.dirname(text))]
    if info.type == fs.FileType.Directory:
        below = source.get_file_info(fs.FileSelector(text, recursive=True))
        files = [
            _data_file(entry.path, source, text)
            for entry in sorted(below, key=lambda entry: entry.path)
            if entry.is_file and not _is_hidden(entry.path, text)
        ]
        files = [file for file in files if file.format is not None]
        if not files:
            raise EmptyClickLogError(f"expected data files in directory {text!r}, found none whose name says a format")
        return files
    raise EmptyClickLogError(f"expected a file, directory or glob, nothing is at {text!r}")


def _remote_glob(pattern: str, source: fs.FileSystem) -> list[str]:
    magic = _MAGIC.search(pattern)
    base = posixpath.dirname(pattern[: magic.start()]) if magic is not None else pattern
    entries = source.get_file_info(fs.FileSelector(base, recursive=True, allow_not_found=True))
    parts = pattern.split("/")
    return sorted(entry.path for entry in entries if entry.is_file and _matches(entry.path.split("/"), parts))


def _matches(path: list[str], pattern: list[str]) -> bool:
    """Whether the path's parts match the pattern's, as `glob` has it: `**` is any number of parts, hidden ones none."""
    if not pattern:
        return not path
    if path and path[0][:1] == "." != pattern[0][:1]:
        return False
    if pattern[0] == "**":
        return _matches(path, pattern[1:]) or (bool(path) and _matches(path[1:], pattern))
    return bool(path) and fnmatchcase(path[0], pattern[0]) and _matches(path[1:], pattern[1:])


def _is_hidden(path: str, root: str) -> bool:
    return any(part[:1] in ("_", ".") for part in posixpath.relpath(path, root).split("/") if "=" not in part)


def _data_file(path: str, source: fs.FileSystem, root: str) -> DataFile:
    stem, extension = posixpath.splitext(path.lower())
    compression = _COMPRESSIONS.get(extension)
    if compression is not None:
        extension = posixpath.splitext(stem)[1]
    folders = posixpath.dirname(posixpath.relpath(path, root or ".")).split("/")
    partitions = tuple(
        (key, None if value == _HIVE_NULL else unquote(value))
        for key, separator, value in (folder.partition("=") for folder in folders)
        if separator and key
    )
    return DataFile(path, source, _FORMATS.get(extension), compression, partitions)
