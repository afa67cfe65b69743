"""Float arrays on the wire: float32, bfloat16 or float16 with a power-of-two scale, compressed or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import zstandard

from ..embedding import _native
from .errors import RequestTooLargeError, WireFormatError

WireDtype = Literal["float32", "bfloat16", "float16"]
Compression = Literal["none", "zstd"]

ZSTD_LEVEL = 1
FLOAT16_LARGEST_EXPONENT = 15
LARGEST_EXPONENT = 126
_STORAGE: dict[WireDtype, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(np.uint16),
    "float16": np.dtype(np.float16),
}


@dataclass(frozen=True, slots=True)
class WireFormat:
    """How arrays travel.

    dtype:       of weights and gradients; optimizer state, keys and counters are exact always.
    compression: of every array of an exchange.
    """

    dtype: WireDtype = "float32"
    compression: Compression = "none"


@dataclass(frozen=True, slots=True)
class NarrowedValues:
    """`pack_values(values, dtype, exponent)`, written where it has to lie. dtype: a 16-bit one."""

    values: npt.NDArray[np.float32]
    dtype: WireDtype
    exponent: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes on the wire."""
        return len(self.values) * storage_dtype(self.dtype).itemsize

    def write(self, out: npt.NDArray[np.uint8]) -> None:
        """Narrow the values into (nbytes,) bytes."""
        values = np.ascontiguousarray(self.values, np.float32)
        scaled = values * np.float32(2.0**self.exponent) if self.exponent else values
        _native.narrow(self.dtype, scaled, out.view(np.uint16))


def pack_values(values: npt.NDArray[np.float32], dtype: WireDtype, exponent: int = 0) -> npt.NDArray[Any]:
    """`values · 2^exponent` in the wire dtype, rounded to nearest even.

    NaN and infinite stay what they are; a finite value beyond the largest becomes the largest."""
    if dtype == "float32":
        return values
    packed = np.empty(len(values), storage_dtype(dtype))
    NarrowedValues(values, dtype, exponent).write(packed.view(np.uint8))
    return packed


def unpack_values(packed: npt.NDArray[Any], dtype: WireDtype, exponent: int = 0) -> npt.NDArray[np.float32]:
    """float32 values of a packed array; exact, as every bfloat16 and float16 is a float32."""
    if dtype == "float32":
        return packed
    values = np.empty(len(packed), np.float32)
    _native.widen(dtype, np.ascontiguousarray(packed).view(np.uint16), values)
    if exponent:
        np.multiply(values, np.float32(2.0**-exponent), out=values)
    return values


def storage_dtype(dtype: WireDtype) -> np.dtype[Any]:
    """NumPy dtype that holds wire values."""
    return _STORAGE[dtype]


def gradient_exponent(gradients: npt.NDArray[np.float32], dtype: WireDtype) -> int:
    """Power of two that brings the largest finite gradient just below float16's largest; 0 for the other dtypes."""
    if dtype != "float16" or len(gradients) == 0:
        return 0
    largest = float(np.max(np.abs(gradients), where=np.isfinite(gradients), initial=0.0))
    if largest == 0.0:
        return 0
    return min(FLOAT16_LARGEST_EXPONENT - int(np.frexp(largest)[1]), LARGEST_EXPONENT)


def compress(array: npt.NDArray[Any], compression: Compression) -> npt.NDArray[Any] | bytes:
    """The array's bytes, compressed where asked for."""
    if compression == "none" or array.nbytes == 0:
        return array
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(array.data.cast("B"))


def decompress(view: memoryview, compression: Compression, max_bytes: int) -> memoryview:
    """The bytes as they were. Raises: WireFormatError; RequestTooLargeError where they would exceed `max_bytes`."""
    if compression == "none" or len(view) == 0:
        return view
    try:
        size = zstandard.frame_content_size(view)
        if size < 0 or size > max_bytes:
            raise RequestTooLargeError(f"expected at most {max_bytes} bytes after decompression, got {size}")
        return memoryview(zstandard.ZstdDecompressor().decompress(view, max_output_size=max_bytes))
    except zstandard.ZstdError as error:
        raise WireFormatError(f"expected zstd data, got {len(view)} bytes that are none: {error}") from None
