"""Which callers the table threads work for."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from embershard.embedding.native_table_group import NativeTableGroup
from embershard.embedding.table_config import ColumnBlock, TableConfig
from embershard.embedding.table_group import TableKeys

KEYS = 100_000


def tasks() -> set[int]:
    return {int(task) for task in os.listdir("/proc/self/task")}


def sleeps(task: int) -> int:
    """How often a thread went to sleep so far."""
    lines = Path(f"/proc/self/task/{task}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def in_a_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.skipif(sys.platform != "linux", reason="SCHED_IDLE is a policy of Linux")
def test_a_thread_that_runs_on_idle_cores_only_works_alone() -> None:
    before = tasks()
    group = NativeTableGroup(8, 2)
    (worker,) = tasks() - before
    group.ensure_table(TableConfig(name="t", blocks=(ColumnBlock(dim=4),)))
    keys = TableKeys.of("t", np.arange(KEYS, dtype=np.uint64))
    rows = [np.empty(KEYS * 4, np.float32) for _ in range(2)]

    def woken(work: Callable[[], object], patience: float) -> bool:
        deadline, slept = time.monotonic() + patience, sleeps(worker)
        in_a_thread(work)
        while sleeps(worker) == slept and time.monotonic() < deadline:
            time.sleep(0.001)
        return sleeps(worker) > slept

    def look_up_on_idle_cores() -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # the thread ends with it
        group.lookup(keys, "initial", rows[1])

    assert woken(lambda: group.lookup(keys, "initial", rows[0]), 10)
    assert not woken(look_up_on_idle_cores, 0.1)
    np.testing.assert_array_equal(*rows)
