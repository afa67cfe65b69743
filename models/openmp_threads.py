"""Work of ours on torch's OpenMP threads, and work of torch's without them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
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
    """torch works on the calling thread alone meanwhile.

    For small work beside threads of ours: after a parallel region torch's threads spin on the cores for a while.
    Thread safety: the setting is the process's; another thread's torch work may find it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@cache
def _gomp_parallel() -> int | None:
    """Where `GOMP_parallel` of torch's libgomp lies, if torch is loaded and has one."""
    try:
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    paths = {line.split(maxsplit=5)[-1].strip() for line in mapped.splitlines() if "libgomp" in line}
    for path in sorted(paths, key=lambda path: ("torch" not in path, path)):
        parallel = getattr(ctypes.CDLL(path), "GOMP_parallel", None)
        if parallel is not None:
            return ctypes.cast(parallel, ctypes.c_void_p).value
    return None
