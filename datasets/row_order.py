"""Order of units and rows: pure functions of (seed, epoch, unit), equal on every machine and NumPy version."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MASK = (1 << 64) - 1
_C1, _C2 = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53
_SALT = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio; keeps (0, 0, 0) from mixing to 0


def mix64(value: int) -> int:
    """Murmur3's 64-bit finaliser of one integer, as `feature_map/native/mix64.h`."""
    value &= _MASK
    value = ((value ^ (value >> 33)) * _C1) & _MASK
    value = ((value ^ (value >> 33)) * _C2) & _MASK
    return value ^ (value >> 33)


def mix(*parts: int) -> int:
    """uint64 hash of a tuple of integers; a bijection in the last part when the others are fixed."""
    state = _SALT
    for part in parts:
        state = mix64(state ^ (part & _MASK))
    return state


def mix64_array(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """(n,) `mix64` of each value; the input is left as it is."""
    mixed: npt.NDArray[np.uint64] = values ^ (values >> np.uint64(33))
    mixed *= np.uint64(_C1)
    mixed ^= mixed >> np.uint64(33)
    mixed *= np.uint64(_C2)
    mixed ^= mixed >> np.uint64(33)
    return mixed


def hashes(state: int, start: int, count: int) -> npt.NDArray[np.uint64]:
    """(count,) distinct uint64: hash of each of start, start + 1, … under `state`."""
    return mix64_array(np.arange(start, start + count, dtype=np.uint64) ^ np.uint64(state))


def permutation(state: int, count: int) -> npt.NDArray[np.int64]:
    """(count,) order in which 0 … count − 1 come under `state`: by their hashes, which never tie."""
    return np.argsort(hashes(state, 0, count)).astype(np.int64, copy=False)


def unit_id(run: int, epoch: int, index: int) -> int:
    """uint64 id of a work unit; distinct for every index of an epoch."""
    return mix(run, epoch, index)
