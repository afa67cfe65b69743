"""Keys in NumPy arrays: Murmur3's finaliser and its inverse, element by element."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]


def mix64(h: Keys) -> Keys:
    """(n,) uint64: fmix64 of each, a bijection. Source: A. Appleby, MurmurHash3."""
    h = (h ^ (h >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    h = (h ^ (h >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return h ^ (h >> np.uint64(33))


def unmix64(h: Keys) -> Keys:
    """(n,) uint64: the inverse of `mix64`."""
    h = (h ^ (h >> np.uint64(33))) * np.uint64(0x9CB4B2F8129337DB)
    h = (h ^ (h >> np.uint64(33))) * np.uint64(0x4F74430C22A54005)
    return h ^ (h >> np.uint64(33))
