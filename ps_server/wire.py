"""Messages of the data calls ↔ pushes, pulls and rows. `docs/wire_protocol.md` is the page; golden bytes pin it.

Decoded arrays are read-only views of the received bytes. Every decoder raises WireFormatError for bytes that contradict
themselves.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..embedding.store import Exchange, Pull, Push, PushReport, PushToken, Rows
from ..embedding.table_group import Absent, TableKeys, TableUpdate
from . import parameter_server_pb2 as pb
from .doorbell import Piece
from .errors import WireFormatError
from .message_fields import Fields, Packed, S, join_message, lay_out_message, read_array, split_message
from .tablets import TabletMask
from .wire_values import (
    LARGEST_EXPONENT,
    Compression,
    NarrowedValues,
    WireDtype,
    WireFormat,
    compress,
    decompress,
    gradient_exponent,
    pack_values,
    storage_dtype,
    unpack_values,
)

C = TypeVar("C")
U32, U64 = np.dtype(np.uint32), np.dtype(np.uint64)

PROTOCOL = 1
MAX_TABLES = 4096
MAX_NAME_BYTES = 256
_DTYPES: tuple[WireDtype, ...] = ("float32", "bfloat16", "float16")
_COMPRESSIONS: tuple[Compression, ...] = ("none", "zstd")
_ABSENT: tuple[Absent, ...] = ("initial", "zeros", "unseen")

# Numbers of the array fields in parameter_server.proto.
_PUSH_KEYS, _GRADIENTS, _OCCURRENCES, _SEEN_PUSHES, _PUSH_TABLETS, _PULL_KEYS = 16, 17, 18, 19, 20, 21
_PUSH_CLICKS = 22
_VALUES, _PUSHES = 16, 17
PIECES: Mapping[int, Piece] = {
    **dict.fromkeys((_PUSH_KEYS, _OCCURRENCES, _PUSH_CLICKS, _PULL_KEYS), Piece.KEYS),
    _GRADIENTS: Piece.GRADIENTS,
}
"""Arrays of an exchange by what the shard needs first. It can take a message apart without them."""


@dataclass(frozen=True, slots=True)
class NormSummary:
    """Running gradient norm of one table over the pushes of all workers."""

    mean: float
    deviation: float
    pushes: int


@dataclass(frozen=True, slots=True)
class ExchangeCall:
    """A decoded exchange.

    tablets: the tablets the push speaks for, None for all of the shard's.   shared: where its arrays lie, if elsewhere.
    push_widths, pull_widths: values a row as the caller knows its tables; none where it does not say.
    """

    header: pb.CallHeader
    push: Push | None
    pull: Pull | None
    tablets: TabletMask | None
    rows_format: WireFormat
    norms: dict[str, float] = field(default_factory=dict)
    shared: pb.SharedArrays | None = None
    push_widths: tuple[int, ...] = ()
    pull_widths: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ExchangeAnswer:
    """A decoded answer: one shard's exchange, the gradient norms it knows, and whether its log is past its limit."""

    exchange: Exchange
    norms: dict[str, NormSummary]
    wants_checkpoint: bool


def cluster_hash(name: str) -> int:
    """64 bits that stand for a cluster's name in every call."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def exchange_message(
    header: pb.CallHeader,
    push: Push | None,
    pull: Pull | None,
    wire: WireFormat,
    *,
    tablets: TabletMask | None = None,
    norms: dict[str, float] | None = None,
    widths: Mapping[str, int] | None = None,
) -> tuple[pb.ExchangeRequest, list[tuple[int, Packed]]]:
    """One data call: its small part, and its arrays by field number. tablets: those the push speaks for (None: all of
    the shard's). widths: values a row by table, for the shard to compare."""
    small = pb.ExchangeRequest(header=header, compression=wire.compression.upper())
    arrays: list[tuple[int, Packed]] = []

    def add(number: int, array: npt.NDArray[Any]) -> None:
        arrays.append((number, compress(array, wire.compression)))

    if push is not None:
        if push.token is None:
            raise ValueError("expected a push with a token, got None")
        exponent = gradient_exponent(push.gradients, wire.dtype)
        small.push.CopyFrom(
            pb.PushPart(
                token=encode_token(push.token),
                tables=encode_counts(push.keys, widths),
                examples=push.examples,
                step=push.step,
                now=push.now,
                lr_scale=push.lr_scale,
                recomputed=push.recomputed,
                dtype=wire.dtype.upper(),
                exponent=exponent,
                norms=[pb.TableNorm(table=table, norm=norm) for table, norm in (norms or {}).items()],
            )
        )
        add(_PUSH_KEYS, push.keys.keys)
        if wire.dtype == "float32" or wire.compression != "none":
            add(_GRADIENTS, pack_values(push.gradients, wire.dtype, exponent))
        else:
            arrays.append((_GRADIENTS, NarrowedValues(push.gradients, wire.dtype, exponent)))
        add(_OCCURRENCES, push.occurrences)
        if push.clicks is not None:
            add(_PUSH_CLICKS, push.clicks)
        if push.seen_pushes is not None:
            add(_SEEN_PUSHES, push.seen_pushes)
        if tablets is not None:
            arrays.append((_PUSH_TABLETS, encode_mask(tablets)))
    if pull is not None:
        small.pull.CopyFrom(
            pb.PullPart(
                tables=encode_counts(pull.keys, widths),
                absent=pull.absent.upper(),
                dtype=wire.dtype.upper(),
            )
        )
        add(_PULL_KEYS, pull.keys.keys)
    return small, arrays


def decode_exchange(
    data: bytes,
    tablet_bits: int,
    max_bytes: int = 1 << 31,
    shared_fields: Callable[[pb.SharedArrays], Fields] | None = None,
    wait: Callable[[Piece], None] | None = None,
) -> ExchangeCall:
    """The data call in `data`; max_bytes bounds what its arrays may grow to when decompressed.

    Gradients stay in the 16 bits in which they travelled, if they were not scaled: tables take them so.

    shared_fields: gives the arrays that lie in shared memory.   wait: for arrays that are not all there."""
    small, fields = split_message(data, pb.ExchangeRequest())
    compression = _choice(_COMPRESSIONS, small.compression, "compression")
    if small.HasField("shared"):
        if shared_fields is None or compression != "none":
            raise WireFormatError("expected arrays in the message, got shared memory")
        fields = {**fields, **shared_fields(small.shared)}
    if compression != "none":
        fields = {
            number: view if number == _PUSH_TABLETS else decompress(view, compression, max_bytes)
            for number, view in fields.items()
        }
    push = pull = tablets = None
    rows_dtype: WireDtype = "float32"
    norms: dict[str, float] = {}
    if small.HasField("push"):
        part = small.push
        dtype = _choice(_DTYPES, part.dtype, "push.dtype")
        keys = decode_keys(part.tables, fields, _PUSH_KEYS, "push_keys")
        occurrences = _read_sized(fields, _OCCURRENCES, U32, len(keys.keys), "occurrences")
        clicks = read_array(fields, _PUSH_CLICKS, U32, "push_clicks")
        if len(clicks) not in (0, len(occurrences)):
            raise WireFormatError(f"expected push_clicks of {len(occurrences)} keys or none, got {len(clicks)}")
        seen = read_array(fields, _SEEN_PUSHES, U64, "seen_pushes")
        if len(seen) not in (0, 1 << tablet_bits):
            raise WireFormatError(f"expected seen_pushes of {1 << tablet_bits} tablets, got {len(seen)}")
        if not -LARGEST_EXPONENT - 1 <= part.exponent <= LARGEST_EXPONENT:
            raise WireFormatError(f"expected an exponent up to {LARGEST_EXPONENT}, got {part.exponent}")
        gradients = read_array(fields, _GRADIENTS, storage_dtype(dtype), "gradients")
        if part.exponent:
            if wait is not None:
                wait(Piece.GRADIENTS)
            gradients = unpack_values(gradients, dtype, part.exponent)
        push = Push(
            decode_token(part.token),
            keys,
            gradients,
            occurrences,
            part.examples,
            part.step,
            part.now,
            part.lr_scale,
            seen if len(seen) else None,
            part.recomputed,
            clicks if len(clicks) else None,
        )
        tablets = decode_mask(fields.get(_PUSH_TABLETS), tablet_bits)
        norms = {norm.table: norm.norm for norm in part.norms}
    if small.HasField("pull"):
        keys = decode_keys(small.pull.tables, fields, _PULL_KEYS, "pull_keys")
        pull = Pull(keys, _choice(_ABSENT, small.pull.absent, "pull.absent"))
        rows_dtype = _choice(_DTYPES, small.pull.dtype, "pull.dtype")
    shared = small.shared if small.HasField("shared") else None
    widths = decode_widths(small.push.tables), decode_widths(small.pull.tables)
    return ExchangeCall(small.header, push, pull, tablets, WireFormat(rows_dtype, compression), norms, shared, *widths)


def encode_exchange_reply(
    exchange: Exchange,
    wire: WireFormat,
    norms: dict[str, NormSummary] | None = None,
    *,
    wants_checkpoint: bool = False,
) -> bytes:
    """The answer to one data call."""
    small = _small_reply(exchange.report, wire, norms, wants_checkpoint=wants_checkpoint)
    if exchange.rows is None:
        return small.SerializeToString()
    values = compress(pack_values(exchange.rows.values, wire.dtype), wire.compression)
    return join_message(small, [(_VALUES, values), (_PUSHES, compress(exchange.rows.pushes, wire.compression))])


class ExchangeReplyRoom:
    """The answer to a pull before its rows are read: `values` is where they go, in the wire dtype.

    `finish` gives the same bytes as `encode_exchange_reply` without compression, and no copy of the rows."""

    def __init__(
        self,
        report: PushReport | None,
        dtype: WireDtype,
        size: int,
        tablets: int,
        norms: dict[str, NormSummary] | None = None,
        *,
        wants_checkpoint: bool = False,
        shared: npt.NDArray[np.uint8] | None = None,
    ) -> None:
        """size: values of the rows.   shared: memory for them outside the message, as many bytes as they have."""
        small = _small_reply(report, WireFormat(dtype), norms, wants_checkpoint=wants_checkpoint)
        sizes = [(_PUSHES, tablets * U64.itemsize)]
        if shared is not None:
            small.shared_bytes = len(shared)
        elif size:
            sizes.insert(0, (_VALUES, size * storage_dtype(dtype).itemsize))
        self._data, rooms = lay_out_message(small, sizes)
        self._dtype: WireDtype = dtype
        self._pushes = rooms[-1].view(np.uint64)
        room = shared if shared is not None else rooms[0] if size else np.empty(0, np.uint8)
        self.values: npt.NDArray[Any] = room.view(storage_dtype(dtype))

    def finish(self, rows: Rows) -> bytes:
        """The message; it holds the rows, or says that they are in the shared memory."""
        if not np.may_share_memory(rows.values, self.values):
            self.values[:] = pack_values(rows.values, self._dtype)
        self._pushes[:] = rows.pushes
        return self._data


def _small_reply(
    report: PushReport | None, wire: WireFormat, norms: dict[str, NormSummary] | None, *, wants_checkpoint: bool
) -> pb.ExchangeReply:
    small = pb.ExchangeReply(dtype=wire.dtype.upper(), compression=wire.compression.upper())
    if report is not None:
        small.report.CopyFrom(_encode_report(report))
        small.report.wants_checkpoint = wants_checkpoint
    for table, norm in (norms or {}).items():
        small.report.norms.add(table=table, mean=norm.mean, deviation=norm.deviation, pushes=norm.pushes)
    return small


def decode_exchange_reply(
    data: bytes,
    pull: Pull | None,
    tablet_bits: int,
    max_bytes: int = 1 << 31,
    shared_reply: Callable[[int], memoryview] | None = None,
) -> ExchangeAnswer:
    """What a shard answered; `pull` is the one that was sent. shared_reply: gives rows that lie in shared memory."""
    small, fields = split_message(data, pb.ExchangeReply())
    compression = _choice(_COMPRESSIONS, small.compression, "compression")
    if compression != "none":
        fields = {number: decompress(view, compression, max_bytes) for number, view in fields.items()}
    if small.shared_bytes and shared_reply is not None:
        fields = {**fields, _VALUES: shared_reply(small.shared_bytes)}
    rows = None
    if pull is not None:
        dtype = _choice(_DTYPES, small.dtype, "dtype")
        values = unpack_values(read_array(fields, _VALUES, storage_dtype(dtype), "values"), dtype)
        pushes = _read_sized(fields, _PUSHES, U64, 1 << tablet_bits, "pushes")
        rows = Rows(pull.keys, values, pushes)
    report = _decode_report(small.report) if small.HasField("report") else None
    norms = {norm.table: NormSummary(norm.mean, norm.deviation, norm.pushes) for norm in small.report.norms}
    return ExchangeAnswer(Exchange(report, rows), norms, small.report.wants_checkpoint)


# --- parts ------------------------------------------------------------------------------------------------------------


def encode_token(token: PushToken) -> pb.Token:
    """The token as a message."""
    return pb.Token(unit=token.unit, lease=token.lease, batch=token.batch)


def decode_token(token: pb.Token) -> PushToken:
    """The token of a message. Raises: WireFormatError for a negative batch."""
    if token.batch < 0:
        raise WireFormatError(f"expected a batch from 0, got {token.batch}")
    return PushToken(token.unit, token.lease, token.batch)


def encode_counts(keys: TableKeys, widths: Mapping[str, int] | None = None) -> pb.TableKeyCounts:
    """Tables, their numbers of keys and, where told, values a row."""
    splits = keys.splits.tolist()
    counts = [end - start for start, end in itertools.pairwise(splits)]
    told = None if widths is None else [widths[table] for table in keys.tables]
    return pb.TableKeyCounts(tables=keys.tables, counts=counts, widths=told)


def decode_widths(counts: pb.TableKeyCounts) -> tuple[int, ...]:
    """Values a row of each table; none where the caller does not say. Raises: WireFormatError for another number."""
    widths = tuple(counts.widths)
    if widths and len(widths) != len(counts.tables):
        raise WireFormatError(f"expected one width for each of {len(counts.tables)} tables, got {len(widths)}")
    return widths


def decode_keys(counts: pb.TableKeyCounts, fields: Fields, number: int, what: str) -> TableKeys:
    """Tables with their keys. Raises: WireFormatError if names, counts and keys do not fit each other."""
    names, sizes = tuple(counts.tables), list(counts.counts)
    if len(names) != len(sizes):
        raise WireFormatError(f"expected one count for each table, got {len(sizes)} for {names[:8]}")
    _check_names(names)
    splits = np.zeros(len(names) + 1, np.int64)
    np.cumsum(np.array(sizes, np.int64), out=splits[1:])
    keys = _read_sized(fields, number, U64, int(splits[-1]), what)
    return TableKeys(names, keys, splits)


@functools.lru_cache(256)
def _check_names(names: tuple[str, ...]) -> None:
    # Cached: a training run sends the same names with every call.
    if len(set(names)) != len(names):
        raise WireFormatError(f"expected distinct tables, got {names[:8]}")
    if len(names) > MAX_TABLES or any(len(name) > MAX_NAME_BYTES for name in names):
        raise WireFormatError(f"expected at most {MAX_TABLES} tables with names up to {MAX_NAME_BYTES} bytes")


def encode_mask(tablets: TabletMask) -> bytes:
    """One bit a tablet, least significant first."""
    return np.packbits(tablets, bitorder="little").tobytes()


def decode_mask(view: memoryview | None, tablet_bits: int) -> TabletMask | None:
    """The mask of a message, None where it has none. Raises: WireFormatError."""
    if view is None or len(view) == 0:
        return None
    size = max(1, (1 << tablet_bits) // 8)
    if len(view) != size:
        raise WireFormatError(f"expected a tablet mask of {size} bytes, got {len(view)}")
    mask: TabletMask = np.unpackbits(np.frombuffer(view, np.uint8), count=1 << tablet_bits, bitorder="little").view(
        np.bool_
    )
    return mask


def _encode_report(report: PushReport) -> pb.Report:
    message = pb.Report(applied=report.applied, duplicate=report.duplicate, fenced=report.fenced, stale=report.stale)
    for table, update in report.tables.items():
        message.tables.add(
            table=table,
            applied=update.applied,
            created=update.created,
            not_admitted=update.not_admitted,
            non_finite=update.non_finite,
            over_limit=update.over_limit,
            evicted=update.evicted,
            non_finite_keys=report.non_finite_keys.get(table, ()),
        )
    return message


def _decode_report(message: pb.Report) -> PushReport:
    tables = {
        part.table: TableUpdate(
            part.applied, part.created, part.not_admitted, part.non_finite, part.over_limit, part.evicted
        )
        for part in message.tables
    }
    keys = {part.table: tuple(part.non_finite_keys) for part in message.tables if part.non_finite_keys}
    return PushReport(message.applied, message.duplicate, message.fenced, message.stale, tables, keys)


def _read_sized(fields: Fields, number: int, dtype: np.dtype[S], size: int, what: str) -> npt.NDArray[S]:
    array = read_array(fields, number, dtype, what)
    if len(array) != size:
        raise WireFormatError(f"expected {size} values of {what}, got {len(array)}")
    return array


def _choice(choices: Sequence[C], index: int, what: str) -> C:
    if not 0 <= index < len(choices):
        raise WireFormatError(f"expected {what} below {len(choices)}, got {index}")
    return choices[index]
