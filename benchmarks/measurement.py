"""What a benchmark reports: one rate beside the rate of its reference in the same run."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict


class BenchOptions(BaseModel):
    """Options every suite takes: `quick` makes small sizes, for tests and a first look; its numbers prove nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    quick: bool = False


@dataclass(frozen=True, slots=True)
class Measurement:
    """One workload: `rate` in `unit`, beside `reference_rate` of `reference` measured in the same run.

    details: what was measured (dim, rows, keys, threads, …), one plain value a name; columns and JSON fields.
    """

    workload: str
    rate: float
    unit: str
    reference: str
    reference_rate: float
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """`rate / reference_rate`."""
        return self.rate / self.reference_rate

    def as_json(self) -> dict[str, object]:
        """The object that `embershard bench --json` prints."""
        return {
            "workload": self.workload,
            **self.details,
            "rate": self.rate,
            "unit": self.unit,
            "reference": self.reference,
            "reference_rate": self.reference_rate,
            "ratio": self.ratio,
        }


class Suite(Protocol):
    """A benchmark module."""

    Options: type[BenchOptions]

    def run(self, options: BenchOptions) -> Iterator[Measurement]:
        """Measure every workload, one after the other."""


def interleaved_rates(
    work: Mapping[str, Callable[[], object]], amounts: Mapping[str, float], rounds: int = 5, warm_up: int = 1
) -> dict[str, float]:
    """Median rate (amount per second) of each piece of work, measured turn by turn so that a slow moment hits all.

    work:    name → callable, called once a round.   amounts: name → how much one call does, in the unit of the rate.
    """
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for round_number in range(warm_up + rounds):
        for name, call in work.items():
            start = time.perf_counter()
            call()
            elapsed = time.perf_counter() - start
            if round_number >= warm_up:
                seconds[name].append(elapsed)
    return {name: amounts[name] / sorted(times)[len(times) // 2] for name, times in seconds.items()}


def machine() -> dict[str, object]:
    """CPU, cores, Python and the commit of this checkout (None outside one): what a number means nothing without."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "commit": _commit(),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _commit() -> str | None:
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=Path(__file__).resolve().parent,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except OSError:
        return None
    return answer.stdout.strip() or None
