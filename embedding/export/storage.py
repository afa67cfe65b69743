"""Where an export lies: a directory, or one table's file with its manifest beside it; complete or untouched."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pyarrow import fs as pafs

from ..checkpoint.storage import Directory
from ..errors import CheckpointMismatchError, CorruptCheckpointError
from ..table_config import TableConfig
from .manifest import (
    MANIFEST_NAME,
    SUFFIXES,
    ExportFormat,
    ExportManifest,
    decode_export_manifest,
    encode_export_manifest,
)


@dataclass(frozen=True)
class ExportTarget:
    """A place for an export.

    parent: the directory it lies in.   name: of the directory, or of the single table's file.   is_file: which of both.
    """

    parent: Directory
    name: str
    is_file: bool
    suffix: str

    @classmethod
    def of(cls, to: str | Path, format: ExportFormat, filesystem: pafs.FileSystem | None = None) -> ExportTarget:
        """The place that `to` names. Raises: ValueError for a file name of another format."""
        place = Directory.of(to, filesystem)
        suffix = Path(place.name).suffix
        if suffix and suffix != SUFFIXES[format] and suffix in SUFFIXES.values():
            raise ValueError(
                f"expected a name ending in {SUFFIXES[format] or 'no suffix'} for {format}, got {place.name}"
            )
        is_file = bool(suffix) and suffix == SUFFIXES[format]
        return cls(place.parent(), place.name, is_file, suffix)

    @property
    def path(self) -> str:
        """Where it lies, in its filesystem."""
        return self.parent.child(self.name).path

    @property
    def _file_manifest(self) -> str:
        """Name of the manifest beside a single table's file."""
        return f"{self.name}.{MANIFEST_NAME}"

    @property
    def _erased_name(self) -> str:
        """Name of the file of erased keys beside a single table's file: `u.erased.arrow` beside `u.arrow`."""
        return f"{self.name.removesuffix(self.suffix)}.erased{self.suffix}"

    def check(self, tables: Sequence[TableConfig], *, is_delta: bool) -> None:
        """Raises: ValueError where `tables` do not fit in it; FileExistsError where it would replace other files."""
        if self.is_file and len(tables) != 1:
            raise ValueError(f"expected one table for the file {self.name}, got {[table.name for table in tables]}")
        # A checkpoint has a manifest too, and a click log may end as an export does.
        if self.is_file:
            wanted = [self.name, self._file_manifest] + [self._erased_name] * is_delta
            taken = {name for name in wanted if self.parent.size_of(name) is not None}
            if others := taken - self._own_files(self.parent, self._file_manifest):
                raise FileExistsError(
                    f"expected an export or no file, got another file: {self.parent.child(min(others)).path}"
                )
            return
        is_taken = self.parent.size_of(self.name) is not None
        place = self.parent.child(self.name)
        present = set(place.names()) if place.exists() else set()
        if is_taken or present - self._own_files(place, MANIFEST_NAME):
            raise FileExistsError(f"expected an export or an empty directory, got other files in {self.path}")

    def _own_files(self, place: Directory, manifest_name: str) -> set[str]:
        """Names in `place` of the export of that manifest, the manifest among them; none where there is none."""
        try:
            manifest = decode_export_manifest(place.read(manifest_name), f"{place.path}/{manifest_name}")
        except CheckpointMismatchError:
            return {self.name, manifest_name} if self.is_file else set(place.names())  # of a later version
        except (OSError, CorruptCheckpointError):
            return set()
        return {file.path.split("/")[0] for table in manifest.tables for file in table.files} | {manifest_name}

    @contextmanager
    def replaced(self) -> Iterator[Directory]:
        """A directory to fill; at the end it takes the place of what was there, which stays if anything raises."""
        self.parent.make()
        temporary = self.parent.child(f".{self.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}")
        working = temporary if self.parent.is_local else self._emptied()
        working.make()
        try:
            yield working
            if self.parent.is_local:
                working.sync()
                self._move_in(working)
        finally:
            if self.parent.is_local:
                temporary.delete()

    def write_manifest(self, directory: Directory, manifest: ExportManifest) -> None:
        """Write the manifest, last of all files."""
        if not self.is_file:
            directory.write(MANIFEST_NAME, encode_export_manifest(manifest))
            return
        renamed = manifest.model_copy(update={"tables": (self._renamed(manifest),)})
        directory.write(self._file_manifest, encode_export_manifest(renamed))

    def _renamed(self, manifest: ExportManifest) -> object:
        table = manifest.tables[0]
        files = tuple(file.model_copy(update={"path": self._file_name(file.path)}) for file in table.files)
        return table.model_copy(update={"files": files})

    def _file_name(self, path: str) -> str:
        """Name of a file beside the manifest: `user.erased.arrow` in `u.arrow` becomes `u.erased.arrow`."""
        return self._erased_name if path.endswith(f".erased{self.suffix}") else self.name

    def _move_in(self, working: Directory) -> None:
        if self.is_file:
            names = working.names()
            left = self._own_files(self.parent, self._file_manifest) & {self._erased_name}
            for name in names:
                if not name.endswith(MANIFEST_NAME):
                    os.replace(f"{working.path}/{name}", f"{self.parent.path}/{self._file_name(name)}")
            os.replace(f"{working.path}/{self._file_manifest}", f"{self.parent.path}/{self._file_manifest}")
            for name in left - {self._file_name(name) for name in names}:
                self.parent.delete_file(name)
        else:
            place = self.parent.child(self.name)
            retired = f"{place.path}.old-{secrets.token_hex(4)}"
            with suppress(FileNotFoundError):
                os.rename(place.path, retired)
            os.rename(working.path, place.path)
            Directory(self.parent.filesystem, retired).delete()
        self.parent.sync_names()

    def _emptied(self) -> Directory:
        """On filesystems without renames: the place itself, its old manifest gone first."""
        if self.is_file:
            raise ValueError(f"expected a directory on this filesystem, got the file name {self.path}")
        place = self.parent.child(self.name)
        if place.exists():
            if place.size_of(MANIFEST_NAME) is not None:
                place.delete_file(MANIFEST_NAME)
            place.delete()
        return place


def read_export_manifest(
    path: str | Path, filesystem: pafs.FileSystem | None = None
) -> tuple[Directory, ExportManifest]:
    """The directory that an export's file paths are relative to, and its manifest.

    path: the export's directory, or its single file. Raises: CorruptCheckpointError, CheckpointMismatchError.
    """
    place = Directory.of(path, filesystem)
    directory, name = (place, MANIFEST_NAME) if place.exists() else (place.parent(), f"{place.name}.{MANIFEST_NAME}")
    where = f"{directory.path}/{name}"
    try:
        data = directory.read(name)
    except OSError as error:
        raise CorruptCheckpointError(f"{place.path}: expected an export, got no manifest {where} ({error})") from error
    manifest = decode_export_manifest(data, where)
    for table in manifest.tables:
        for file in table.files:
            size = directory.size_of(file.path)
            if size != file.bytes:
                got = "no such file" if size is None else f"{size} bytes"
                raise CorruptCheckpointError(f"{directory.path}/{file.path}: expected {file.bytes} bytes, got {got}")
    return directory, manifest
