"""Checkpoints on filesystems that are no local disk: no renames, no maps, the manifest alone makes them count."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
from pyarrow import fs as pafs

from embershard.embedding.checkpoint import (
    KeepLast,
    TrainingState,
    latest_checkpoint,
    list_checkpoints,
    open_checkpoint,
    prune,
    write_checkpoint,
)
from embershard.embedding.errors import CheckpointWriteError, CorruptCheckpointError

from .conftest import SnapshotStore, assert_same_store


class FillingDisk(pafs.FileSystemHandler):
    """A filesystem of Python code over a directory; with `room` bytes left, writes beyond them fail."""

    def __init__(self, directory: Path) -> None:
        self._inner = pafs.SubTreeFileSystem(str(directory), pafs.LocalFileSystem())
        self.room: int | None = None

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def get_type_name(self) -> str:
        return "filling-disk"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths):
        return self._inner.get_file_info(paths)

    def get_file_info_selector(self, selector):
        return self._inner.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self._inner.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self._inner.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self._inner.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        self._inner.delete_file(path)

    def move(self, src: str, dest: str) -> None:
        raise NotImplementedError("object stores have no rename")

    def copy_file(self, src: str, dest: str) -> None:
        raise NotImplementedError

    def open_input_stream(self, path: str):
        return self._inner.open_input_stream(path)

    def open_input_file(self, path: str):
        return self._inner.open_input_file(path)

    def open_output_stream(self, path: str, metadata):
        import pyarrow as pa

        return pa.PythonFile(_Limited(self, self._inner.open_output_stream(path)), mode="w")

    def open_append_stream(self, path: str, metadata):
        raise NotImplementedError


class _Limited:
    def __init__(self, disk: FillingDisk, inner) -> None:
        self._disk, self._inner, self.closed = disk, inner, False

    def write(self, data) -> int:
        if self._disk.room is not None:
            self._disk.room -= len(data)
            if self._disk.room < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
        self._inner.write(data)
        return len(data)

    def flush(self) -> None:
        self._inner.flush()

    def tell(self) -> int:
        return self._inner.tell()

    def close(self) -> None:
        self.closed = True
        self._inner.close()


@pytest.fixture
def disk(tmp_path: Path) -> FillingDisk:
    return FillingDisk(tmp_path)


def test_any_pyarrow_filesystem_serves(disk: FillingDisk, full_store: SnapshotStore, configs) -> None:
    filesystem = pafs.PyFileSystem(disk)
    for step in (1, 2, 3):
        state = TrainingState(step=step, dense={"w": np.full(3, step)})
        path = write_checkpoint("runs/a", full_store, state, filesystem=filesystem)
        full_store.put("user", np.array([step], np.uint64), seed=step)
    assert path == "runs/a/step-000000003"
    delta = write_checkpoint("runs/a", full_store, TrainingState(step=4), base=path, filesystem=filesystem)
    fresh = SnapshotStore(configs)
    with open_checkpoint(delta, filesystem=filesystem) as checkpoint:
        checkpoint.restore(fresh)
    assert_same_store(fresh, full_store)
    assert prune("runs/a", [KeepLast(1)], filesystem=filesystem) == ("step-000000001", "step-000000002")
    with open_checkpoint(path, filesystem=filesystem) as checkpoint:
        assert checkpoint.dense()["w"].tolist() == [3, 3, 3]


def test_the_same_bytes_as_on_a_local_disk(disk: FillingDisk, full_store: SnapshotStore, tmp_path: Path) -> None:
    local = Path(write_checkpoint(tmp_path / "local", full_store, TrainingState(step=1)))
    write_checkpoint("remote", full_store, TrainingState(step=1), filesystem=pafs.PyFileSystem(disk))
    for kind in ("rows", "admission", "erased", "applied"):
        for file in (local / kind).iterdir():
            assert file.read_bytes() == (tmp_path / "remote" / local.name / kind / file.name).read_bytes()


@pytest.mark.parametrize("room", [0, 1000, 30_000, 60_000])
def test_disk_full_leaves_nothing_that_counts_b39(
    disk: FillingDisk, full_store: SnapshotStore, configs, room: int
) -> None:
    filesystem = pafs.PyFileSystem(disk)
    write_checkpoint("a", full_store, TrainingState(step=1), filesystem=filesystem)
    disk.room = room
    with pytest.raises(CheckpointWriteError, match="No space left on device"):
        write_checkpoint("a", full_store, TrainingState(step=2), filesystem=filesystem)
    disk.room = None
    complete, skipped = list_checkpoints("a", filesystem)
    assert ([entry.name for entry in complete], skipped) == (["step-000000001"], [])
    checkpoint, _ = latest_checkpoint("a", filesystem=filesystem)
    assert checkpoint is not None
    checkpoint.restore(SnapshotStore(configs))
    checkpoint.close()


def test_damage_is_noticed(disk: FillingDisk, full_store: SnapshotStore, tmp_path: Path) -> None:
    filesystem = pafs.PyFileSystem(disk)
    path = write_checkpoint("a", full_store, TrainingState(step=1), filesystem=filesystem)
    rows = next((tmp_path / path / "rows").iterdir())
    data = bytearray(rows.read_bytes())
    data[-100] ^= 1
    rows.write_bytes(data)
    with pytest.raises(CorruptCheckpointError, match=rows.name):
        open_checkpoint(path, filesystem=filesystem)


def test_a_uri_names_a_filesystem(tmp_path: Path, full_store: SnapshotStore) -> None:
    path = write_checkpoint(f"file://{tmp_path}/runs", full_store, TrainingState(step=1))
    assert path == f"file://{tmp_path}/runs/step-000000001"
    open_checkpoint(path).close()
