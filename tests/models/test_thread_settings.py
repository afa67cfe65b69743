"""Threads that work beside the step: lower priority for readers, a limit on OpenMP's spinning."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from embershard.models.openmp_spin import SPIN_COUNT
from embershard.models.thread_priority import YIELD, yield_to_the_step


@pytest.mark.skipif(sys.platform != "linux", reason="a thread has a priority of its own on Linux only")
def test_only_the_calling_thread_yields() -> None:
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    found: list[int] = []

    def work() -> None:
        yield_to_the_step()
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [min(own + YIELD, 19)]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own


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
