"""What every store asks of its arguments before it changes, reads or sends anything."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from .request_checks import LARGEST_LR_SCALE, wrong_arrays
from .store import Pull, Push, PushToken
from .table_config import TableConfig
from .table_group import Absent, TableKeys, TabletSnapshot

_DTYPES = {
    "keys": np.dtype(np.uint64),
    "splits": np.dtype(np.int64),
    "gradients": np.dtype(np.float32),
    "weights": np.dtype(np.float32),
    "state": np.dtype(np.float32),
    "occurrences": np.dtype(np.uint32),
    "clicks": np.dtype(np.uint32),
    "seen_pushes": np.dtype(np.uint64),
}


def check_exchange(push: Push | None, pull: Pull | None) -> None:
    """Raises: TypeError, ValueError for a push or a pull that is none."""
    if push is not None:
        _check_push(push)
    if pull is not None:
        _check_kind(pull, Pull, "a Pull")
        check_keys(pull.keys)
        if pull.absent not in get_args(Absent):
            raise ValueError(f"expected absent rows as one of {list(get_args(Absent))}, got {pull.absent!r}")


def check_keys(keys: TableKeys) -> None:
    """Raises: TypeError, ValueError unless the keys are laid out as `TableKeys` says."""
    _check_kind(keys, TableKeys, "TableKeys")
    check_arrays(keys=keys.keys, splits=keys.splits)
    splits, expected, last = keys.splits.tolist(), len(keys.tables) + 1, len(keys.keys)
    if len(splits) != expected or splits[0] != 0 or splits[-1] != last or splits != sorted(splits):
        raise ValueError(f"expected {expected} ascending splits from 0 to {last}, got {keys.splits}")
    if len(set(keys.tables)) != len(keys.tables):
        raise ValueError(f"expected distinct tables in a request, got {keys.tables}")


def check_arrays(**given: npt.NDArray[Any] | None) -> None:
    """Raises: TypeError unless each array that is given has the dtype of its name, is flat and in C order.

    Bytes on the wire say nothing of the dtype they were."""
    for name, array in given.items():
        if array is None:
            continue
        is_flat = isinstance(array, np.ndarray) and array.ndim == 1 and array.flags.c_contiguous
        if not is_flat or array.dtype != _DTYPES[name]:
            raise wrong_arrays(**{name: array})


def check_tables(tables: Iterable[TableConfig]) -> tuple[TableConfig, ...]:
    """`tables`, which a generator gives only once. Raises: TypeError unless they are configurations of tables."""
    is_several = isinstance(tables, Iterable) and not isinstance(tables, str | TableConfig)
    given = tuple(tables) if is_several else ()
    others: list[object] = [table for table in given if not isinstance(table, TableConfig)] if is_several else [tables]
    if others:
        raise TypeError(f"expected a list of TableConfig, got {others[0]!r}")
    return given


def check_snapshot(snapshot: TabletSnapshot) -> None:
    """Raises: TypeError unless it is one."""
    _check_kind(snapshot, TabletSnapshot, "a TabletSnapshot")


def check_number(value: object, name: str, bits: int, least: int = 0) -> None:
    """Raises: TypeError, ValueError unless it is a whole number from `least` to 2^bits - 1."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise TypeError(f"expected a whole number as {name}, got {value!r}")
    if not least <= value < 1 << bits:
        raise ValueError(f"expected {name} from {least} to 2^{bits} - 1, got {value}")


def _check_push(push: Push) -> None:
    _check_kind(push, Push, "a Push")
    if push.prepared is None:  # which was made of sound keys
        check_keys(push.keys)
    check_arrays(
        gradients=push.gradients, occurrences=push.occurrences, clicks=push.clicks, seen_pushes=push.seen_pushes
    )
    if push.token is not None:
        _check_kind(push.token, PushToken, "a PushToken")
        check_number(push.token.unit, "the token's unit", 64)
        check_number(push.token.lease, "the token's lease", 64)
        check_number(push.token.batch, "the token's batch", 63)
    check_number(push.examples, "examples", 32, 1)
    check_number(push.step, "step", 63, 1)
    check_number(push.now, "now", 32)
    if not isinstance(push.lr_scale, int | float | np.floating) or not 0 <= push.lr_scale <= LARGEST_LR_SCALE:
        raise ValueError(f"expected lr_scale from 0 to {LARGEST_LR_SCALE:.6g}, got {push.lr_scale!r}")


def _check_kind(given: object, kind: type, name: str) -> None:
    if not isinstance(given, kind):
        raise TypeError(f"expected {name}, got {given!r}")
