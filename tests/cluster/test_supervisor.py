"""The supervisor with real processes: restarts, clean ends, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from embershard.cluster.lock_file import lock_holder
from embershard.cluster.supervisor import (
    COMMANDS_FILE,
    LOCK_FILE,
    LOG_FOLDER,
    STATE_FILE,
    STOP_WITH_STDIN,
    Supervisor,
)

pytestmark = pytest.mark.process

CHILD = "import sys; print('up', flush=True); sys.stdin.read(); print('bye', flush=True)"


def wait_until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("the condition did not come true in time")


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # it was reaped since the signal
        return False


class Cluster:
    def __init__(self, folder: Path, names: tuple[str, ...] = ("a", "b")) -> None:
        self.folder = folder
        (folder / COMMANDS_FILE).write_text(json.dumps({name: [sys.executable, "-c", CHILD] for name in names}))
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "embershard.cluster.supervisor", str(self.folder), STOP_WITH_STDIN]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)

    def roles(self) -> dict[str, dict[str, Any]]:
        try:
            state = json.loads((self.folder / STATE_FILE).read_text())
        except FileNotFoundError:
            return {}
        return {role["name"]: role for role in state["roles"] if role["pid"] is not None}

    def up(self) -> dict[str, int]:
        roles = wait_until(lambda: len(self.roles()) == 2 and self.roles())
        return {name: role["pid"] for name, role in roles.items()}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    with cluster.process as process:
        yield cluster
        process.kill()


def test_killed_process_is_started_again_and_its_log_goes_on(cluster: Cluster) -> None:
    before = cluster.up()
    log = cluster.folder / LOG_FOLDER / "a.log"
    wait_until(lambda: log.read_text() == "up\n")
    os.kill(before["a"], signal.SIGKILL)
    wait_until(lambda: cluster.roles().get("a", {}).get("restarts") == 1)
    after = cluster.up()
    assert after["b"] == before["b"]
    assert after["a"] != before["a"]
    assert cluster.roles()["a"]["last_exit"] == -signal.SIGKILL
    wait_until(lambda: log.read_text() == "up\nup\n")


def test_a_state_that_cannot_be_written_stops_nothing_and_is_written_when_it_can(cluster: Cluster) -> None:
    before = cluster.up()
    state, log = cluster.folder / STATE_FILE, cluster.folder / LOG_FOLDER / "a.log"
    wait_until(lambda: log.read_text() == "up\n")  # its state tells of a process that has yet to say so
    state.unlink()
    state.mkdir()  # as good as a full disk: nothing can take its place
    os.kill(before["a"], signal.SIGKILL)
    wait_until(lambda: log.read_text() == "up\nup\n")
    assert cluster.process.poll() is None
    assert [path.name for path in cluster.folder.iterdir() if "partial" in path.name] == []
    state.rmdir()
    wait_until(lambda: state.exists() and cluster.roles().get("a", {}).get("restarts") == 1)
    assert cluster.up()["b"] == before["b"]


def test_sigterm_ends_everything_and_leaves_only_logs(cluster: Cluster) -> None:
    pids = cluster.up()
    assert lock_holder(cluster.folder / LOCK_FILE) == cluster.process.pid
    cluster.process.terminate()
    assert cluster.process.wait(20) == 0
    assert not any(is_running(pid) for pid in pids.values())
    assert sorted(path.name for path in cluster.folder.iterdir()) == [COMMANDS_FILE, LOG_FOLDER]


def test_a_lifeline_that_is_let_go_of_after_the_end_is_not_a_lost_one(tmp_path: Path) -> None:
    """Who has stopped the cluster removes its folder: two that remove it at once fail one another."""
    for closes_first in (False, True):
        read_end, write_end = os.pipe()
        supervisor = Supervisor(tmp_path, {}, lifeline=read_end)
        if closes_first:
            os.close(write_end)
        else:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        supervisor.run()
        if not closes_first:
            os.close(write_end)
        assert supervisor.lost_lifeline is closes_first
        os.close(read_end)


def test_end_of_its_stdin_ends_everything(cluster: Cluster) -> None:
    pids = cluster.up()
    assert cluster.process.stdin is not None
    cluster.process.stdin.close()
    assert cluster.process.wait(20) == 0
    assert not any(is_running(pid) for pid in pids.values())


def test_killed_supervisor_leaves_no_process_behind(cluster: Cluster) -> None:
    pids = cluster.up()
    cluster.process.kill()
    cluster.process.wait(20)
    wait_until(lambda: not any(is_running(pid) for pid in pids.values()))
    assert lock_holder(cluster.folder / LOCK_FILE) is None


def test_second_supervisor_in_the_folder_is_refused(cluster: Cluster) -> None:
    pids = cluster.up()
    with cluster.start() as second:
        _, errors = second.communicate(timeout=20)
    assert second.returncode != 0
    assert b"expected no cluster in" in errors
    assert cluster.up() == pids
