"""The gRPC methods of a shard: bytes in, the shard's answer out. What can be decided without I/O is in `Shard`."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import grpc
import numpy as np
import numpy.typing as npt

from ..embedding.store import Exchange, Push
from ..embedding.table_group import TableKeys
from . import chunks
from . import parameter_server_pb2 as pb
from .doorbell import CallerGoneError, Doorbells, Ending, Piece, ShardBell
from .durable_shard import DurableShard
from .errors import (
    HalfChangedError,
    LostRowsError,
    PushLogFailedError,
    RequestTooLargeError,
    WireFormatError,
    WrongPeerError,
)
from .gradient_norms import GradientNorms
from .mutation import AdoptMap, EnsureTables
from .refusal import REFUSAL_KEY, refusal_of
from .refused_rows import describe_keys, describe_token
from .service_name import SERVICE
from .shard_metrics import ShardMetrics
from .shared_memory import SharedBlocks
from .snapshot_wire import decode_restore, encode_snapshot
from .tablet_map import TabletMap
from .wire import (
    PROTOCOL,
    ExchangeReplyRoom,
    cluster_hash,
    decode_exchange,
    decode_mask,
    decode_token,
    encode_exchange_reply,
)
from .wire_calls import (
    decode_assign,
    decode_erase,
    decode_tables,
    encode_stats,
    encode_tables,
    parse,
)
from .wire_values import storage_dtype

_log = logging.getLogger(__name__)
Method = Callable[[bytes], bytes]
_NO_CHANGES = (1 << 32) - 1
_LARGER = {"Restore": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")}
"""A tablet that could be saved can be restored, whatever the limit of a batch is: as much as the machine has memory."""
KEPT_BUFFERS, KEPT_WIDTHS = 4, 256


@dataclass(frozen=True, slots=True)
class ShardIdentity:
    """Who this shard is. incarnation: 64 bits that stand for its rows; new whenever they start empty."""

    cluster: str
    index: int
    incarnation: int
    durability: str
    version: str


class ParameterServerService:
    """Methods of one shard.

    Thread safety: any number of calls at once; reads run beside each other and beside the one mutation that runs.
    """

    def __init__(
        self,
        shard: DurableShard,
        identity: ShardIdentity,
        tablet_map: TabletMap,
        metrics: ShardMetrics,
        max_request_bytes: int,
        most_bells: int = 0,
    ) -> None:
        """most_bells: clients on this machine whose exchanges come by doorbell, past the sockets."""
        self._durable = shard
        self._shard = shard.shard
        self._identity = identity
        self._cluster = cluster_hash(identity.cluster)
        self.tablet_map = tablet_map
        self._metrics = metrics
        self._max_bytes = max_request_bytes
        self._norms = GradientNorms()
        self._widths: dict[tuple[str, ...], npt.NDArray[np.int64]] = {}
        self._free_buffers: deque[npt.NDArray[np.float32]] = deque(maxlen=KEPT_BUFFERS)
        self.shared_blocks = SharedBlocks()
        self.doorbells = Doorbells(self._answer_bell, most_bells)
        self.address = ""
        """Where the shard listens, once it does."""
        self.stopping = threading.Event()
        self.failure: PushLogFailedError | None = None
        """Why the shard has to be started again from its log; `stopping` is set with it."""
        self._methods: dict[str, Method] = {
            "Hello": self._hello,
            "EnsureTables": self._ensure_tables,
            "DropTable": self._drop_table,
            "Exchange": self._exchange,
            "Assign": self._assign,
            "Erase": self._erase,
            "Evict": self._evict,
            "Stats": self._stats,
            "Snapshot": self._snapshot,
            "Restore": self._restore,
            "Cut": self._cut,
            "CompleteUnit": self._complete_unit,
            "BeginCheckpoint": self._begin_checkpoint,
            "CommitCheckpoint": self._commit_checkpoint,
            "Status": self._status,
            "ShareMemory": self._share_memory,
            "ReleaseMemory": self._release_memory,
        }

    def handler(self) -> grpc.GenericRpcHandler:
        """All methods, over raw bytes: the messages are taken apart without copying their arrays."""
        handlers: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(self._unary(name, method))
            for name, method in self._methods.items()
        }
        handlers["Chunked"] = grpc.stream_stream_rpc_method_handler(self._chunked)
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def adopt(self, tablet_map: TabletMap, generation: int) -> None:
        """Own what the map says this shard owns, in this generation; tablets that come were imported before."""
        self._durable.apply(AdoptMap(tablet_map.tablets_of(self._identity.index), tablet_map.epoch, generation))
        self.tablet_map = tablet_map

    # --- calls --------------------------------------------------------------------------------------------------------

    def _hello(self, data: bytes) -> bytes:
        request = parse(data, pb.HelloRequest())
        if request.protocol != PROTOCOL:
            older = "client" if request.protocol < PROTOCOL else "server"
            raise WrongPeerError(
                f"expected protocol {PROTOCOL} (Embershard {self._identity.version}), got {request.protocol} "
                f"(Embershard {request.client_version or 'unknown'}): upgrade the {older}"
            )
        if request.cluster and request.cluster != self._identity.cluster:
            raise WrongPeerError(f"expected cluster {request.cluster!r}, got cluster {self._identity.cluster!r}")
        return pb.HelloReply(
            protocol=PROTOCOL,
            cluster=self._identity.cluster,
            shard=self._identity.index,
            generation=self._shard.generation,
            incarnation=self._identity.incarnation,
            server_version=self._identity.version,
            map=self.tablet_map.to_message(),
            max_message_bytes=chunks.LARGE_BYTES,
            max_request_bytes=self._max_bytes,
            durability=self._identity.durability,
            address=self.address,
        ).SerializeToString()

    def _exchange(self, data: bytes, bell: ShardBell | None = None) -> bytes:
        call = decode_exchange(
            data,
            self._shard.tablet_bits,
            self._max_bytes,
            self.shared_blocks.fields,
            None if bell is None else bell.wait,
        )
        self._check(call.header)
        report = None
        if call.push is not None:
            push = call.push
            self._check_sizes(push, call.push_widths)
            if bell is not None:
                bell.wait(Piece.KEYS)
                if bell.pending:
                    prepared = self._shard.prepare_push(push.keys, push.occurrences, call.tablets)
                    push = replace(push, prepared=prepared)
                bell.wait(Piece.ALL)
            report = self._durable.push(push, call.tablets)
            if report.applied:
                self._norms.add(call.norms)
            self._metrics.count_push(report, call.push)
            for table, keys in report.non_finite_keys.items():
                count = report.tables[table].non_finite
                _log.warning(
                    "shard %d: table %r, %s: %d rows refused, their gradients are not finite: keys %s",
                    self._identity.index,
                    table,
                    describe_token(call.push.token),
                    count,
                    describe_keys(keys, count),
                )
        norms = self._norms.summaries(call.norms)
        wants_checkpoint = self._durable.wants_checkpoint
        if call.pull is None:
            return encode_exchange_reply(
                Exchange(report, None), call.rows_format, norms, wants_checkpoint=wants_checkpoint
            )
        if bell is not None:
            bell.wait(Piece.ALL)
        size = self._value_count(call.pull.keys, call.pull_widths)
        if size * 4 > self._max_bytes:
            raise RequestTooLargeError(
                f"expected rows of at most {self._max_bytes} bytes, got {size * 4}; pull fewer keys"
            )
        if call.rows_format.compression != "none":
            with self._row_buffer(size) as buffer:
                answer = Exchange(report, self._shard.read(call.pull, buffer))
                self._metrics.count_pull(len(call.pull.keys.keys))
                return encode_exchange_reply(answer, call.rows_format, norms, wants_checkpoint=wants_checkpoint)
        dtype, shared = call.rows_format.dtype, None
        if call.shared is not None:
            shared = self.shared_blocks.reply_room(call.shared, size * storage_dtype(dtype).itemsize)
        tablets = 1 << self._shard.tablet_bits
        reply = ExchangeReplyRoom(report, dtype, size, tablets, norms, wants_checkpoint=wants_checkpoint, shared=shared)
        data = reply.finish(self._shard.read(call.pull, reply.values))
        self._metrics.count_pull(len(call.pull.keys.keys))
        return data

    def _ensure_tables(self, data: bytes) -> bytes:
        request = parse(data, pb.EnsureTablesRequest())
        self._check(request.header)
        tables = decode_tables(request.tables)
        if tables:
            self._durable.apply(EnsureTables(tables))
        known = self._shard.tables()
        self._widths = {}
        widths = [self._shard.state_width(table.name) for table in known]
        return pb.TablesReply(tables=encode_tables(known), state_widths=widths).SerializeToString()

    def _drop_table(self, data: bytes) -> bytes:
        request = parse(data, pb.DropTableRequest())
        self._check(request.header)
        self._durable.drop_table(decode_token(request.token), request.table)
        self._widths = {}
        return _count(1)

    def _assign(self, data: bytes) -> bytes:
        call = decode_assign(data, self._shard.tablet_bits)
        self._check(call.header)
        self._value_count(call.keys, call.widths)
        return _count(
            self._durable.assign(
                call.token,
                call.keys,
                call.weights,
                call.state,
                if_absent=call.if_absent,
                now=call.now,
                tablets=call.tablets,
            )
        )

    def _erase(self, data: bytes) -> bytes:
        header, token, keys, tablets = decode_erase(data, self._shard.tablet_bits)
        self._check(header)
        return _count(self._durable.erase(token, keys, tablets))

    def _evict(self, data: bytes) -> bytes:
        request = parse(data, pb.EvictRequest())
        self._check(request.header)
        max_rows = request.max_rows if request.HasField("max_rows") else None
        tablets = decode_mask(memoryview(request.tablets), self._shard.tablet_bits)
        evicted = self._durable.evict(decode_token(request.token), request.now, max_rows, tablets)
        return pb.Counts(counts=evicted).SerializeToString()

    def _stats(self, data: bytes) -> bytes:
        self._check(parse(data, pb.StatsRequest()).header)
        return encode_stats(self._shard.stats())

    def _snapshot(self, data: bytes) -> bytes:
        request = parse(data, pb.SnapshotRequest())
        self._check(request.header)
        since = request.since_version if request.HasField("since_version") else None
        return encode_snapshot(self._durable.snapshot(request.tablet, since))

    def _restore(self, data: bytes) -> bytes:
        header, token, snapshot = decode_restore(data)
        self._check(header)
        self._durable.restore(token, snapshot)
        return _count(1)

    def _cut(self, data: bytes) -> bytes:
        request = parse(data, pb.CutRequest())
        self._check(request.header)
        version = self._durable.cut(decode_token(request.token), request.tablet)
        if version is None:  # a repeated call: the version it got the first time is still the tablet's
            version = self._durable.snapshot(request.tablet, since_version=_NO_CHANGES).version
        return _count(version)

    def _complete_unit(self, data: bytes) -> bytes:
        request = parse(data, pb.CompleteUnitRequest())
        self._check(request.header)
        self._durable.complete_unit(request.unit)
        return _count(1)

    def _share_memory(self, data: bytes) -> bytes:
        request = parse(data, pb.ShareMemoryRequest())
        self._check(request.header)
        memory = self.shared_blocks.add(request)
        if memory is None:
            return _count(0)
        block = request.block
        return _count(1 + self.doorbells.add(request, memory, lambda: self.shared_blocks.remove(block)))

    def _release_memory(self, data: bytes) -> bytes:
        request = parse(data, pb.ReleaseMemoryRequest())
        self._check(request.header)
        return _count(int(self.shared_blocks.remove(request.block)))

    def _begin_checkpoint(self, data: bytes) -> bytes:
        request = parse(data, pb.BeginCheckpointRequest())
        self._check(request.header)
        return _count(self._durable.begin_checkpoint(request.number))

    def _commit_checkpoint(self, data: bytes) -> bytes:
        request = parse(data, pb.CommitCheckpointRequest())
        self._check(request.header)
        tablets = 1 << self._shard.tablet_bits
        if len(request.positions) != 8 * tablets:
            raise WireFormatError(
                f"expected the log positions of {tablets} tablets, 8 bytes each, got {len(request.positions)} bytes"
            )
        positions = np.frombuffer(request.positions, "<i8")
        return _count(self._durable.commit_checkpoint(request.checkpoint, positions, request.number))

    def _status(self, data: bytes) -> bytes:
        parse(data, pb.StatusRequest())
        reply = self._metrics.status()
        reply.cluster, reply.shard = self._identity.cluster, self._identity.index
        reply.generation, reply.epoch = self._shard.generation, self._shard.epoch
        reply.durability = self._identity.durability
        for table, norm in self._norms.all().items():
            reply.norms.add(table=table, mean=norm.mean, deviation=norm.deviation, pushes=norm.pushes)
        return reply.SerializeToString()

    # --- checks -------------------------------------------------------------------------------------------------------

    def _check(self, header: pb.CallHeader) -> None:
        """Raises what makes the caller's view of this shard another one than its own."""
        if header.cluster != self._cluster or header.shard != self._identity.index:
            raise WrongPeerError(
                f"expected a call to shard {self._identity.index} of cluster {self._identity.cluster!r}, "
                f"got one to shard {header.shard} of {'this' if header.cluster == self._cluster else 'another'} cluster"
            )
        if header.incarnation and header.incarnation != self._identity.incarnation:
            raise LostRowsError(
                f"expected the rows {header.incarnation:016x}, got {self._identity.incarnation:016x}: shard "
                f"{self._identity.index} was restarted without its rows (durability {self._identity.durability}); "
                "restore a checkpoint into the cluster and connect again"
            )
        self._shard.check_generation(header.generation)

    def _check_sizes(self, push: Push, told: tuple[int, ...]) -> None:
        expected = self._value_count(push.keys, told)
        if len(push.gradients) != expected:
            raise WireFormatError(f"expected {expected} gradient values for the push's keys, got {len(push.gradients)}")

    def _value_count(self, keys: TableKeys, told: tuple[int, ...]) -> int:
        """Values of the keys' rows. told: widths by the caller. Raises: WireFormatError where they are others."""
        widths = self._widths.get(keys.tables)
        if widths is None:
            known = {table.name: table.dim for table in self._shard.tables()}
            # A table that is unknown counts as empty here; the tables refuse it by name.
            widths = np.array([known.get(table, 0) for table in keys.tables], np.int64)
            if len(self._widths) < KEPT_WIDTHS and all(table in known for table in keys.tables):
                self._widths[keys.tables] = widths
        if told and told != (own := tuple(widths.tolist())):
            for table, width, asked in zip(keys.tables, own, told, strict=True):
                if width not in (0, asked):
                    raise WireFormatError(
                        f"expected rows of {width} values, got {asked}: table {table!r} was made anew"
                    )
        return int((keys.splits[1:] - keys.splits[:-1]) @ widths)

    @contextmanager
    def _row_buffer(self, size: int) -> Iterator[npt.NDArray[np.float32]]:
        """Room for so many values. The buffer used last is taken first: it is still in the processor's cache."""
        try:
            buffer = self._free_buffers.pop()
        except IndexError:
            buffer = np.empty(0, np.float32)
        if len(buffer) < size:
            buffer = np.empty(size, np.float32)
        try:
            yield buffer[:size]
        finally:
            self._free_buffers.append(buffer)

    # --- gRPC ---------------------------------------------------------------------------------------------------------

    def _unary(self, name: str, method: Method) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        def call(data: bytes, context: grpc.ServicerContext) -> bytes:
            try:
                reply = method(data)
                if len(reply) > chunks.LARGE_BYTES:
                    raise RequestTooLargeError(
                        f"expected a reply of {name} up to {chunks.LARGE_BYTES} bytes, got {len(reply)}: call Chunked"
                    )
            except Exception as error:
                self._refuse(name, error, context)
            self._metrics.count_bytes(len(data), len(reply))
            return reply

        return call

    def _chunked(self, stream: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        name = "Chunked"
        try:
            name, data = chunks.collect(stream, self._max_bytes, _LARGER)
            method = self._methods.get(name)
            if method is None:
                raise WireFormatError(f"expected a method of {SERVICE}, got {name[:64]!r}")
            reply = method(data)
        except Exception as error:
            self._refuse(name, error, context)
        self._metrics.count_bytes(len(data), len(reply))
        yield from chunks.cut(reply)

    def _answer_bell(self, data: bytes, bell: ShardBell) -> tuple[Ending, bytes]:
        try:
            reply = self._exchange(data, bell)
        except CallerGoneError:
            return Ending.FAILURE, b""
        except Exception as error:
            _, _, refusal = self._judge("Exchange", error)
            return (Ending.FAILURE, b"") if refusal is None else (Ending.REFUSAL, refusal.SerializeToString())
        self._metrics.count_bytes(len(data), len(reply))
        return Ending.REPLY, reply

    def _refuse(self, name: str, error: Exception, context: grpc.ServicerContext) -> NoReturn:
        code, text, refusal = self._judge(name, error)
        if refusal is not None:
            context.set_trailing_metadata(((REFUSAL_KEY, refusal.SerializeToString()),))
        context.abort(code, text[:1000])

    def _judge(self, name: str, error: Exception) -> tuple[grpc.StatusCode, str, pb.Refusal | None]:
        """What the caller is told of the error; None in place of a refusal where the shard is at fault."""
        refused = refusal_of(error)
        if isinstance(error, HalfChangedError):  # of a read while the shard stops
            error = PushLogFailedError(str(error))
        if isinstance(error, PushLogFailedError):
            # Unavailable: clients ask again, under the same token, until the shard is back.
            self.failure = self.failure or error
            self.stopping.set()
            return grpc.StatusCode.UNAVAILABLE, f"shard {self._identity.index} stops: {error}", None
        if refused is None:
            _log.error("shard %d: %s failed", self._identity.index, name, exc_info=error)
            return grpc.StatusCode.INTERNAL, f"{name} failed on the shard: {type(error).__name__}: {error}", None
        code, refusal = refused
        self._metrics.count_refusal(refusal.kind)
        return code, refusal.message, refusal


def _count(count: int) -> bytes:
    return pb.Count(count=count).SerializeToString()
