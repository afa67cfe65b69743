"""Benchmark suites: each measures its workloads against a reference in the same run."""

from __future__ import annotations

SUITES = {
    "ids": "embershard.benchmarks.ids",
    "table": "embershard.benchmarks.table",
    "store": "embershard.benchmarks.store",
    "train": "embershard.benchmarks.train",
    "staleness": "embershard.benchmarks.staleness",
    "checkpoint": "embershard.benchmarks.checkpoint",
    "export": "embershard.benchmarks.export",
    "growth": "embershard.benchmarks.growth",
}
"""Name on the command line → module with `Options` (a `BenchOptions`) and `run(options) -> Iterator[Measurement]`."""
