"""Rows of the native table: lookup, push, insert and erase beside `numpy.take` on a dense array of that size."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import numpy.typing as npt
import psutil

from ..embedding.native_table_group import NativeTableGroup
from ..embedding.table_config import (
    Adagrad,
    Adam,
    ColumnBlock,
    Ftrl,
    Optimizer,
    RowwiseAdagrad,
    Sgd,
    TableConfig,
)
from ..embedding.table_group import TableKeys, UpdateStep
from .measurement import BenchOptions, Measurement, interleaved_rates

TABLE = "table"
OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": Sgd(),
    "adagrad": Adagrad(),
    "rowwise_adagrad": RowwiseAdagrad(),
    "adam": Adam(),
    "ftrl": Ftrl(),
}
REQUESTS = 8
ZIPF_EXPONENT = 1.2
COUNTER_BYTES = 8
WARM_UP = 2


class Options(BenchOptions):
    """rows: sizes at which every dim of `dims` is measured; big_rows: size at which only `big_dims` are.

    keys: keys a call.   threads: table threads.   max_gib: combinations whose rows would take more are left out.
    """

    dims: tuple[int, ...] = (8, 16, 64, 128)
    rows: int = 1_000_000
    big_dims: tuple[int, ...] = (16,)
    big_rows: int = 10_000_000
    keys: int = 100_000
    threads: tuple[int, ...] = (1, 2)
    optimizers: tuple[str, ...] = tuple(OPTIMIZERS)
    rounds: int = 16
    max_gib: float = 12.0


def run(options: Options) -> Iterator[Measurement]:
    """Every verb for Adagrad rows, and the push alone for the other optimizers, uniform and Zipf keys."""
    if options.quick:
        options = options.model_copy(
            update={"dims": (16,), "rows": 50_000, "big_dims": (), "keys": 10_000, "threads": (1,), "rounds": 3}
        )
    sizes = [(dim, options.rows) for dim in options.dims] + [(dim, options.big_rows) for dim in options.big_dims]
    for dim, rows in sizes:
        dense = np.ones((rows, dim), np.float32)
        for threads in options.threads:
            for name in options.optimizers:
                if _gib(dim, rows, name) <= options.max_gib:
                    yield from _one_table(options, dense, threads, name)
                    gc.collect()


def _gib(dim: int, rows: int, optimizer: str) -> float:
    state = {"sgd": 0, "adagrad": dim, "rowwise_adagrad": 1, "adam": 2 * dim + 1, "ftrl": 2 * dim}[optimizer]
    return 1.35 * (4 * dim + 4 * state + COUNTER_BYTES) * rows / 2**30


def _one_table(options: Options, dense: npt.NDArray[np.float32], threads: int, optimizer: str) -> Iterator[Measurement]:
    rows, dim = dense.shape
    rng = np.random.default_rng(0)
    every = rng.permutation(np.arange(1, rows + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    before = psutil.Process().memory_info().rss
    group = NativeTableGroup(8, threads)
    block = ColumnBlock(dim=dim, optimizer=OPTIMIZERS[optimizer])
    group.ensure_table(TableConfig(name=TABLE, blocks=(block,)))
    push = _Push(group, dim, options.keys, rng)
    for first in range(0, rows, options.keys):
        push(TableKeys.of(TABLE, every[first : first + options.keys]))
    resident = (psutil.Process().memory_info().rss - before) / rows
    counted = sum(group.stats()[TABLE].bytes_by_part.values()) / rows
    target = 4 * dim + 4 * group.state_width(TABLE) + COUNTER_BYTES
    details = {
        "dim": dim,
        "rows": rows,
        "threads": threads,
        "bytes_per_row": round(counted, 1),
        "resident_bytes_per_row": round(resident, 1),
        "memory_ratio": round(counted / target, 3),
    }
    requests = _positions(rng, rows, options.keys)
    for distribution, positions in requests.items():
        work, amounts = _reads_and_pushes(group, push, dense, every, positions)
        if optimizer != "adagrad":
            del work["lookup"]
        named = details | {"distribution": distribution, "keys": round(amounts["push"])}
        yield from _measured(work, amounts, options.rounds, optimizer, named)
    if optimizer == "adagrad":
        # Odd multipliers of another constant: keys the table never held. All are put in before any is taken out.
        count = options.rounds + WARM_UP
        fresh = np.arange(1, count * options.keys + 1, dtype=np.uint64) * np.uint64(0xD6E8FEB86659FD93)
        absent = [TableKeys.of(TABLE, keys) for keys in np.split(fresh, count)]
        _claim_pages(round(1.5 * len(fresh) * counted))
        named = details | {"distribution": "uniform", "keys": options.keys}
        take = _Take(dense, requests["uniform"])
        calls: dict[str, Iterator[object]] = {"insert": map(push, absent), "erase": map(group.erase, absent)}
        for name, left in calls.items():
            work = {"take": take, name: partial(next, left)}
            yield from _measured(work, dict.fromkeys(work, float(options.keys)), options.rounds, optimizer, named)


def _claim_pages(size: int) -> None:
    """Touch and free `size` bytes, so that the machine has the pages that the table takes next.

    A virtual machine may have given free pages back to its host. To get them again takes several times as long as the
    kernel's clearing of a page, which stays in the measurement.
    """
    np.ones(size, np.uint8)


def _measured(
    work: dict[str, Callable[[], object]],
    amounts: dict[str, float],
    rounds: int,
    optimizer: str,
    details: dict[str, object],
) -> Iterator[Measurement]:
    rates = interleaved_rates(work, amounts, rounds, WARM_UP)
    for name in work:
        if name != "take":
            workload = f"push_{optimizer}" if name == "push" else name
            yield Measurement(workload, rates[name], "rows/s", "numpy.take", rates["take"], details)


class _Take:
    """`numpy.take` of the next request's positions from a dense array."""

    def __init__(self, dense: npt.NDArray[np.float32], positions: list[npt.NDArray[np.int64]]) -> None:
        self._dense, self._positions, self._turn = dense, positions, 0
        self._out = np.empty((max(len(chosen) for chosen in positions), dense.shape[1]), np.float32)

    def __call__(self) -> object:
        self._turn += 1
        chosen = self._positions[self._turn % len(self._positions)]
        return np.take(self._dense, chosen, axis=0, out=self._out[: len(chosen)], mode="clip")


class _Push:
    """Applies the same gradients to the rows of a request."""

    def __init__(self, group: NativeTableGroup, dim: int, keys: int, rng: np.random.Generator) -> None:
        self._group = group
        self._dim = dim
        self._gradients = rng.normal(0, 0.01, keys * dim).astype(np.float32)
        self._occurrences = np.ones(keys, np.uint32)

    def __call__(self, request: TableKeys) -> object:
        count = len(request.keys)
        gradients, occurrences = self._gradients[: count * self._dim], self._occurrences[:count]
        return self._group.apply_gradients(request, gradients, occurrences, UpdateStep())


def _positions(rng: np.random.Generator, rows: int, keys: int) -> dict[str, list[npt.NDArray[np.int64]]]:
    """Positions of each request's keys, unique within it; Zipf requests are the distinct ones of `keys` draws."""
    weights = np.arange(1, rows + 1, dtype=np.float64) ** -ZIPF_EXPONENT
    cumulative = np.cumsum(weights) / weights.sum()
    return {
        "uniform": [rng.choice(rows, keys, replace=False) for _ in range(REQUESTS)],
        "zipf": [
            rng.permutation(np.unique(np.minimum(np.searchsorted(cumulative, rng.random(keys)), rows - 1)))
            for _ in range(REQUESTS)
        ],
    }


def _reads_and_pushes(
    group: NativeTableGroup,
    push: _Push,
    dense: npt.NDArray[np.float32],
    every: npt.NDArray[np.uint64],
    positions: list[npt.NDArray[np.int64]],
) -> tuple[dict[str, Callable[[], object]], dict[str, float]]:
    """Calls of one turn each and the mean number of rows a call touches."""
    dim = dense.shape[1]
    requests = [TableKeys.of(TABLE, every[chosen]) for chosen in positions]
    looked_up = np.empty(max(len(chosen) for chosen in positions) * dim, np.float32)
    turns = dict.fromkeys(("lookup", "push"), 0)

    def turn(name: str) -> TableKeys:
        turns[name] += 1
        return requests[turns[name] % REQUESTS]

    def lookup() -> object:
        request = turn("lookup")
        return group.lookup(request, "initial", looked_up[: len(request.keys) * dim])

    work: dict[str, Callable[[], object]] = {"take": _Take(dense, positions), "lookup": lookup}
    work["push"] = lambda: push(turn("push"))
    mean = float(np.mean([len(chosen) for chosen in positions]))
    return work, dict.fromkeys(work, mean)
