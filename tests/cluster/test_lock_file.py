"""A lock file: one holder, by name, gone with its process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from embershard.cluster.errors import LockHeldError
from embershard.cluster.lock_file import hold_lock, lock_holder

HOLD = """
import sys; from pathlib import Path; from embershard.cluster.lock_file import hold_lock
with hold_lock(Path(sys.argv[1])): print("held", flush=True); sys.stdin.read()
"""


def test_another_process_is_named_and_its_end_frees_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert lock_holder(path) == other.pid
        with pytest.raises(LockHeldError, match=f"held by process {other.pid}"), hold_lock(path):
            pass
        other.kill()
        other.wait()
        assert lock_holder(path) is None
        with hold_lock(path):
            assert lock_holder(path) == os.getpid()
    assert not path.exists()


def test_those_who_look_who_holds_it_keep_nobody_from_it(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    path.touch()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            lock_holder(path)

    watchers = [threading.Thread(target=look) for _ in range(3)]
    for watcher in watchers:
        watcher.start()
    try:
        for _ in range(50):
            with hold_lock(path):
                assert lock_holder(path) == os.getpid()
    finally:
        done.set()
        for watcher in watchers:
            watcher.join()
