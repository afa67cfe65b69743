"""Messages of the lesser calls: tables, assign, erase and statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError
from pydantic import ValidationError

from ..embedding.store import PushToken
from ..embedding.table_config import TableConfig
from ..embedding.table_group import TableKeys, TableStats
from . import parameter_server_pb2 as pb
from .errors import WireFormatError
from .message_fields import M, Packed, join_message, read_array, split_message
from .tablets import TabletMask
from .wire import (
    MAX_TABLES,
    decode_keys,
    decode_mask,
    decode_token,
    decode_widths,
    encode_counts,
    encode_mask,
    encode_token,
)

_KEYS, _WEIGHTS, _STATE, _TABLETS = 16, 17, 18, 20
F32 = np.dtype(np.float32)


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
    widths: tuple[int, ...] = ()


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
    widths: Mapping[str, int] | None = None,
) -> bytes:
    """Rows to set in one shard. widths: values a row by table, for the shard to compare."""
    small = pb.AssignRequest(
        header=header,
        token=encode_token(token),
        tables=encode_counts(keys, widths),
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
        decode_widths(small.tables),
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
