"""Saves that die, disks that fill up, files that rot: the newest complete checkpoint is found, nothing else counts."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from embershard.embedding.checkpoint import (
    Checkpoint,
    KeepBest,
    KeepEvery,
    KeepLast,
    TrainingState,
    latest_checkpoint,
    list_checkpoints,
    open_checkpoint,
    prune,
    write_checkpoint,
)
from embershard.embedding.errors import CheckpointMismatchError, CheckpointWriteError, CorruptCheckpointError

from .conftest import SnapshotStore, assert_same_store


@pytest.fixture
def no_room_beyond():
    """Files of this process end at a size, as on a full disk; lifted after the test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [0, 100, 2000, 4_000, 50_000])
def test_disk_full_leaves_nothing_and_the_older_one_works_b39(
    tmp_path: Path, full_store: SnapshotStore, configs, no_room_beyond, size: int
) -> None:
    write_checkpoint(tmp_path, full_store, TrainingState(step=1))
    no_room_beyond(size)
    with pytest.raises(CheckpointWriteError, match="could not save a checkpoint of step 2") as caught:
        write_checkpoint(tmp_path, full_store, TrainingState(step=2, dense={"w": np.zeros(10_000)}))
    assert caught.value.errno is not None
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]
    no_room_beyond(resource.RLIM_INFINITY)
    checkpoint, skipped = latest_checkpoint(tmp_path)
    assert checkpoint is not None
    assert (checkpoint.manifest.step, skipped) == (1, ())
    checkpoint.restore(SnapshotStore(configs))
    checkpoint.close()
    write_checkpoint(tmp_path, full_store, TrainingState(step=3))


def test_a_store_that_fails_in_the_middle_leaves_nothing(tmp_path: Path, full_store: SnapshotStore) -> None:
    good = full_store.snapshot

    def failing(tablet: int, since_version: int | None = None):
        if tablet == 9:
            raise ConnectionError("shard 2 is gone")
        return good(tablet, since_version)

    full_store.snapshot = failing
    with pytest.raises(ConnectionError, match="shard 2 is gone"):
        write_checkpoint(tmp_path, full_store, TrainingState(step=1))
    assert list(tmp_path.iterdir()) == []


def test_the_store_is_told_of_a_complete_checkpoint_only(tmp_path: Path, full_store: SnapshotStore) -> None:
    """Shards trim their push logs by it: a note of a checkpoint that is not there would lose pushes."""
    path = write_checkpoint(tmp_path, full_store, TrainingState(step=1))
    assert full_store.checkpoints == ["begun", path]
    seen: list[bool] = []
    full_store.commit_checkpoint = lambda checkpoint, taken: seen.append(open_checkpoint(checkpoint).manifest.step == 2)
    write_checkpoint(tmp_path, full_store, TrainingState(step=2))
    assert seen == [True]

    def broken(tablet: int) -> int:
        raise ValueError("broken")

    full_store.cut = broken
    with pytest.raises(ValueError, match="broken"):
        write_checkpoint(tmp_path, full_store, TrainingState(step=3))
    assert seen == [True]


@pytest.mark.parametrize("column", ["weights", "state"])
def test_rows_that_are_not_finite_are_counted_and_warned_of_b59(tmp_path: Path, full_store, column: str) -> None:
    tablet = full_store.tablets[5]
    tables = dict(tablet.tables)
    for table, bad in (("user", np.nan), ("ad/slot.1", np.inf), ("ad_slot_1", 0xFF80)):
        values = getattr(tables[table], column).copy()
        if values.size and not (column == "state" and bad == 0xFF80):
            values[0, 0] = values[2, -1] = values[2, 0] = bad
        tables[table] = dataclasses.replace(tables[table], **{column: values})
    full_store.tablets[5] = dataclasses.replace(tablet, tables=tables)
    with pytest.warns(RuntimeWarning, match=r"step-000000001 holds .*: 2 of table 'user'"):
        path = write_checkpoint(tmp_path, full_store, TrainingState(step=1))
    with open_checkpoint(path) as checkpoint:
        counted = checkpoint.manifest.non_finite_rows
    assert counted == ({"user": 2, "ad/slot.1": 2, "ad_slot_1": 2} if column == "weights" else {"user": 2})


def test_values_whose_sum_overflows_are_finite(tmp_path: Path, full_store: SnapshotStore) -> None:
    tablet = full_store.tablets[5]
    large = dataclasses.replace(tablet.tables["user"], weights=np.full_like(tablet.tables["user"].weights, 3e38))
    full_store.tablets[5] = dataclasses.replace(tablet, tables={**tablet.tables, "user": large})
    with open_checkpoint(write_checkpoint(tmp_path, full_store, TrainingState(step=1))) as checkpoint:
        assert checkpoint.manifest.non_finite_rows == {}


def test_root_that_is_a_file_is_one_clear_error(tmp_path: Path, full_store: SnapshotStore) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointWriteError, match="file"):
        write_checkpoint(tmp_path / "file", full_store, TrainingState(step=1))
    assert (tmp_path / "file").read_text() == "x"


def test_every_file_is_needed_and_every_byte_of_it_checked_b62(tmp_path: Path, full_store: SnapshotStore) -> None:
    state = TrainingState(step=1, dense={"w": np.arange(5.0)})
    path = Path(write_checkpoint(tmp_path, full_store, state))
    files = sorted(file for file in path.rglob("*") if file.is_file())
    assert {file.parent.name for file in files} == {path.name, "rows", "admission", "erased", "applied", "tablets"}
    rng = np.random.default_rng(0)
    for file in [file for file in files if file.name != "manifest.json"]:
        good = file.read_bytes()
        flipped = bytearray(good)
        flipped[rng.integers(len(good))] ^= 1 << int(rng.integers(8))
        for bad in (good[:-1], good + b"\0", bytes(flipped), b"", None):
            if bad is None:
                file.unlink()
            else:
                file.write_bytes(bad)
            with pytest.raises(CorruptCheckpointError, match=file.name):
                open_checkpoint(path)
        file.write_bytes(good)
    open_checkpoint(path).close()


def test_every_bit_of_the_manifest_counts(tmp_path: Path, full_store: SnapshotStore) -> None:
    path = Path(write_checkpoint(tmp_path, full_store, TrainingState(step=1, scalars={"epoch": 3})))
    manifest = path / "manifest.json"
    good = manifest.read_bytes()
    body = json.loads(good)
    body["scalars"]["epoch"] = 2
    manifest.write_text(json.dumps(body))
    with pytest.raises(CorruptCheckpointError, match="expected sha256"):
        open_checkpoint(path)
    with open_checkpoint_of(manifest, good) as checkpoint:
        meant = checkpoint.manifest
    rng = np.random.default_rng(1)
    refused = 0
    for _ in range(200):
        flipped = bytearray(good)
        flipped[rng.integers(len(good))] ^= 1 << int(rng.integers(8))
        try:
            with open_checkpoint_of(manifest, bytes(flipped)) as checkpoint:
                assert checkpoint.manifest == meant, "only white space may differ"
        except CorruptCheckpointError:
            refused += 1
    assert refused > 150
    for bad in (b"", good[: len(good) // 2], b"[]", b"\xff"):
        with pytest.raises(CorruptCheckpointError, match=r"manifest\.json"):
            open_checkpoint_of(manifest, bad)


def open_checkpoint_of(manifest: Path, data: bytes) -> Checkpoint:
    manifest.write_bytes(data)
    return open_checkpoint(manifest.parent, verify="sizes")


def test_a_directory_without_a_manifest_does_not_exist(tmp_path: Path, full_store: SnapshotStore) -> None:
    write_checkpoint(tmp_path, full_store, TrainingState(step=1))
    shutil.copytree(tmp_path / "step-000000001", tmp_path / "step-000000002")
    (tmp_path / "step-000000002" / "manifest.json").unlink()
    with pytest.raises(CorruptCheckpointError, match="a directory without a manifest is no checkpoint"):
        open_checkpoint(tmp_path / "step-000000002")
    with pytest.raises(CorruptCheckpointError, match="expected a checkpoint directory, got none"):
        open_checkpoint(tmp_path / "step-000000009")
    checkpoint, skipped = latest_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.manifest.step == 1
    assert [(Path(entry.path).name, "without a manifest" in entry.reason) for entry in skipped] == [
        ("step-000000002", True)
    ]
    checkpoint.close()


def test_a_damaged_newest_is_passed_over_with_the_reason_b39(tmp_path: Path, full_store: SnapshotStore) -> None:
    for step in (1, 2, 3):
        write_checkpoint(tmp_path, full_store, TrainingState(step=step))
    rows = next((tmp_path / "step-000000003" / "rows").iterdir())
    data = bytearray(rows.read_bytes())
    data[len(data) // 2] ^= 4
    rows.write_bytes(data)
    (tmp_path / "step-000000002" / "tablets" / "00000.arrow").unlink()
    checkpoint, skipped = latest_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.manifest.step == 1
    assert [Path(entry.path).name for entry in skipped] == ["step-000000002", "step-000000003"]
    assert "no such file" in skipped[0].reason
    assert "damaged" in skipped[1].reason
    checkpoint.close()


def test_newest_is_the_last_saved_not_the_highest_step(tmp_path: Path, full_store: SnapshotStore) -> None:
    write_checkpoint(tmp_path, full_store, TrainingState(step=500))
    write_checkpoint(tmp_path, full_store, TrainingState(step=100))
    again = write_checkpoint(tmp_path, full_store, TrainingState(step=100, scalars="again"))
    assert Path(again).name == "step-000000100-2"
    checkpoint, _ = latest_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.manifest.scalars == "again"
    checkpoint.close()


def test_a_newer_format_is_named_with_its_version(tmp_path: Path, full_store: SnapshotStore) -> None:
    path = Path(write_checkpoint(tmp_path, full_store, TrainingState(step=1)))
    body = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**body, "format_version": 99, "package_version": "9.0"}))
    with pytest.raises(CheckpointMismatchError, match=r"format version <= 1, got 99 \(written by embershard 9.0"):
        open_checkpoint(path)


def test_retention_keeps_what_any_policy_wants_and_always_the_newest(tmp_path: Path, full_store) -> None:
    for step, auc in ((100, 0.7), (200, 0.9), (250, 0.8), (300, 0.6), (350, 0.5)):
        write_checkpoint(tmp_path, full_store, TrainingState(step=step, scalars={"auc": auc}))
    deleted = prune(tmp_path, [KeepEvery(100), KeepBest("auc")])
    assert deleted == ("step-000000250",)
    assert prune(tmp_path, [KeepLast(2)]) == ("step-000000100", "step-000000200")
    assert prune(tmp_path, []) == ("step-000000300",)
    assert [entry.name for entry in list_checkpoints(tmp_path)[0]] == ["step-000000350"]


def test_pruning_never_deletes_the_only_good_one(tmp_path: Path, full_store: SnapshotStore) -> None:
    for step in (1, 2, 3):
        write_checkpoint(tmp_path, full_store, TrainingState(step=step))
    for step in (2, 3):
        next((tmp_path / f"step-00000000{step}" / "rows").iterdir()).write_bytes(b"")
    assert prune(tmp_path, [KeepLast(1)]) == ()
    checkpoint, _ = latest_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.manifest.step == 1
    checkpoint.close()


SAVE_FOREVER = """
import os, sys
import numpy as np
sys.path.insert(0, sys.argv[2])
from conftest import SnapshotStore
from embershard.embedding.checkpoint import KeepLast, TrainingState, prune, write_checkpoint
from embershard.embedding.table_config import ColumnBlock, TableConfig

def save_from(step):
    store = SnapshotStore([TableConfig(name="user", blocks=(ColumnBlock(dim=16),))], tablet_bits=4)
    keys = np.random.default_rng(0).integers(0, 1 << 64, 4_000, np.uint64)
    while True:
        store.put("user", keys, seed=step)
        write_checkpoint(sys.argv[1], store, TrainingState(step=step, dense={"step": np.full(1000, step)}))
        prune(sys.argv[1], [KeepLast(2)])
        step += 1

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        save_from(int(line))
    print(child, flush=True)
    os.waitpid(child, 0)
    print("dead", flush=True)
"""


@pytest.mark.process
def test_kill_at_any_moment_of_a_save_leaves_a_complete_newest_b39(tmp_path: Path) -> None:
    """Twenty kills at moments drawn at random: what is found is whole, and of one step."""
    rng = np.random.default_rng(3)
    keys = np.random.default_rng(0).integers(0, 1 << 64, 4_000, np.uint64)
    found, torn = 0, 0
    command = [sys.executable, "-c", SAVE_FOREVER, str(tmp_path), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        for _ in range(20):
            print(found + 1, file=parent.stdin, flush=True)
            child = int(parent.stdout.readline())
            while not any(int(path.name[5:14]) > found for path in tmp_path.glob("step-?????????")):
                assert parent.poll() is None
                time.sleep(0.001)
            time.sleep(float(rng.uniform(0, 0.05)))
            os.kill(child, signal.SIGKILL)
            assert parent.stdout.readline() == "dead\n"
            checkpoint, skipped = latest_checkpoint(tmp_path)
            assert checkpoint is not None
            assert checkpoint.manifest.step > found
            found, torn = checkpoint.manifest.step, torn + len(skipped)
            assert (checkpoint.dense()["step"] == found).all()
            restored, expected = (SnapshotStore(checkpoint.tables(), tablet_bits=4) for _ in range(2))
            checkpoint.restore(restored)
            checkpoint.close()
            expected.put("user", keys, seed=found)
            for mine, other in zip(restored.tablets, expected.tablets, strict=True):
                assert mine.tables["user"].weights.tobytes() == other.tables["user"].weights.tobytes()
        parent.stdin.close()
    assert torn > 0, "no kill fell into a save"


def test_what_a_killed_save_left_is_removed_by_the_next(tmp_path: Path, full_store: SnapshotStore) -> None:
    leftover = tmp_path / "step-000000001.tmp-1-aaaa"
    (leftover / "rows").mkdir(parents=True)
    (leftover / "rows" / "000-user.00000.arrow").write_bytes(b"half")
    checkpoint, skipped = latest_checkpoint(tmp_path)
    assert checkpoint is None
    assert [entry.reason for entry in skipped] == ["was never completed"]
    write_checkpoint(tmp_path, full_store, TrainingState(step=1))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]


def test_a_save_under_way_is_not_taken_for_a_dead_one(tmp_path: Path, full_store: SnapshotStore, configs) -> None:
    good = full_store.snapshot
    nested: list[str] = []

    def saving_another(tablet: int, since_version: int | None = None):
        if not nested:
            nested.append("")
            nested[0] = write_checkpoint(tmp_path, SnapshotStore(configs), TrainingState(step=2))
        return good(tablet, since_version)

    full_store.snapshot = saving_another
    path = write_checkpoint(tmp_path, full_store, TrainingState(step=1))
    for saved in (path, nested[0]):
        open_checkpoint(saved).close()
    full_store.snapshot = good
    fresh = SnapshotStore(configs)
    with open_checkpoint(path) as checkpoint:
        checkpoint.restore(fresh)
    assert_same_store(fresh, full_store)
