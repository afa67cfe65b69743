"""What every table group asks of a request, a configuration and a snapshot before it changes anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from .config_differences import differences
from .errors import DuplicateKeyError, TableConflictError, UnknownTableError
from .row_types import STORED_DTYPES
from .table_config import TableConfig, unknown_table
from .table_group import TableKeys, TabletSnapshot, UpdateStep

NAMED_DIFFERENCES = 3
LARGEST_LR_SCALE = float(np.finfo(np.float32).max)
Given = TypeVar("Given")


def check_request(request: TableKeys, known: dict[str, Any], *, reads: bool = False) -> None:
    """Raises: UnknownTableError, ValueError for a request not laid out as `TableKeys` says, DuplicateKeyError unless it
    only `reads`."""
    for name in request.tables:
        if name not in known:
            raise UnknownTableError(f"expected one of tables {sorted(known)}, got {name!r}")
    if len(set(request.tables)) != len(request.tables):
        raise ValueError(f"expected distinct tables in a request, got {request.tables}")
    if request.keys.dtype != np.uint64 or request.keys.ndim != 1:
        raise ValueError(f"expected keys (n,) uint64, got {request.keys.shape} {request.keys.dtype}")
    splits = request.splits
    if (
        len(splits) != len(request.tables) + 1
        or splits[0] != 0
        or splits[-1] != len(request.keys)
        or (np.diff(splits) < 0).any()
    ):
        raise ValueError(
            f"expected {len(request.tables) + 1} ascending splits from 0 to {len(request.keys)}, got {splits}"
        )
    for index, name in enumerate(() if reads else request.tables):
        keys = np.sort(request.keys_of(index))
        repeated = keys[1:][keys[1:] == keys[:-1]]
        if len(repeated):
            raise DuplicateKeyError(f"expected unique keys, got key {int(repeated[0])} more than once (table {name!r})")


def wrong_arrays(**given: object) -> TypeError:
    """What is said of arrays that a verb does not take."""
    got = [
        f"{name} {value.dtype} {value.shape}{'' if value.flags.c_contiguous else ' not in C order'}"
        if isinstance(value, np.ndarray)
        else f"{name} {value!r}"
        for name, value in given.items()
        if value is not None
    ]
    return TypeError(
        "expected flat arrays in C order (keys uint64, splits int64, values float32, occurrences and clicks uint32, "
        f"tablets bool) and 0 <= now < 2^32, got {', '.join(got)}"
    )


def check_same_config(existing: TableConfig, config: TableConfig) -> None:
    """Raises: TableConflictError naming the first fields that differ."""
    if existing == config:
        return
    found = list(differences(existing.model_dump(), config.model_dump()))
    named = "; ".join(f"expected {path} {old!r}, got {new!r}" for path, old, new in found[:NAMED_DIFFERENCES])
    more = f" and {len(found) - NAMED_DIFFERENCES} more" if len(found) > NAMED_DIFFERENCES else ""
    raise TableConflictError(f"{named}{more} (table {config.name!r}, which is there already)")


def check_import(
    snapshot: TabletSnapshot, tablet_bits: int, version: int, shape_of: Callable[[str], tuple[int, int, str]]
) -> None:
    """Raises: UnknownTableError, ValueError for a snapshot that does not fit; nothing has been changed."""
    if snapshot.tablet_bits != tablet_bits:
        raise ValueError(f"expected a snapshot of 2^{tablet_bits} tablets, got one of 2^{snapshot.tablet_bits}")
    if snapshot.since_version is not None and snapshot.since_version > version:
        raise ValueError(
            f"expected a delta since version {version} or older, got since {snapshot.since_version} "
            f"(tablet {snapshot.tablet})"
        )
    for name, rows in snapshot.tables.items():
        dim, state_width, dtype = shape_of(name)
        expected = STORED_DTYPES[dtype]
        n = len(rows.keys)
        tablets = rows.keys >> np.uint64(64 - tablet_bits) if tablet_bits else np.zeros(n, np.uint64)
        if (rows.keys[1:] <= rows.keys[:-1]).any() or (tablets != snapshot.tablet).any():
            raise ValueError(f"expected ascending keys of tablet {snapshot.tablet}, got others (table {name!r})")
        if rows.weights.shape != (n, dim) or rows.weights.dtype != expected or rows.state.shape != (n, state_width):
            raise ValueError(
                f"expected weights ({n}, {dim}) {expected} and state ({n}, {state_width}), got "
                f"{rows.weights.shape} {rows.weights.dtype} and {rows.state.shape} (table {name!r})"
            )
        if len(rows.clicks) not in (0, n):
            raise ValueError(f"expected clicks of {n} rows or none, got {len(rows.clicks)} (table {name!r})")


def check_droppable(name: str, configs: Mapping[str, TableConfig]) -> None:
    """Raises: ValueError for the table of another table's unknown rows, which goes with that table."""
    owner = unknown_owners(configs.values()).get(name)
    if owner is not None:
        raise ValueError(f"expected to drop table {owner!r}, which owns {name!r}, got {name!r} alone")


def check_step(step: UpdateStep) -> None:
    """Raises: ValueError for a step that no push can have."""
    is_sound = 1 <= step.examples < 1 << 32 and step.step >= 1 and 0 <= step.now < 1 << 32
    if not (is_sound and 0 <= step.lr_scale <= LARGEST_LR_SCALE):
        raise ValueError(
            f"expected 1 ≤ examples < 2^32, step ≥ 1, 0 ≤ now < 2^32, finite lr_scale ≥ 0 (float32), got {step}"
        )


def check_prepared(prepared: object | None, kind: type[Given]) -> Given | None:
    """`prepared`. Raises: TypeError for what the table group's own `prepare` does not give."""
    if prepared is not None and not isinstance(prepared, kind):
        raise TypeError(f"expected prepared as prepare of this table group gives it, got {type(prepared).__name__}")
    return prepared


def check_clicks(clicks: npt.NDArray[np.uint32] | None, occurrences: npt.NDArray[np.uint32]) -> None:
    """Raises: ValueError unless there is one number a key, at most as large as its occurrences."""
    if clicks is None:
        return
    if clicks.shape != occurrences.shape or clicks.dtype != np.uint32:
        raise ValueError(f"expected clicks {occurrences.shape} uint32, got {clicks.shape} {clicks.dtype}")
    beyond = np.flatnonzero(clicks > occurrences)
    if len(beyond):
        first = int(beyond[0])
        raise ValueError(
            f"expected at most as many clicks as occurrences, got {clicks[first]} of {occurrences[first]} "
            f"(key {first} of the request)"
        )


def check_finite(weights: npt.NDArray[np.float32]) -> None:
    """Raises: ValueError for weights that are not all finite."""
    if not np.isfinite(weights).all():
        raise ValueError("expected finite weights, got nan or infinity")


def unknown_owners(configs: Iterable[TableConfig]) -> dict[str, str]:
    """Names of the tables that hold another's unknown rows, each with the name of that other table."""
    return {unknown_table(config).name: config.name for config in configs if config.unseen == "unknown_row"}


def check_writable(tables: Iterable[str], owners: Mapping[str, str]) -> None:
    """Raises: ValueError for a table of another's unknown rows, which pushes to that other table alone change."""
    for name in tables:
        if name in owners:
            raise ValueError(
                f"expected a table with rows of its own, got {name!r}: it holds the unknown rows of table "
                f"{owners[name]!r} and is trained by the keys of that one"
            )
