"""How long torch's OpenMP threads spin between parallel regions."""

from __future__ import annotations

import os
import sys

SPIN_COUNT = "5000"


def limit_openmp_spin() -> None:
    """Let torch's idle OpenMP threads sleep after about a quarter of a millisecond; call it before torch is loaded.

    libgomp's own limit is some 20 ms on current CPUs, longer than a whole step: its threads then hold the cores that
    reading, the row tables and the optimizer could use. Nothing is changed where torch is loaded already, or where
    GOMP_SPINCOUNT or OMP_WAIT_POLICY is set."""
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
