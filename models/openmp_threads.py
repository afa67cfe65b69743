"""Work of ours on torch's OpenMP threads, and work of torch's without them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from ..embedding.batch_rows import set_batch_threads, use_openmp


def pool_on_torch_threads(threads: int) -> bool:
    """Let the batch kernels run on torch's OpenMP threads, this many of them; whether torch's were found.

    Threads of our own would find the cores held by torch's, which spin for a while after each region of the step.
    Where torch has no libgomp that can be found (other systems, other OpenMP runtimes) the kernels use their own."""
    set_batch_threads(threads)
    address = _gomp_parallel()
    if address is not None:
        use_openmp(address)
    return address is not None


@contextmanager
def on_one_thread() -> Iterator[None]:
    """torch's work of the calling thread is done by it alone meanwhile.

    For small work beside threads of ours: after a parallel region torch's threads spin on the cores for a while.
    Where torch has no libgomp that can be found the setting is the process's, and other threads may find it."""
    threads = torch.get_num_threads()
    gomp = _gomp()
    # `torch.set_num_threads` is for all threads to come too: one that starts meanwhile would keep it for good.
    limit: Callable[[int], object] = torch.set_num_threads if gomp is None else gomp.omp_set_num_threads
    limit(1)
    try:
        yield
    finally:
        limit(threads)


def _gomp_parallel() -> int | None:
    """Where `GOMP_parallel` of torch's libgomp lies, if torch is loaded and has one."""
    gomp = _gomp()
    return None if gomp is None else ctypes.cast(gomp.GOMP_parallel, ctypes.c_void_p).value


@cache
def _gomp() -> ctypes.CDLL | None:
    """torch's libgomp, if torch is loaded and has one."""
    try:
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    paths = {line.split(maxsplit=5)[-1].strip() for line in mapped.splitlines() if "libgomp" in line}
    for path in sorted(paths, key=lambda path: ("torch" not in path, path)):
        gomp = ctypes.CDLL(path)
        if hasattr(gomp, "GOMP_parallel"):
            return gomp
    return None
