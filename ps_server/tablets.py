"""Which tablet a key lies in: the top t bits of the key."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MAX_TABLET_BITS = 16

TabletMask = npt.NDArray[np.bool_]
"""(2^t,) one flag per tablet."""


def check_tablet_bits(tablet_bits: int) -> int:
    """`tablet_bits`, if it is one a store can have. Raises: ValueError."""
    if not 0 <= tablet_bits <= MAX_TABLET_BITS:
        raise ValueError(f"expected tablet_bits from 0 to {MAX_TABLET_BITS}, got {tablet_bits}")
    return tablet_bits


def check_mask(tablets: TabletMask, tablet_bits: int, what: str) -> TabletMask:
    """`tablets`, if it is one flag for each tablet. Raises: ValueError naming `what` takes them."""
    mask = np.asarray(tablets)
    if mask.shape != (1 << tablet_bits,) or mask.dtype != np.bool_:
        raise ValueError(f"expected ({1 << tablet_bits},) bool tablets, got {mask.shape} {mask.dtype} ({what})")
    return mask


def check_evict(now: int, max_rows: int | None, tablets: TabletMask | None, tablet_bits: int) -> TabletMask | None:
    """`tablets`, if they and the rest are what an eviction can have. Raises: ValueError."""
    if isinstance(now, bool) or not isinstance(now, int | np.integer) or not 0 <= now < 1 << 32:
        raise ValueError(f"expected whole seconds 0 <= now < 2^32, got {now!r} (evict)")
    if max_rows is not None and tablets is not None:
        raise ValueError("expected max_rows or tablets, got both (evict)")
    is_whole = isinstance(max_rows, int | np.integer) and not isinstance(max_rows, bool)
    if max_rows is not None and (not is_whole or max_rows < 1):
        raise ValueError(f"expected max_rows of at least 1, got {max_rows!r} (evict)")
    return None if tablets is None else check_mask(tablets, tablet_bits, "evict")


def tablets_of(keys: npt.NDArray[np.uint64], tablet_bits: int) -> npt.NDArray[np.intp]:
    """(n,) tablet of each of `keys`."""
    if tablet_bits == 0:
        return np.zeros(len(keys), np.intp)
    tablets: npt.NDArray[np.intp] = (keys >> np.uint64(64 - tablet_bits)).astype(np.intp)
    return tablets


def keys_per_tablet(keys: npt.NDArray[np.uint64], tablet_bits: int) -> npt.NDArray[np.int64]:
    """(2^t,) int64 number of `keys` in each tablet."""
    return np.bincount(tablets_of(keys, tablet_bits), minlength=1 << tablet_bits).astype(np.int64, copy=False)


def tablet_range(first: int, last: int, tablet_bits: int) -> str:
    """Text of tablets [first, last] with the keys they hold, for error messages."""
    width = 64 - tablet_bits
    return f"tablets {first}..{last} (keys {first << width:#018x}..{((last + 1) << width) - 1:#018x})"
