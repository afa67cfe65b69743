"""Threads that work beside the step: lower priority for readers, a limit on OpenMP's spinning, pooling there."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
import torch

from embershard.models.openmp_spin import SPIN_COUNT
from embershard.models.openmp_threads import on_one_thread
from embershard.models.thread_priority import YIELD, YieldingThread, _can_stop_resting

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="a thread has a priority of its own on Linux only")


def in_a_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@LINUX
def test_only_the_calling_thread_yields() -> None:
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    found: list[int] = []

    def work() -> None:
        YieldingThread().begin()
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    in_a_thread(work)
    assert found == [min(own + YIELD, 19)]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own


@LINUX
def test_a_thread_rests_while_nobody_waits_for_it_and_not_while_somebody_does() -> None:
    if not _can_stop_resting():
        pytest.skip("this process may not leave SCHED_IDLE again")
    found: list[int] = []

    def work() -> None:
        yielding = YieldingThread()
        yielding.begin()
        for rests in (False, True):
            if rests:
                yielding.rest()
            found.append(os.sched_getscheduler(0))
        with yielding.awaited():
            found.append(os.sched_getscheduler(0))
            yielding.rest()
            found.append(os.sched_getscheduler(0))
        yielding.rest()
        found.append(os.sched_getscheduler(0))

    in_a_thread(work)
    assert found == [os.SCHED_OTHER, os.SCHED_IDLE, os.SCHED_OTHER, os.SCHED_OTHER, os.SCHED_IDLE]


@LINUX
def test_threads_that_a_resting_thread_starts_stop_resting_with_it_and_end_at_its_first_priority() -> None:
    """A decoder's pool lives as long as the process: it would run on idle cores alone for ever."""
    if not _can_stop_resting():
        pytest.skip("this process may not leave SCHED_IDLE again")
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    done, seen = threading.Event(), []
    bystander = threading.Thread(target=lambda: (os.setpriority(os.PRIO_PROCESS, 0, own + 3), done.wait(30)))
    bystander.start()
    pools = [threading.Thread(target=done.wait, args=(30,)) for _ in range(2)]

    def state(thread: threading.Thread) -> tuple[int, int]:
        assert thread.native_id is not None
        return os.sched_getscheduler(thread.native_id), os.getpriority(os.PRIO_PROCESS, thread.native_id)

    def work() -> None:
        yielding = YieldingThread()
        yielding.begin()
        pools[0].start()
        yielding.rest()
        pools[1].start()
        seen.append(state(pools[1]))
        with yielding.awaited():
            seen.extend(map(state, pools))
        yielding.rest()
        yielding.end()

    try:
        in_a_thread(work)
        lowered = min(own + YIELD, 19)
        assert seen == [(os.SCHED_IDLE, lowered), (os.SCHED_OTHER, lowered), (os.SCHED_OTHER, lowered)]
        assert [state(pool) for pool in pools] == [(os.SCHED_OTHER, own)] * 2
        assert state(bystander) == (os.SCHED_OTHER, own + 3)
    finally:
        done.set()
        for thread in (bystander, *pools):
            thread.join()


@LINUX
def test_a_thread_that_has_ended_is_left_alone_whoever_has_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    if not _can_stop_resting():
        pytest.skip("this process may not leave SCHED_IDLE again")
    yielding, found = YieldingThread(), []

    def work() -> None:
        yielding.begin()
        yielding.rest()
        yielding.end()
        found.append(os.sched_getscheduler(0))

    in_a_thread(work)
    assert found == [os.SCHED_OTHER]
    monkeypatch.setattr(os, "sched_setscheduler", lambda *_: found.append(-1))
    yielding.rest()
    with yielding.awaited():
        pass
    assert found == [os.SCHED_OTHER]


@LINUX
def test_without_a_thread_to_try_it_with_no_thread_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(_: object) -> None:
        raise RuntimeError("can't start new thread")

    _can_stop_resting.cache_clear()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            assert not _can_stop_resting()
    finally:
        _can_stop_resting.cache_clear()


@LINUX
def test_where_a_sandbox_forbids_it_a_thread_only_competes(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError("not here")

    _can_stop_resting.cache_clear()
    try:
        monkeypatch.setattr(os, "sched_setscheduler", forbidden)
        yielding = YieldingThread()
        in_a_thread(yielding.begin)
        yielding.rest()
        with yielding.awaited():
            pass
        monkeypatch.setattr(os, "setpriority", forbidden)
        in_a_thread(YieldingThread().begin)
        assert not _can_stop_resting()
    finally:
        _can_stop_resting.cache_clear()


def test_one_thread_of_torch_is_for_the_time_of_the_block() -> None:
    before, found = torch.get_num_threads(), []

    def fail() -> None:
        with on_one_thread():
            found.append(torch.get_num_threads())
            raise ValueError("inside")

    torch.set_num_threads(3)
    try:
        with pytest.raises(ValueError, match="inside"):
            fail()
        assert found == [1]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@LINUX
def test_a_thread_that_starts_meanwhile_has_all_threads_of_torch() -> None:
    before = torch.get_num_threads()
    found: list[int] = []
    torch.set_num_threads(3)
    try:
        with on_one_thread():
            in_a_thread(lambda: found.append(torch.get_num_threads()))
        assert found == [3]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("environment", "first", "want"),
    [
        ({}, "", SPIN_COUNT),
        ({"GOMP_SPINCOUNT": "7"}, "", "7"),
        ({"OMP_WAIT_POLICY": "active"}, "", "None"),
        ({}, "import torch", "None"),
    ],
)
def test_spin_is_limited_before_torch_is_loaded_and_never_against_the_user(
    environment: dict[str, str], first: str, want: str
) -> None:
    kept = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    program = (
        f"{first}\nimport os\nfrom embershard.models.openmp_spin import limit_openmp_spin\nlimit_openmp_spin()\n"
        "print(os.environ.get('GOMP_SPINCOUNT'))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], env={**kept, **environment}, capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == want


ON_TORCH_THREADS = """
import os, signal, sys, threading
import numpy as np
import torch
from embershard.embedding import batch_rows as native
from embershard.models.openmp_threads import pool_on_torch_threads

rows = np.random.default_rng(0).standard_normal((90, 4)).astype(np.float32)
inverse = np.arange(30_000, dtype=np.int32) // 10_000 * 30 + np.arange(30_000, dtype=np.int32) % 30
fields = native.pooled_fields([0, 1, 2], [0, 4, 8], [native.Pooling.SUM] * 3, [True] * 3)
bags = native.Bags(inverse, np.arange(30_001), None, fields)
block = native.RowColumns(0, 4)

def both():
    pooled = native.pool_rows(rows, block, bags, np.empty((10_000, 12), np.float32))
    return pooled.tobytes(), native.sum_row_gradients(rows, block, bags, pooled, np.zeros_like(rows)).tobytes()

native.set_batch_threads(1)
want = both()
found = pool_on_torch_threads(3)
same = all(both() == want for _ in range(20))
answers = []
threads = [threading.Thread(target=lambda: answers.append(both() == want)) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
child = os.fork()
if child == 0:
    signal.alarm(20)
    os._exit(0 if both() == want else 1)
print(found, same, answers == [True] * 4, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="torch comes with libgomp on Linux only")
def test_pooling_on_torchs_openmp_threads_changes_no_bit_and_survives_a_fork() -> None:
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ON_TORCH_THREADS],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert answer.stdout.split() == ["True", "True", "True", "0"]
