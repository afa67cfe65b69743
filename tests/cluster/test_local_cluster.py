"""A cluster of real processes on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from embershard.cluster.errors import ClusterNotRunningError, ClusterRunningError, ClusterStartError
from embershard.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.process

CHILD = [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"]
BROKEN = [sys.executable, "-c", "raise SystemExit('port 7700 is taken')"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path / "cluster")
    yield cluster
    if cluster.is_running():
        cluster.stop()


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    try:
        return "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # it was reaped since the signal
        return True


def pids_of(cluster: LocalCluster) -> list[int]:
    cluster.wait_for(lambda: all(role.pid is not None for role in cluster.status()))
    return [role.pid for role in cluster.status() if role.pid is not None]


def test_detached_cluster_is_seen_and_taken_down_through_its_folder_alone(cluster: LocalCluster) -> None:
    cluster.start({"shard-0": CHILD, "shard-1": CHILD})
    other = LocalCluster(cluster.folder)
    assert [role.name for role in other.status()] == ["shard-0", "shard-1"]
    pids = pids_of(other)
    with pytest.raises(ClusterRunningError, match="expected no cluster in"):
        other.start({"shard-0": CHILD})
    other.stop()
    assert all(is_gone(pid) for pid in pids)
    assert [path.name for path in cluster.folder.iterdir()] == ["logs"]
    with pytest.raises(ClusterNotRunningError, match="expected a running cluster in"):
        other.status()
    with pytest.raises(ClusterNotRunningError, match="expected a running cluster in"):
        other.stop()


def test_process_that_keeps_dying_is_reported_with_its_last_words(cluster: LocalCluster) -> None:
    cluster.start({"shard-0": BROKEN})
    with pytest.raises(ClusterStartError, match=r"shard-0: port 7700 is taken \(log .*shard-0\.log\)"):
        cluster.wait_for(lambda: False, seconds=20)


def test_attached_cluster_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    code = (
        "import os, signal, sys; from pathlib import Path; from embershard.cluster.local_cluster import LocalCluster\n"
        f"c = LocalCluster(Path({str(folder)!r})); c.start({{'shard-0': {CHILD!r}}}, attached=True)\n"
        "c.wait_for(lambda: all(r.pid for r in c.status()))\n"
        "print(c.status()[0].pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    pid = int(done.stdout)
    cluster = LocalCluster(folder)
    deadline = time.monotonic() + 20
    while not (is_gone(pid) and not cluster.is_running()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert is_gone(pid)
    assert not cluster.is_running()


def test_a_cluster_whose_folder_was_removed_ends_and_leaves_the_next_one_alone(cluster: LocalCluster) -> None:
    cluster.start({"shard-0": CHILD})
    (old,) = pids_of(cluster)
    shutil.rmtree(cluster.folder)
    following = LocalCluster(cluster.folder)
    following.start({"shard-0": CHILD})
    (new,) = pids_of(following)
    until = time.monotonic() + 30
    while not is_gone(old):
        assert time.monotonic() < until
        time.sleep(0.05)
    time.sleep(0.5)
    assert [role.pid for role in following.status()] == [new]
    following.stop()
    assert is_gone(new)


def test_a_cluster_in_a_folder_that_cannot_be_written_any_more_is_taken_down(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.start({"shard-0": CHILD})
    (pid,) = pids_of(cluster)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        cluster.stop()
    assert is_gone(pid)
