"""Initial weights of a key: pure functions of (seed, key space, key, column); the NumPy definition of the native ones.

Only integer hashing and + − × ÷ √ are used, no libm, so every CPU gives the same bits:

    stream(key)    = mix64(key XOR mix64(salt XOR mix64(seed + G)))          a bijection of the key
    bits(key, c)   = mix64(stream(key) + (c + 1)·G)                          splitmix64 over the columns of the row
    G              = 0x9e3779b97f4a7c15,  salt = key space's salt (docs/keys.md)
"""

from __future__ import annotations

import mmh3
import numpy as np
import numpy.typing as npt

from .table_config import ColumnBlock, Constant, Initializer, Normal, TableConfig, TruncatedNormal, Uniform

U64 = npt.NDArray[np.uint64]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

GOLDEN = 0x9E3779B97F4A7C15
_TWO_SIGMA_TAIL = 0.02275013194817921
_TWO_SIGMA_MASS = 0.9544997361036416

# Rational approximations of the normal quantile, single-precision variant (PPND7) of algorithm AS 241:
# M. J. Wichura, The Percentage Points of the Normal Distribution, Applied Statistics 37 (1988).
_CENTRE = (
    (3.3871327179e00, 5.0434271938e01, 1.5929113202e02, 5.9109374720e01),
    (1.0, 1.7895169469e01, 7.8757757664e01, 6.7187563600e01),
)
_SHOULDER = (
    (1.4234372777e00, 2.7568153900e00, 1.3067284816e00, 1.7023821103e-01),
    (1.0, 7.3700164250e-01, 1.2021132975e-01),
)
_TAIL = (
    (6.6579051150e00, 3.0812263860e00, 4.2868294337e-01, 1.7337203997e-02),
    (1.0, 2.4197894225e-01, 1.2258202635e-02),
)
_LN2 = 0.6931471805599453


def mix64(values: U64) -> U64:
    """Murmur3's 64-bit finaliser of each value; a bijection of uint64."""
    h = values ^ (values >> np.uint64(33))
    h = h * np.uint64(0xFF51AFD7ED558CCD)
    h = h ^ (h >> np.uint64(33))
    h = h * np.uint64(0xC4CEB9FE1A85EC53)
    return h ^ (h >> np.uint64(33))


def key_space_salt(key_space: str) -> int:
    """The key space's uint64 salt: the low half of Murmur3 x64-128 of its UTF-8 name."""
    return int(mmh3.hash64(key_space.encode(), seed=0, signed=False)[0])


def stream_base(config: TableConfig) -> int:
    """The uint64 that a key is XORed with before it is mixed: mix64(salt XOR mix64(seed + G))."""
    seed = mix64(np.array([(config.seed + GOLDEN) % 2**64], np.uint64))
    return int(mix64(np.array([key_space_salt(config.key_space)], np.uint64) ^ seed)[0])


def initial_weights(config: TableConfig, keys: U64) -> F32:
    """(n, D) float32 initial weights of `keys`; equal keys give equal rows, in any order, on any machine."""
    stream = mix64(keys ^ np.uint64(stream_base(config)))
    weights = np.empty((len(keys), config.dim), np.float32)
    start = 0
    for block in config.blocks:
        weights[:, start : start + block.dim] = _block_weights(block, start, stream)
        start += block.dim
    return weights


def _block_weights(block: ColumnBlock, start: int, stream: U64) -> F32:
    counter = (np.arange(start + 1, start + 1 + block.dim, dtype=np.uint64)) * np.uint64(GOLDEN)
    return draw(block.initializer, mix64(stream[:, None] + counter[None, :]))


def draw(initializer: Initializer, bits: U64) -> F32:
    """float32 of `bits`' shape: one draw of the initializer for each 64 random bits."""
    if isinstance(initializer, Uniform):
        low, span, below_high = uniform_constants(initializer)
        unit = (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
        return np.minimum(low + span * unit, below_high)
    if isinstance(initializer, Normal):
        deviate = normal_quantile(_open_unit(bits))
        return (initializer.mean + initializer.std * deviate).astype(np.float32)
    if isinstance(initializer, TruncatedNormal):
        deviate = normal_quantile(_TWO_SIGMA_TAIL + _TWO_SIGMA_MASS * _open_unit(bits))
        deviate = np.minimum(np.maximum(deviate, -2.0), 2.0)
        return (initializer.mean + initializer.std * deviate).astype(np.float32)
    value = initializer.value if isinstance(initializer, Constant) else 0.0
    return np.full(bits.shape, value, np.float32)


def uniform_constants(initializer: Uniform) -> tuple[np.float32, np.float32, np.float32]:
    """float32 (low, span, largest value below high); a draw is min(low + span·u, below_high), u in steps of 2^-24."""
    low, high = np.float32(initializer.low), np.float32(initializer.high)
    return low, np.float32(initializer.high - initializer.low), np.nextafter(high, low)


def _open_unit(bits: U64) -> F64:
    """float64 in (0, 1): the middles of 2^52 equal cells."""
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def normal_quantile(p: F64) -> F64:
    """Standard normal quantile of p in (0, 1), to about 1e-7 relative (AS 241, PPND7)."""
    q = p - 0.5
    r = 0.180625 - q * q
    centre = q * _horner(_CENTRE[0], r) / _horner(_CENTRE[1], r)
    r = np.sqrt(-natural_log(np.minimum(p, 1.0 - p)))
    shoulder = _horner(_SHOULDER[0], r - 1.6) / _horner(_SHOULDER[1], r - 1.6)
    tail = _horner(_TAIL[0], r - 5.0) / _horner(_TAIL[1], r - 5.0)
    outer = np.where(r <= 5.0, shoulder, tail)
    return np.where(np.abs(q) <= 0.425, centre, np.where(q < 0.0, -outer, outer))


def natural_log(x: F64) -> F64:
    """log of positive normal x: exponent from the bits, 2·atanh((m − 1)/(m + 1)) for the mantissa in [√½, √2)."""
    bits = np.ascontiguousarray(x).view(np.uint64)
    exponent = (bits >> np.uint64(52)).astype(np.int64) - 1023
    mantissa = ((bits & np.uint64(0x000FFFFFFFFFFFFF)) | np.uint64(0x3FF0000000000000)).view(np.float64)
    large = mantissa > 1.4142135623730951
    mantissa = np.where(large, mantissa * 0.5, mantissa)
    exponent = np.where(large, exponent + 1, exponent)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    series = _horner(tuple(1.0 / k for k in range(1, 20, 2)), s * s)
    return exponent.astype(np.float64) * _LN2 + 2.0 * s * series


def _horner(coefficients: tuple[float, ...], x: F64) -> F64:
    value = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + coefficient
    return value
