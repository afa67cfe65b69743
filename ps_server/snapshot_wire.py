"""Messages that carry a tablet: the reply of Snapshot and the request of Restore, of any length.

They are plain protobuf, written and read around the library, which ends at 2 GiB a message: a tablet may be larger.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..embedding.store import PushToken
from ..embedding.table_group import AppliedMemory, TableRows, TabletSnapshot
from . import parameter_server_pb2 as pb
from .errors import WireFormatError
from .message_fields import join_message, read_array, split_message, split_repeated
from .wire import decode_token, encode_token

_SNAPSHOT = 3  # in RestoreRequest
_TABLES, _APPLIED = 6, {"unit": (7, "<u8"), "lease": (8, "<u8"), "batch": (9, "<i8")}  # in TabletSnapshot
_ROW_ARRAYS = {  # in Rows; weights are of the table's own type
    "keys": (16, "<u8"),
    "weights": (17, ""),
    "state": (18, "<f4"),
    "count": (19, "<u4"),
    "touched_at": (20, "<u4"),
    "version": (21, "<u4"),
    "admission_keys": (22, "<u8"),
    "admission_counts": (23, "<u4"),
    "erased_keys": (24, "<u8"),
    "erased_versions": (25, "<u4"),
    "clicks": (26, "<u4"),
}
_WEIGHT_TYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
}


def encode_snapshot(snapshot: TabletSnapshot) -> bytes:
    """One tablet as a `TabletSnapshot` message. Cost: two copies of its arrays."""
    small = pb.TabletSnapshot(
        tablet=snapshot.tablet,
        tablet_bits=snapshot.tablet_bits,
        version=snapshot.version,
        since_version=snapshot.since_version,
        push_count=snapshot.push_count,
        erased_since=snapshot.erased_since,
        log_position=snapshot.log_position,
    )
    rows = [(_TABLES, _encode_rows(name, table)) for name, table in snapshot.tables.items()]
    applied = [
        (number, np.ascontiguousarray(getattr(snapshot.applied, name), dtype))
        for name, (number, dtype) in _APPLIED.items()
    ]
    return join_message(small, [*rows, *applied])


def decode_snapshot(data: bytes | memoryview) -> TabletSnapshot:
    """The tablet of a message, its arrays read-only. Raises: WireFormatError where sizes do not fit each other."""
    small, fields = split_repeated(data, pb.TabletSnapshot(), _TABLES)
    try:
        return TabletSnapshot(
            small.tablet,
            small.tablet_bits,
            small.version,
            small.since_version if small.HasField("since_version") else None,
            small.push_count,
            dict(_decode_rows(content) for number, content in fields if number == _TABLES),
            _decode_applied(dict(fields)),
            small.erased_since,
            small.log_position,
        )
    except (ValueError, KeyError) as error:
        raise WireFormatError(f"expected a snapshot of tablet {small.tablet}, got: {error}") from None


def encode_restore(header: pb.CallHeader, token: PushToken, snapshot: bytes) -> bytes:
    """Request to put a tablet back, from its encoded snapshot."""
    return join_message(pb.RestoreRequest(header=header, token=encode_token(token)), [(_SNAPSHOT, snapshot)])


def decode_restore(data: bytes | memoryview) -> tuple[pb.CallHeader, PushToken, TabletSnapshot]:
    """Header, token and tablet of a request to put it back. Raises: WireFormatError."""
    small, fields = split_message(data, pb.RestoreRequest(), _SNAPSHOT)
    return small.header, decode_token(small.token), decode_snapshot(fields.get(_SNAPSHOT, memoryview(b"")))


def _encode_rows(table: str, rows: TableRows) -> bytes:
    weights = rows.weights
    small = pb.Rows(
        table=table,
        dtype="bfloat16" if weights.dtype == np.uint16 else weights.dtype.name,
        dim=weights.shape[1],
        state_width=rows.state.shape[1],
    )
    types = {name: dtype or weights.dtype.newbyteorder("<") for name, (_, dtype) in _ROW_ARRAYS.items()}
    return join_message(
        small,
        [(number, np.ascontiguousarray(getattr(rows, name), types[name])) for name, (number, _) in _ROW_ARRAYS.items()],
    )


def _decode_rows(data: memoryview) -> tuple[str, TableRows]:
    small, fields = split_message(data, pb.Rows())
    types = {name: np.dtype(dtype) if dtype else _WEIGHT_TYPES[small.dtype] for name, (_, dtype) in _ROW_ARRAYS.items()}
    arrays: dict[str, npt.NDArray[Any]] = {
        name: read_array(fields, number, types[name], f"{name} of table {small.table!r}")
        for name, (number, _) in _ROW_ARRAYS.items()
    }
    n = len(arrays["keys"])
    arrays["weights"] = arrays["weights"].reshape(n, small.dim)
    arrays["state"] = arrays["state"].reshape(n, small.state_width)
    rows = TableRows(**arrays)
    for name in ("count", "touched_at", "version"):
        if len(arrays[name]) != n:
            raise ValueError(f"{n} rows of table {small.table!r}, {len(arrays[name])} of {name}")
    if len(rows.clicks) not in (0, n):
        raise ValueError(f"{n} rows, {len(rows.clicks)} clicks")
    if len(rows.admission_keys) != len(rows.admission_counts):
        raise ValueError(f"{len(rows.admission_keys)} admission keys, {len(rows.admission_counts)} counts")
    if len(rows.erased_keys) != len(rows.erased_versions):
        raise ValueError(f"{len(rows.erased_keys)} erased keys, {len(rows.erased_versions)} versions")
    return small.table, rows


def _decode_applied(fields: dict[int, memoryview]) -> AppliedMemory:
    applied = AppliedMemory(
        *(read_array(fields, number, np.dtype(dtype), f"applied {name}") for name, (number, dtype) in _APPLIED.items())
    )
    if not len(applied.unit) == len(applied.lease) == len(applied.batch):
        raise ValueError(f"applied memory of {len(applied.unit)} units, {len(applied.lease)} leases")
    return applied
