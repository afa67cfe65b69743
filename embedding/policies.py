"""Which keys get rows and which rows leave: pure functions, the definition of `native/policies.h`.

Every decision is a function of the tablet's rows and the push, never of insertion order or of other tablets, so that a
replay and a restored table decide alike.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .initializers import GOLDEN, mix64
from .optimizers import block_state_width, power, sum_of_squares
from .row_types import STORED_DTYPES
from .table_config import Capacity, MinCount, MinL2, Probability, Score, TableConfig, Ttl, share
from .table_group import UpdateStep

U64 = npt.NDArray[np.uint64]

FEWEST_ERASED_KEPT = 1024
"""A tablet remembers this many erased keys a table, or as many as the table has rows there, if that is more."""

_LN2 = 0.6931471805599453


def bytes_per_row(config: TableConfig) -> int:
    """Memory a row of the native group takes at most in a large table: weights, state, counters, index, slack."""
    stored = config.dim * STORED_DTYPES[config.dtype].itemsize
    state = 4 * sum(block_state_width(block) for block in config.blocks)
    counters = 16 if config.keeps_clicks else 12
    return (stored + state + counters) * 11 // 10 + 25


def row_limit(config: TableConfig, tablet_bits: int) -> int | None:
    """Rows the table may hold, by `Capacity` and `memory_limit_bytes`; None for no limit. A tablet holds its `share`.

    Raises: ValueError if there is not one row for each tablet."""
    limits = [policy.capacity_rows for policy in config.eviction if isinstance(policy, Capacity)]
    if config.memory_limit_bytes is not None:
        limits.append(config.memory_limit_bytes // bytes_per_row(config))
    if not limits:
        return None
    if min(limits) < 1 << tablet_bits:
        raise ValueError(
            f"expected room for at least {1 << tablet_bits} rows, one a tablet, got {min(limits)} "
            f"(table {config.name!r}; capacity_rows, or memory_limit_bytes at {bytes_per_row(config)} bytes a row)"
        )
    return min(limits)


def counter_quota(policy: MinCount, tablet: int, tablet_bits: int) -> int:
    """Keys whose occurrences the tablet counts at most."""
    return max(1, share(policy.counter_capacity, tablet, tablet_bits))


def capacity_order(config: TableConfig) -> str | None:
    """`lru` or `lfu` if the table makes room by evicting, None if it refuses new keys."""
    return next((policy.order for policy in config.eviction if isinstance(policy, Capacity)), None)


def is_thrown_in(
    policy: Probability, streams: U64, occurrences: npt.NDArray[np.uint32], step: UpdateStep
) -> npt.NDArray[np.bool_]:
    """(n,) bool: keys that this push admits. streams: (n,) `mix64(key XOR stream_base)`."""
    unit = mix64(np.array([step.unit], np.uint64))
    batch = mix64(np.array([(step.batch + GOLDEN) % 2**64], np.uint64))
    bits = mix64(mix64(streams ^ unit) ^ batch)
    left_out = power(1.0 - policy.p, occurrences.astype(np.int64))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53 >= left_out


def is_expired(
    config: TableConfig,
    weights: npt.NDArray[np.float32],
    count: npt.NDArray[np.uint32],
    clicks: npt.NDArray[np.uint32],
    touched_at: npt.NDArray[np.uint32],
    now: int,
) -> npt.NDArray[np.bool_]:
    """(n,) bool: rows that a ttl, min_l2 or score policy lets go at `now`. clicks: zeros where the table keeps none."""
    expired = np.zeros(len(count), np.bool_)
    age = np.maximum(now - touched_at.astype(np.int64), 0)
    for policy in config.eviction:
        if isinstance(policy, Ttl):
            expired |= age >= policy.ttl_seconds
        elif isinstance(policy, MinL2):
            expired |= np.sqrt(sum_of_squares(weights)) < np.float32(policy.min_l2)
        elif isinstance(policy, Score):
            seen, clicked = count.astype(np.float64), clicks.astype(np.float64)
            worth = policy.show_weight * (seen - clicked) + policy.click_weight * clicked
            expired |= worth * halved(age, policy.half_life_seconds) < policy.min_score
    return expired


def evicts_by_age_or_value(config: TableConfig) -> bool:
    """Whether `evict` has anything to look for in the table."""
    return any(isinstance(policy, (Ttl, MinL2, Score)) for policy in config.eviction)


def halved(age: npt.NDArray[np.int64], half_life: int) -> npt.NDArray[np.float64]:
    """0.5^(age / half_life) by + and × alone: whole halvings, then the series of exp for the rest."""
    x = -((age % half_life) / np.float64(half_life)) * _LN2
    series = np.ones_like(x)
    for k in range(14, 0, -1):
        series = series * x / np.float64(k) + 1.0
    return series * power(0.5, np.minimum(age // half_life, 2000))


def scan_hash(keys: U64) -> U64:
    """Order in which `evict` goes through a tablet: a bijection of the key (the index's own order)."""
    return (keys ^ (keys >> np.uint64(32))) * np.uint64(GOLDEN)
