"""Messages of the lesser calls: tables, assign, erase, statistics and tablet snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError
from pydantic import ValidationError

from ..embedding.store import PushToken
from ..embedding.table_config import TableConfig
from ..embedding.table_group import AppliedMemory, TableKeys, TableRows, TableStats, TabletSnapshot
from . import parameter_server_pb2 as pb
from .errors import RequestTooLargeError, WireFormatError
from .message_fields import M, Packed, join_message, read_array, split_message
from .tablets import TabletMask
from .wire import MAX_TABLES, decode_keys, decode_mask, decode_token, encode_counts, encode_mask, encode_token

_KEYS, _WEIGHTS, _STATE, _TABLETS = 16, 17, 18, 20
MAX_SNAPSHOT_BYTES = (1 << 31) - (1 << 20)
"""Of the arrays in a tablet's snapshot: protobuf's own limit for a message, with room for what is not arrays."""
F32 = np.dtype(np.float32)
_WEIGHT_TYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
}


def parse(data: bytes, message: M) -> M:
    """`message` filled from its bytes. Raises: WireFormatError."""
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise WireFormatError(f"expected a {message.DESCRIPTOR.name}, got {len(data)} bytes: {error}") from None
    return message


def encode_tables(tables: Sequence[TableConfig]) -> list[str]:
    """Configurations as JSON."""
    return [table.model_dump_json() for table in tables]


def decode_tables(tables: Sequence[str]) -> tuple[TableConfig, ...]:
    """Configurations from JSON. Raises: WireFormatError naming what is wrong."""
    if len(tables) > MAX_TABLES:
        raise WireFormatError(f"expected at most {MAX_TABLES} tables, got {len(tables)}")
    try:
        return tuple(TableConfig.model_validate_json(table) for table in tables)
    except ValidationError as error:
        raise WireFormatError(f"expected table configurations, got: {error}") from None


@dataclass(frozen=True, slots=True)
class AssignCall:
    """A decoded assign."""

    header: pb.CallHeader
    token: PushToken
    keys: TableKeys
    weights: npt.NDArray[np.float32]
    state: npt.NDArray[np.float32] | None
    if_absent: bool
    now: int
    tablets: TabletMask | None


def encode_assign(
    header: pb.CallHeader,
    token: PushToken,
    keys: TableKeys,
    weights: npt.NDArray[np.float32],
    state: npt.NDArray[np.float32] | None,
    *,
    if_absent: bool,
    now: int,
    tablets: TabletMask,
) -> bytes:
    """Rows to set in one shard."""
    small = pb.AssignRequest(
        header=header,
        token=encode_token(token),
        tables=encode_counts(keys),
        if_absent=if_absent,
        has_state=state is not None,
        now=now,
    )
    arrays: list[tuple[int, Packed]] = [(_KEYS, keys.keys), (_WEIGHTS, weights), (_TABLETS, encode_mask(tablets))]
    if state is not None:
        arrays.append((_STATE, state))
    return join_message(small, arrays)


def decode_assign(data: bytes, tablet_bits: int) -> AssignCall:
    """The assign in `data`."""
    small, fields = split_message(data, pb.AssignRequest())
    return AssignCall(
        small.header,
        decode_token(small.token),
        decode_keys(small.tables, fields, _KEYS, "keys"),
        read_array(fields, _WEIGHTS, F32, "weights"),
        read_array(fields, _STATE, F32, "state") if small.has_state else None,
        small.if_absent,
        small.now,
        decode_mask(fields.get(_TABLETS), tablet_bits),
    )


def encode_erase(header: pb.CallHeader, token: PushToken, keys: TableKeys, tablets: TabletMask) -> bytes:
    """Rows to remove from one shard."""
    small = pb.EraseRequest(header=header, token=encode_token(token), tables=encode_counts(keys))
    return join_message(small, [(_KEYS, keys.keys), (_TABLETS, encode_mask(tablets))])


def decode_erase(data: bytes, tablet_bits: int) -> tuple[pb.CallHeader, PushToken, TableKeys, TabletMask | None]:
    """Header, token, keys and tablets of an erase."""
    small, fields = split_message(data, pb.EraseRequest())
    keys = decode_keys(small.tables, fields, _KEYS, "keys")
    return small.header, decode_token(small.token), keys, decode_mask(fields.get(_TABLETS), tablet_bits)


def encode_stats(stats: dict[str, TableStats]) -> bytes:
    """Rows and bytes per table."""
    reply = pb.StatsReply()
    for name, table in stats.items():
        reply.tables.add(
            table=name,
            rows=table.rows,
            bytes_by_part=table.bytes_by_part,
            load_factor=table.load_factor,
            rows_by_tablet=table.rows_by_tablet.astype("<i8", copy=False).tobytes(),
        )
    return reply.SerializeToString()


def decode_stats(data: bytes) -> dict[str, TableStats]:
    """Rows and bytes per table."""
    return {
        table.table: TableStats(
            table.rows,
            dict(table.bytes_by_part),
            table.load_factor,
            np.frombuffer(table.rows_by_tablet, np.int64).copy(),
        )
        for table in parse(data, pb.StatsReply()).tables
    }


def encode_snapshot(snapshot: TabletSnapshot) -> pb.TabletSnapshot:
    """One tablet as a message. Raises: RequestTooLargeError where its arrays are more than a message may hold."""
    size = sum(getattr(rows, field.name).nbytes for rows in snapshot.tables.values() for field in fields(rows))
    if size > MAX_SNAPSHOT_BYTES:
        raise RequestTooLargeError(
            f"expected a tablet of at most {MAX_SNAPSHOT_BYTES} bytes in one message, got {size} (tablet "
            f"{snapshot.tablet} of {1 << snapshot.tablet_bits}); make the cluster with more tablets (tablet_bits)"
        )
    applied = snapshot.applied
    message = pb.TabletSnapshot(
        tablet=snapshot.tablet,
        tablet_bits=snapshot.tablet_bits,
        version=snapshot.version,
        since_version=snapshot.since_version,
        push_count=snapshot.push_count,
        applied_unit=applied.unit.tobytes(),
        applied_lease=applied.lease.tobytes(),
        applied_batch=applied.batch.tobytes(),
        erased_since=snapshot.erased_since,
    )
    for name, rows in snapshot.tables.items():
        message.tables.add(
            table=name,
            dtype="bfloat16" if rows.weights.dtype == np.uint16 else rows.weights.dtype.name,
            dim=rows.weights.shape[1],
            state_width=rows.state.shape[1],
            keys=rows.keys.tobytes(),
            weights=rows.weights.tobytes(),
            state=rows.state.tobytes(),
            count=rows.count.tobytes(),
            touched_at=rows.touched_at.tobytes(),
            version=rows.version.tobytes(),
            admission_keys=rows.admission_keys.tobytes(),
            admission_counts=rows.admission_counts.tobytes(),
            erased_keys=rows.erased_keys.tobytes(),
            erased_versions=rows.erased_versions.tobytes(),
            clicks=rows.clicks.tobytes(),
        )
    return message


def decode_snapshot(message: pb.TabletSnapshot) -> TabletSnapshot:
    """The tablet of a message, its arrays read-only. Raises: WireFormatError where sizes do not fit each other."""
    try:
        return TabletSnapshot(
            message.tablet,
            message.tablet_bits,
            message.version,
            message.since_version if message.HasField("since_version") else None,
            message.push_count,
            {rows.table: _decode_rows(rows) for rows in message.tables},
            _decode_applied(message),
            message.erased_since,
        )
    except (ValueError, KeyError) as error:
        raise WireFormatError(f"expected a snapshot of tablet {message.tablet}, got: {error}") from None


def _decode_rows(rows: pb.Rows) -> TableRows:
    n = len(rows.keys) // 8
    decoded = TableRows(
        np.frombuffer(rows.keys, np.uint64),
        np.frombuffer(rows.weights, _WEIGHT_TYPES[rows.dtype]).reshape(n, rows.dim),
        np.frombuffer(rows.state, np.float32).reshape(n, rows.state_width),
        np.frombuffer(rows.count, np.uint32).reshape(n),
        np.frombuffer(rows.touched_at, np.uint32).reshape(n),
        np.frombuffer(rows.version, np.uint32).reshape(n),
        np.frombuffer(rows.admission_keys, np.uint64),
        np.frombuffer(rows.admission_counts, np.uint32),
        np.frombuffer(rows.erased_keys, np.uint64),
        np.frombuffer(rows.erased_versions, np.uint32),
        np.frombuffer(rows.clicks, np.uint32),
    )
    if len(decoded.clicks) not in (0, n):
        raise ValueError(f"{n} rows, {len(decoded.clicks)} clicks")
    if len(decoded.admission_keys) != len(decoded.admission_counts):
        raise ValueError(f"{len(decoded.admission_keys)} admission keys, {len(decoded.admission_counts)} counts")
    if len(decoded.erased_keys) != len(decoded.erased_versions):
        raise ValueError(f"{len(decoded.erased_keys)} erased keys, {len(decoded.erased_versions)} versions")
    return decoded


def _decode_applied(message: pb.TabletSnapshot) -> AppliedMemory:
    applied = AppliedMemory(
        np.frombuffer(message.applied_unit, np.uint64),
        np.frombuffer(message.applied_lease, np.uint64),
        np.frombuffer(message.applied_batch, np.int64),
    )
    if not len(applied.unit) == len(applied.lease) == len(applied.batch):
        raise ValueError(f"applied memory of {len(applied.unit)} units, {len(applied.lease)} leases")
    return applied
