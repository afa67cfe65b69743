"""Keeps freed buffers of several megabytes for the next call instead of giving them back to the kernel."""

from __future__ import annotations

import ctypes
import platform

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
LARGEST_KEPT_BUFFER = 32 << 20
KEPT_BYTES = 512 << 20

_state = {"done": False}


def keep_large_buffers() -> bool:
    """Whether the allocator now keeps buffers up to 32 MiB, and up to 512 MiB in all, for reuse; once a process.

    With glibc's defaults each buffer of a data call is mapped and page-faulted anew, which halves the rate of large
    calls. Elsewhere than on glibc nothing is changed."""
    if _state["done"] or platform.libc_ver()[0] != "glibc":
        return _state["done"]
    libc = ctypes.CDLL(None)
    # 32 MiB is the largest threshold that glibc takes on 64-bit machines.
    mapped = libc.mallopt(_M_MMAP_THRESHOLD, LARGEST_KEPT_BUFFER)
    trimmed = libc.mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
    _state["done"] = bool(mapped and trimmed)
    return _state["done"]
