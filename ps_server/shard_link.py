"""ShardLink: a client's channel to one shard, with deadlines, retries and errors that say who did not answer."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from importlib.metadata import version
from typing import Any

import grpc

from . import chunks
from . import parameter_server_pb2 as pb
from .call_watch import CallWatch
from .channel_options import client_options
from .cluster_spec import is_local
from .doorbell import Ending
from .errors import (
    AccessDeniedError,
    SharedMemoryGoneError,
    StoreUnavailableError,
    WireFormatError,
    WrongPeerError,
)
from .message_fields import Packed, join_message, size_of
from .refusal import decode_refusal, error_of
from .security import ClientSecurity, tls_failure
from .service_name import SERVICE
from .shared_memory import IS_POSSIBLE, NOT_CUT, ClientBlock
from .wire import PIECES, PROTOCOL, cluster_hash
from .wire_calls import parse

_Code = grpc.StatusCode
_TRANSIENT = {_Code.UNAVAILABLE, _Code.DEADLINE_EXCEEDED, _Code.CANCELLED, _Code.ABORTED}
FIRST_BACKOFF_SECONDS, MOST_BACKOFF_SECONDS = 0.05, 2.0
CLOSE_SECONDS = 0.5
SHARED_BYTES = 64 << 10
"""Exchanges of fewer bytes are as fast in one message."""
GRACE_SECONDS = 0.1
WITH_DOORBELL = 2
MIN_SECONDS, MAX_SECONDS = 0.001, 1e9


def _no_reason() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client waits.

    call_seconds:    for one call with all its retries; a shard that restarts and replays its log has this long.
    attempt_seconds: for one try of a call; larger messages get `seconds_per_megabyte` more.
    connect_seconds: for the first answer of a shard.
    why_stop:        asked between two tries, in the calling thread; a reason ends them, None lets them go on.
    Raises: ValueError naming the field, for times that are none.
    """

    call_seconds: float = 120.0
    attempt_seconds: float = 20.0
    connect_seconds: float = 20.0
    seconds_per_megabyte: float = 0.25
    why_stop: Callable[[], str | None] = field(default=_no_reason, compare=False, repr=False)

    def __post_init__(self) -> None:
        for entry in fields(self):
            if entry.name == "why_stop":
                continue
            value, least = getattr(self, entry.name), 0 if entry.name == "seconds_per_megabyte" else MIN_SECONDS
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= MAX_SECONDS:
                raise ValueError(
                    f"expected seconds from {least} to {MAX_SECONDS:.0e}, got {value!r} (Patience.{entry.name})"
                )

    def of_attempt(self, size: int) -> float:
        """Seconds for one try of a call that carries, both ways, so many bytes."""
        return self.attempt_seconds + size / 1e6 * self.seconds_per_megabyte


@dataclass(frozen=True, slots=True)
class ExchangeBytes:
    """A shard's answer to an exchange. block: where its rows lie, valid until the link's next exchange; None: in it."""

    data: bytes
    block: ClientBlock | None = None


class _StuckError(grpc.RpcError):
    """A call that gRPC did not end at its deadline."""

    def code(self) -> grpc.StatusCode:
        return _Code.DEADLINE_EXCEEDED

    def details(self) -> str:
        return "the peer takes no bytes"

    def trailing_metadata(self) -> tuple[()]:
        return ()


class ShardLink:
    """A client's channel to one shard.

    Thread safety: any thread; the store's lane keeps data calls in order. `exchange` is the lane's alone.
    """

    def __init__(
        self,
        address: str,
        security: ClientSecurity,
        patience: Patience,
        index: int | None = None,
        *,
        shares_memory: bool = False,
        watch: CallWatch | None = None,
    ) -> None:
        """shares_memory: let the arrays of large exchanges lie in memory that a shard on this machine maps too.
        watch: what ends calls that the shard takes no bytes of; without it they may outlast their time."""
        self.address = address
        self.patience = patience
        self.index = index
        self.tablets = ""
        self._metadata = security.metadata()
        self._channel = security.channel(address, client_options())
        self._watch = watch
        self._calls: dict[str, Any] = {}
        self._chunked: Any = self._channel.stream_stream(f"/{SERVICE}/Chunked")
        self.header = pb.CallHeader()
        self._wants_block = shares_memory and IS_POSSIBLE and is_local(address)
        self._shares_memory = False
        self._block: ClientBlock | None = None
        self._given_up: list[int] = []

    @property
    def name(self) -> str:
        """Shard, peer, tablets and epoch, for error messages."""
        who = "server" if self.index is None else f"shard {self.index}"
        where = f" at {self.address}"
        owns = (
            f" ({self.tablets}, map epoch {self.header.epoch}, generation {self.header.generation})"
            if self.tablets
            else ""
        )
        return who + where + owns

    def hello(self, cluster: str = "", seconds: float | None = None) -> pb.HelloReply:
        """Who answers at the address. Raises: WrongPeerError for another cluster or protocol; StoreUnavailableError."""
        request = pb.HelloRequest(protocol=PROTOCOL, cluster=cluster, client_version=version("embershard"))
        data = self.call(
            "Hello", request.SerializeToString(), self.patience.connect_seconds if seconds is None else seconds
        )
        try:
            reply = parse(data, pb.HelloReply())
        except WireFormatError as error:
            raise WrongPeerError(f"{self.name}: {error}") from None
        if reply.protocol != PROTOCOL:
            raise WrongPeerError(f"{self.name}: expected protocol {PROTOCOL}, got {reply.protocol}")
        if self.index is not None and reply.shard != self.index:
            raise WrongPeerError(
                f"{self.name}: expected shard {self.index} of {reply.cluster!r}, got shard {reply.shard}"
            )
        self.header = pb.CallHeader(
            cluster=cluster_hash(reply.cluster),
            shard=reply.shard,
            generation=reply.generation,
            epoch=reply.map.epoch,
            incarnation=reply.incarnation,
        )
        # A proxy may repeat a call when the block holds the next one already.
        self._shares_memory = self._wants_block and reply.address == self.address
        return reply

    def exchange(
        self, small: pb.ExchangeRequest, arrays: list[tuple[int, Packed]], reply_bytes: int, *, in_memory: bool
    ) -> ExchangeBytes:
        """The answer to an exchange. Raises: as `call`.

        reply_bytes: of its rows.   in_memory: it may use the shared memory; no other exchange of the link does until
        its rows are taken."""
        begin, tries = time.monotonic(), 0
        size = reply_bytes + sum(size_of(array) for _, array in arrays)
        if self._shares_memory and in_memory and size >= SHARED_BYTES:
            answer = self._exchange_in_memory(small, arrays, reply_bytes)
            if answer is not None:
                return answer
            tries = int(small.HasField("shared"))
            small.ClearField("shared")
        data = join_message(small, arrays)
        return ExchangeBytes(self.call("Exchange", data, reply_bytes=reply_bytes, begin=begin, tries=tries))

    def _exchange_in_memory(
        self, small: pb.ExchangeRequest, arrays: list[tuple[int, Packed]], reply_bytes: int
    ) -> ExchangeBytes | None:
        """The answer to the first try; None where it has to be made again with the arrays in the message."""
        block = self._ready_block()
        if block is None:
            return None
        placed = block.place(arrays, reply_bytes, PIECES if block.bell.is_connected else NOT_CUT)
        if placed is None:
            return None
        small.shared.CopyFrom(placed)
        data = small.SerializeToString()
        size = sum(size_of(array) for _, array in arrays) + reply_bytes
        timeout = min(self.patience.of_attempt(size), self.patience.call_seconds)
        try:
            if block.can_call(len(data)):
                answer = self._ring(block, data, timeout)
            else:
                block.complete()
                answer = self._try("Exchange", data, timeout)
        except grpc.RpcError as error:
            answer = self._refusal(error)
        except BaseException:
            # The shard may still be at it.
            self._give_up_block()
            raise
        if isinstance(answer, bytes):
            return ExchangeBytes(answer, block)
        if answer is not None and not isinstance(answer, SharedMemoryGoneError):
            raise answer from None
        self._give_up_block()
        return None

    def _ring(self, block: ClientBlock, data: bytes, timeout: float) -> bytes | Exception | None:
        """The reply to an exchange called by doorbell, or the shard's refusal; None where it did not answer."""
        try:
            ending, answer = block.call(data, timeout)
        except OSError:
            return None
        if ending is Ending.REPLY:
            return answer
        return decode_refusal(answer, self.name) if ending is Ending.REFUSAL else None

    def _ready_block(self) -> ClientBlock | None:
        """A block that the shard has mapped, None where it cannot."""
        if self._block is not None:
            return self._block
        try:
            block = ClientBlock()
        except OSError:
            # A sandbox without memfd, or no descriptor or address space left: the socket does it too.
            self._shares_memory = False
            return None
        try:
            while self._given_up:
                request = pb.ReleaseMemoryRequest(header=self.header, block=self._given_up[-1])
                self._try("ReleaseMemory", request.SerializeToString(), self.patience.attempt_seconds)
                self._given_up.pop()
            reply = self._try(
                "ShareMemory", block.request(self.header).SerializeToString(), self.patience.attempt_seconds
            )
        except grpc.RpcError as error:
            # What is wrong with the shard, the exchange itself will tell; it goes without shared memory.
            self._shares_memory = error.code() in _TRANSIENT
            block.close()
            return None
        except BaseException:
            # Nobody closes its descriptors else, and the shard would wait at its bell for ever.
            block.close()
            raise
        shared = parse(reply, pb.Count()).count
        if shared:
            self._block = block
            if shared == WITH_DOORBELL:
                block.bell.connect()
            else:
                block.bell.close()
            return block
        block.close()
        self._shares_memory = self._wants_block = False
        return None

    def _give_up_block(self) -> None:
        if self._block is not None:
            self._given_up.append(self._block.number)
            self._block.close()
            self._block = None

    def call(
        self,
        method: str,
        data: bytes,
        seconds: float | None = None,
        *,
        reply_bytes: int = 0,
        begin: float | None = None,
        tries: int = 0,
    ) -> bytes:
        """The reply to one call, tried until `seconds` are over; its bytes, and so its token, stay the same.

        reply_bytes: what is expected of the reply's arrays.   begin, tries: since when, and how often, it was tried.
        Raises: the shard's refusal; StoreUnavailableError after the last try."""
        begin = time.monotonic() if begin is None else begin
        until = begin + (self.patience.call_seconds if seconds is None else seconds)
        chunked = max(len(data), reply_bytes + chunks.CHUNK_BYTES) > chunks.LARGE_BYTES
        most = self.patience.of_attempt(len(data) + reply_bytes)
        told = None
        while True:
            tries += 1
            timeout = max(min(until - time.monotonic(), most), 0.001)
            try:
                if chunked:
                    return self._try_chunked(method, data, timeout)
                return self._try(method, data, timeout) if tries == 1 else self._try_again(method, data, timeout)
            except grpc.RpcError as error:
                refusal = self._refusal(error)
                if refusal is not None:
                    raise refusal from None
                # A last try that had no time says less than the one before it.
                is_cut_short = error.code() is _Code.DEADLINE_EXCEEDED and timeout < most
                told = error if told is None or not is_cut_short else told
                now, reason = time.monotonic(), self.patience.why_stop()
                if error.code() not in _TRANSIENT or now >= until or reason is not None:
                    raise StoreUnavailableError(
                        f"{self.name} did not answer {method} in {now - begin:.1f} s and {tries} tries: "
                        f"{told.code().name}: {_first_line(told)}{self._hint(told)}"
                        f"{'' if reason is None else f' ({reason})'}"
                    ) from None
            backoff = min(FIRST_BACKOFF_SECONDS * 2 ** min(tries - 1, 16), MOST_BACKOFF_SECONDS)
            # Jitter: many clients that lost the same shard must not come back in one wave.
            time.sleep(min(backoff * random.uniform(0.5, 1.0), max(until - time.monotonic(), 0.0)))

    def _try(self, method: str, data: bytes, timeout: float) -> bytes:
        # gRPC ends a call that waits in its thread only when the peer took the message, which a stopped one never does.
        watched = None if self._watch is None else self._watch.begin(self.address, timeout + GRACE_SECONDS)
        try:
            reply: bytes = self._stub(method)(data, timeout=timeout, metadata=self._metadata)
        finally:
            if self._watch is not None and watched is not None:
                self._watch.end(watched)
        return reply

    def _try_again(self, method: str, data: bytes, timeout: float) -> bytes:
        # Ended in time without the watch, and without shutting the connection. Only here, as a call that does not wait
        # in its thread takes 3 to 5 % longer.
        call = self._stub(method).future(data, timeout=timeout, metadata=self._metadata)
        try:
            reply: bytes = call.result(timeout + GRACE_SECONDS)
        except grpc.FutureTimeoutError:
            call.cancel()
            raise _StuckError from None
        except BaseException:
            call.cancel()
            raise
        return reply

    def _stub(self, method: str) -> Any:
        stub = self._calls.get(method)
        if stub is None:
            stub = self._calls[method] = self._channel.unary_unary(f"/{SERVICE}/{method}")
        return stub

    def _try_chunked(self, method: str, data: bytes, timeout: float) -> bytes:
        replies = self._chunked(chunks.cut(data, method), timeout=timeout, metadata=self._metadata)
        return chunks.collect(replies, 1 << 40)[1]

    def _refusal(self, error: grpc.RpcError) -> Exception | None:
        """The error a shard meant, None if it did not refuse but failed to answer."""
        refusal = error_of(error.trailing_metadata(), self.name)
        if refusal is not None:
            return refusal
        if error.code() in (_Code.UNAUTHENTICATED, _Code.PERMISSION_DENIED):
            return AccessDeniedError(f"{self.name}: {_first_line(error)}")
        if error.code() is _Code.UNAVAILABLE and (failure := tls_failure(error.details() or "")) is not None:
            return AccessDeniedError(f"{self.name}: {failure}")
        if error.code() is _Code.UNIMPLEMENTED:
            return WrongPeerError(f"{self.name}: expected an Embershard shard, got a server without its methods")
        return None

    @staticmethod
    def _hint(error: grpc.RpcError) -> str:
        if "Socket closed" not in (error.details() or ""):
            return ""
        return " (so does a server that expects TLS, or a client certificate that it knows)"

    def close(self) -> None:
        """Close the channel, and let the shard unmap the shared memory."""
        self._give_up_block()
        for number in self._given_up:
            request = pb.ReleaseMemoryRequest(header=self.header, block=number)
            with contextlib.suppress(grpc.RpcError):
                self._try("ReleaseMemory", request.SerializeToString(), CLOSE_SECONDS)
        self._channel.close()


def _first_line(error: grpc.RpcError) -> str:
    text = error.details() or "no details"
    return text.splitlines()[0][:300]
