"""Directories on any pyarrow filesystem: files with checksums, temporary directories, durable renames."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa
from pyarrow import fs as pafs

from .checksum_file import BackgroundWork, ChecksumFile

Verify = Literal["contents", "sizes"]
"""How much of a checkpoint or export is looked at when it is opened."""

_TEMPORARY_MARK = ".tmp-"
_READ_BYTES = 1 << 20


def check_verify(verify: str) -> None:
    """Raises: ValueError for what is no `Verify`, which would verify nothing."""
    if verify not in get_args(Verify):
        raise ValueError(f"expected verify one of {list(get_args(Verify))}, got {verify!r}")


@dataclass(frozen=True)
class Directory:
    """A directory of one filesystem. Thread safety: immutable; files of different names may be used from any thread."""

    filesystem: pafs.FileSystem
    path: str

    @classmethod
    def of(cls, path: str | Path, filesystem: pafs.FileSystem | None = None) -> Directory:
        """The directory at a local path, at a URI (`s3://…`), or at `path` of a given filesystem."""
        if filesystem is not None:
            return cls(filesystem, str(path).rstrip("/"))
        if "://" in str(path):
            return cls(*pafs.FileSystem.from_uri(str(path).rstrip("/")))
        return cls(pafs.LocalFileSystem(), os.path.abspath(os.path.expanduser(path)))

    @property
    def is_local(self) -> bool:
        """Whether it is on a disk of this machine, where renames are atomic and files can be mapped."""
        return isinstance(self.filesystem, pafs.LocalFileSystem)

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rsplit("/", 1)[-1]

    def is_same_place(self, other: Directory) -> bool:
        """Whether both paths lead to one place, through links too."""
        if self.is_local and other.is_local:
            return os.path.realpath(self.path) == os.path.realpath(other.path)
        return self.path == other.path

    def child(self, name: str) -> Directory:
        """The directory `name` below it."""
        return Directory(self.filesystem, f"{self.path}/{name}")

    def parent(self) -> Directory:
        """The directory above it."""
        return Directory(self.filesystem, self.path.rsplit("/", 1)[0] or "/")

    def exists(self) -> bool:
        """Whether there is such a directory."""
        return bool(self.filesystem.get_file_info(self.path).type == pafs.FileType.Directory)

    def make(self) -> None:
        """Create it and those above it."""
        self.filesystem.create_dir(self.path, recursive=True)

    def names(self) -> list[str]:
        """Names in it, ascending; empty where it does not exist."""
        selector = pafs.FileSelector(self.path, allow_not_found=True)
        return sorted(info.base_name for info in self.filesystem.get_file_info(selector))

    def size_of(self, name: str) -> int | None:
        """Bytes of a file in it, or None where there is no such file."""
        info = self.filesystem.get_file_info(f"{self.path}/{name}")
        return int(info.size) if info.type == pafs.FileType.File else None

    def read(self, name: str) -> bytes:
        """All bytes of a file. Raises: OSError."""
        with self.filesystem.open_input_stream(f"{self.path}/{name}") as stream:
            return bytes(stream.read())

    def open(self, name: str) -> Any:
        """A file for random access, mapped into memory where that is possible."""
        path = f"{self.path}/{name}"
        return pa.memory_map(path) if self.is_local else self.filesystem.open_input_file(path)

    def sha256(self, name: str) -> str:
        """sha256 of a file in hex, read once in bounded memory. Raises: OSError."""
        digest = hashlib.sha256()
        if self.is_local:
            buffer = bytearray(_READ_BYTES)
            view = memoryview(buffer)
            with open(f"{self.path}/{name}", "rb", buffering=0) as file:
                while count := file.readinto(buffer):
                    digest.update(view[:count])
        else:
            with self.filesystem.open_input_stream(f"{self.path}/{name}") as stream:
                while chunk := stream.read(_READ_BYTES):
                    digest.update(chunk)
        return digest.hexdigest()

    def create(self, name: str, work: BackgroundWork | None = None) -> ChecksumFile:
        """A new file that counts and sums what is written to it, the sums on `work`'s thread. Raises: OSError."""
        path = f"{self.path}/{name}"
        if self.is_local:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            return ChecksumFile(open(path, "w+b", buffering=0), work)
        self.filesystem.create_dir(path.rsplit("/", 1)[0], recursive=True)
        return ChecksumFile(self.filesystem.open_output_stream(path), work)

    def write(self, name: str, data: bytes) -> None:
        """Write a whole file and make it durable."""
        with self.create(name) as file:
            file.write(data)

    def delete(self) -> None:
        """Remove it with all that is in it; nothing happens where it does not exist."""
        if self.is_local:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            with suppress(FileNotFoundError):
                self.filesystem.delete_dir(self.path)

    def delete_file(self, name: str) -> None:
        """Remove one file of it."""
        self.filesystem.delete_file(f"{self.path}/{name}")

    def sync_names(self) -> None:
        """Make the names in it durable."""
        if self.is_local:
            _sync_path(self.path)

    def sync(self) -> None:
        """Make the names in it, and in the directories below it, durable; object stores need no such thing."""
        if self.is_local:
            for folder, _, _ in os.walk(self.path):
                _sync_path(folder)


@contextmanager
def committed_directory(root: Directory, names: Iterator[str]) -> Iterator[tuple[Directory, str]]:
    """A directory to fill, and the name it will have: the first of `names` that is free in `root`.

    On a local disk it is a temporary directory that is made durable and renamed at the end; elsewhere the final one.
    The caller writes the file that makes it valid last. Whatever raises inside leaves nothing behind.
    """
    root.make()
    name = next(candidate for candidate in names if not root.child(candidate).exists())
    if not root.is_local:
        target = root.child(name)
        target.make()
        try:
            yield target, name
        except BaseException:
            with suppress(OSError):
                target.delete()
            raise
        return
    remove_abandoned(root)
    target = root.child(f"{name}{_TEMPORARY_MARK}{os.getpid()}-{secrets.token_hex(4)}")
    target.make()
    lock = os.open(target.path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield target, name
        target.sync()
        os.rename(target.path, root.child(name).path)
        _sync_path(root.path)
    except BaseException:
        target.delete()
        raise
    finally:
        os.close(lock)


def remove_abandoned(root: Directory) -> None:
    """Delete temporary directories whose writer is gone; a living writer holds a lock on its own."""
    if not root.is_local:
        return
    for name in root.names():
        if _TEMPORARY_MARK not in name:
            continue
        with suppress(OSError):
            lock = os.open(root.child(name).path, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                root.child(name).delete()
            finally:
                os.close(lock)


def is_temporary(name: str) -> bool:
    """Whether `name` is that of a directory still being written, or left by a writer that died."""
    return _TEMPORARY_MARK in name


def _sync_path(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
