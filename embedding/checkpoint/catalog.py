"""The checkpoints under a root: which are complete, which is the newest, what was passed over and why."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyarrow import fs as pafs

from ..errors import CheckpointMismatchError, CorruptCheckpointError
from .manifest import MANIFEST_NAME, Manifest, decode_manifest
from .storage import Directory, is_temporary

_PREFIX = "step-"


@dataclass(frozen=True)
class CatalogEntry:
    """A complete checkpoint: its manifest is valid and every file has its size."""

    directory: Directory
    manifest: Manifest
    sha256: str

    @property
    def name(self) -> str:
        """Directory name, as `step-000012000`."""
        return self.directory.name


@dataclass(frozen=True)
class SkippedCheckpoint:
    """A directory that looks like a checkpoint and is none, and why."""

    path: str
    reason: str


def list_checkpoints(
    root: str | Path | Directory, filesystem: pafs.FileSystem | None = None
) -> tuple[list[CatalogEntry], list[SkippedCheckpoint]]:
    """Complete checkpoints, oldest first, and what was passed over. Contents are not read; `open_checkpoint` does."""
    directory = root if isinstance(root, Directory) else Directory.of(root, filesystem)
    complete, skipped = [], []
    for name in directory.names():
        if not name.startswith(_PREFIX):
            continue
        child = directory.child(name)
        if is_temporary(name):
            skipped.append(SkippedCheckpoint(child.path, "was never completed"))
            continue
        try:
            manifest, digest = read_manifest(child)
            check_sizes(child, manifest)
        except (CorruptCheckpointError, CheckpointMismatchError) as error:
            skipped.append(SkippedCheckpoint(child.path, str(error)))
        else:
            complete.append(CatalogEntry(child, manifest, digest))
    complete.sort(key=lambda entry: entry.manifest.sequence)
    return complete, skipped


def read_manifest(directory: Directory) -> tuple[Manifest, str]:
    """The manifest of a checkpoint's directory, and its sha256.

    Raises: CorruptCheckpointError, CheckpointMismatchError (a newer format).
    """
    where = f"{directory.path}/{MANIFEST_NAME}"
    try:
        data = directory.read(MANIFEST_NAME)
    except OSError as error:
        if not directory.exists():
            raise CorruptCheckpointError(f"{directory.path}: expected a checkpoint directory, got none") from error
        raise CorruptCheckpointError(f"{where}: a directory without a manifest is no checkpoint ({error})") from error
    return decode_manifest(data, where)


def check_sizes(directory: Directory, manifest: Manifest) -> None:
    """Raises: CorruptCheckpointError naming the first file that is missing or of another size."""
    for entry in manifest.files:
        size = directory.size_of(entry.path)
        if size != entry.bytes:
            got = "no such file" if size is None else f"{size} bytes"
            raise CorruptCheckpointError(f"{directory.path}/{entry.path}: expected {entry.bytes} bytes, got {got}")


def next_sequence(root: Directory) -> int:
    """The number of the next save under `root`."""
    highest = 0
    for name in root.names():
        if name.startswith(_PREFIX) and not is_temporary(name):
            try:
                highest = max(highest, read_manifest(root.child(name))[0].sequence)
            except (CorruptCheckpointError, CheckpointMismatchError):
                continue
    return highest + 1


def step_names(step: int) -> Iterator[str]:
    """Directory names for a step: `step-000012000`, then with -2, -3 … where it was saved before."""
    name = f"{_PREFIX}{step:09d}"
    yield name
    for attempt in itertools.count(2):
        yield f"{name}-{attempt}"
