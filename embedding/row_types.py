"""Storage of weights as float32, float16 or bfloat16. The NumPy definition of the kernels' conversions.

Updates are computed in float32. A 16-bit row is rounded up or down at random with the probability of the remainder, so
that small steps are not lost; the random bits hash (seed, key space, key, count, column), so a replay repeats them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .initializers import GOLDEN, mix64

F32 = npt.NDArray[np.float32]
U64 = npt.NDArray[np.uint64]
Stored = npt.NDArray[np.float32 | np.float16 | np.uint16]

STORED_DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
}
"""How NumPy holds each row type; bfloat16 as its bit pattern."""

_INFINITE = {"float16": 0x7C00, "bfloat16": 0x7F80}
_NAN = {"float16": 0x7E00, "bfloat16": 0x7FC0}
_LARGEST = {"float16": 0x7BFF, "bfloat16": 0x7F7F}


def dtype_name(stored: Stored) -> str:
    """Row type of an array of stored values. Raises: TypeError."""
    for name, dtype in STORED_DTYPES.items():
        if stored.dtype == dtype:
            return name
    raise TypeError(f"expected values of float32, float16 or uint16 (bfloat16), got {stored.dtype}")


def widen(dtype: str, stored: Stored) -> F32:
    """float32 of stored weights; exact."""
    if dtype == "bfloat16":
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return stored.astype(np.float32)


def narrow_nearest(dtype: str, weights: F32) -> Stored:
    """Weights rounded to the nearest stored value, ties to even; beyond the largest finite value to that value."""
    if dtype == "float32":
        return weights.astype(np.float32)
    bits = weights.view(np.uint32)
    if dtype == "bfloat16":
        return _assemble(dtype, bits, ((bits & 0x7FFFFFFF) + (0x7FFF + ((bits >> 16) & 1))) >> 16)
    return np.clip(weights, -65504.0, 65504.0).astype(np.float16)


def narrow_any(dtype: str, values: F32) -> Stored:
    """As `narrow_nearest`, but infinite values and NaN (as the quiet one of its sign) stay what they are."""
    if dtype == "float32":
        return values
    bits = values.view(np.uint32)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    special = np.where(magnitude > 0x7F800000, _NAN[dtype], _INFINITE[dtype])
    with np.errstate(invalid="ignore"):
        nearest = narrow_nearest(dtype, values).view(np.uint16) & np.uint16(0x7FFF)
    kept = np.where(magnitude >= 0x7F800000, special, nearest)
    return (((bits >> 31) << 15) | kept).astype(np.uint16).view(STORED_DTYPES[dtype])


def narrow_stochastic(dtype: str, weights: F32, streams: U64, counts: npt.NDArray[np.uint32]) -> Stored:
    """(n, D) weights rounded at random. streams: (n,) `mix64(key XOR stream_base)`; counts: (n,) after the update."""
    if dtype == "float32":
        return weights.astype(np.float32)
    seeds = mix64(streams + (counts.astype(np.uint64) << np.uint64(32)))
    columns = np.arange(1, weights.shape[1] + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    random24 = (mix64(seeds[:, None] + columns[None, :]) >> np.uint64(40)).astype(np.uint32)
    bits = np.ascontiguousarray(weights).view(np.uint32)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    if dtype == "bfloat16":
        return _assemble(dtype, bits, (magnitude + (random24 >> 8)) >> 16)
    normal = (magnitude + (random24 >> 11) - np.uint32(112 << 23)) >> 13
    units = np.where(magnitude < 113 << 23, np.abs(weights), np.float32(0)) * np.float32(2.0**24)
    whole = np.floor(units)
    subnormal = whole.astype(np.uint32) + (random24.astype(np.float32) * np.float32(2.0**-24) < units - whole)
    return _assemble(dtype, bits, np.where(magnitude < 113 << 23, subnormal, normal)).view(np.float16)


def _assemble(dtype: str, bits: npt.NDArray[np.uint32], magnitude: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    return (((bits >> 31) << 15) | np.minimum(magnitude, _LARGEST[dtype])).astype(np.uint16)
