"""Pull latency while a table grows: keys are pushed while other threads pull, evict and export.

The reference is the same load without growth: the same threads, and pushes of keys that have rows already.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from pydantic import Field

from ..embedding.native_table_group import NativeTableGroup
from ..embedding.table_config import Adagrad, ColumnBlock, TableConfig, Ttl
from ..embedding.table_group import TableKeys, UpdateStep
from .measurement import BenchOptions, Measurement

TABLE, AGING = "grows", "ages"
TABLET_BITS = 8
LONGEST_SECONDS = 900.0


class Options(BenchOptions):
    """keys: pushed while the table grows, `push_keys` a call, and once more for the reference.

    pull_keys: of one pull.   pullers: threads that pull; one more evicts and one exports.
    """

    keys: int = Field(default=10_000_000, ge=1000)
    push_keys: int = Field(default=50_000, ge=100)
    pull_keys: int = Field(default=1000, ge=1)
    pullers: int = Field(default=2, ge=1)
    dim: int = Field(default=16, ge=1)


def run(options: Options) -> Iterator[Measurement]:
    """p99 of a pull, in pulls a second of one thread. Raises: AssertionError if an update was lost."""
    if options.quick:
        options = options.model_copy(update={"keys": 100_000, "push_keys": 5000, "pull_keys": 200})
    group = NativeTableGroup(TABLET_BITS)
    group.ensure_table(TableConfig(name=TABLE, blocks=(ColumnBlock(dim=options.dim, optimizer=Adagrad()),)))
    aging = ColumnBlock(dim=1, optimizer=Adagrad())
    group.ensure_table(TableConfig(name=AGING, blocks=(aging,), eviction=(Ttl(ttl_seconds=2),)))
    keys = np.arange(1, options.keys + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    pusher = _Pusher(group, options, keys)
    growth = _measure(group, options, keys, pusher.push_all)
    quiet = _measure(group, options, keys, pusher.push_all)
    lost = pusher.pushed - _sum_of_counts(group)
    if lost:
        raise AssertionError(f"expected {pusher.pushed} pushed occurrences in the counts, got {lost} fewer")
    for percentile in (50, 99):
        yield Measurement(
            workload=f"pull_p{percentile}",
            rate=1 / growth.seconds(percentile),
            unit="pulls/s",
            reference="without growth",
            reference_rate=1 / quiet.seconds(percentile),
            details={
                "dim": options.dim,
                "rows": options.keys,
                "keys": options.pull_keys,
                "threads": options.pullers + 3,
                "pulls": len(growth.pulls),
                "milliseconds": round(1e3 * growth.seconds(percentile), 3),
                "reference_milliseconds": round(1e3 * quiet.seconds(percentile), 3),
                "evicted": growth.evicted,
                "exported_rows": growth.exported,
            },
        )


@dataclass
class _Load:
    """What the threads beside the pusher did."""

    pulls: list[float] = field(default_factory=list)
    evicted: int = 0
    exported: int = 0

    def seconds(self, percentile: float) -> float:
        return float(np.percentile(self.pulls, percentile))


class _Pusher:
    """Pushes every key once, in calls of one size; every second call also pushes keys that soon leave."""

    def __init__(self, group: NativeTableGroup, options: Options, keys: npt.NDArray[np.uint64]) -> None:
        self._group, self._size, self._keys = group, options.push_keys, keys
        self._gradients = np.full(options.push_keys * (options.dim + 1), 0.01, np.float32)
        self._occurrences = np.ones(2 * options.push_keys, np.uint32)
        self._dim = options.dim
        self.pushed = 0

    def push_all(self) -> None:
        for number, first in enumerate(range(0, len(self._keys), self._size)):
            chosen = self._keys[first : first + self._size]
            request = TableKeys.concat({TABLE: chosen, AGING: chosen if number % 2 else chosen[:0]})
            gradients = self._gradients[: len(chosen) * (self._dim + number % 2)]
            occurrences = self._occurrences[: len(request.keys)]
            self._group.apply_gradients(request, gradients, occurrences, UpdateStep(now=number))
            self.pushed += len(chosen)


def _measure(
    group: NativeTableGroup, options: Options, keys: npt.NDArray[np.uint64], push_all: Callable[[], None]
) -> _Load:
    load, stopped = _Load(), threading.Event()

    def pull(seed: int) -> list[float]:
        rng, seconds = np.random.default_rng(seed), []
        out = np.empty(options.pull_keys * options.dim, np.float32)
        while not stopped.is_set():
            request = TableKeys.of(TABLE, keys[rng.integers(0, len(keys), options.pull_keys)])
            start = time.perf_counter()
            group.lookup(request, "initial", out)
            seconds.append(time.perf_counter() - start)
        return seconds

    def evict() -> None:
        now = 0
        while not stopped.wait(0.001):
            now += 1
            load.evicted += group.evict(now, max_rows=10_000)[AGING]

    def export() -> None:
        tablet = 0
        while not stopped.wait(0.001):
            load.exported += len(group.snapshot(tablet).tables[TABLE].keys)
            tablet = (tablet + 1) % (1 << TABLET_BITS)

    with ThreadPoolExecutor(options.pullers + 2) as pool:
        pulls = [pool.submit(pull, seed) for seed in range(options.pullers)]
        others = [pool.submit(evict), pool.submit(export)]
        try:
            push_all()
        finally:
            stopped.set()
        for future in others:
            future.result(LONGEST_SECONDS)
        for puller in pulls:
            load.pulls += puller.result(LONGEST_SECONDS)
    return load


def _sum_of_counts(group: NativeTableGroup) -> int:
    tablets = range(1 << TABLET_BITS)
    return sum(int(group.snapshot(tablet).tables[TABLE].count.sum(dtype=np.int64)) for tablet in tablets)
