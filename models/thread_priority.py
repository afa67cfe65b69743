"""Which threads may take the step's cores."""

from __future__ import annotations

import os
import sys
import threading

YIELD = 10


def yield_to_the_step() -> None:
    """Make the calling thread run where the step leaves a core idle, as far as the system can tell threads apart.

    A parallel region of torch is as slow as its slowest thread, so a thread that takes one of its cores for a moment
    holds up all of them. Linux only (a thread has a nice value of its own there); elsewhere nothing is changed."""
    if sys.platform != "linux":
        return
    thread = threading.get_native_id()
    try:
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + YIELD)
    except OSError:
        return  # a sandbox may forbid it; the thread only competes then
