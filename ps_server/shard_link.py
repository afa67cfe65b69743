"""ShardLink: a client's channel to one shard, with deadlines, retries and errors that say who did not answer."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import grpc

from . import chunks
from . import parameter_server_pb2 as pb
from .channel_options import client_options
from .errors import AccessDeniedError, StoreUnavailableError, WireFormatError, WrongPeerError
from .refusal import error_of
from .security import ClientSecurity
from .service_name import SERVICE
from .wire import PROTOCOL, cluster_hash
from .wire_calls import parse

_Code = grpc.StatusCode
_TRANSIENT = {_Code.UNAVAILABLE, _Code.DEADLINE_EXCEEDED, _Code.CANCELLED, _Code.ABORTED}
FIRST_BACKOFF_SECONDS, MOST_BACKOFF_SECONDS = 0.05, 2.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client waits.

    call_seconds:    for one call with all its retries; a shard that restarts and replays its log has this long.
    attempt_seconds: for one try of a call; larger messages get `seconds_per_megabyte` more.
    connect_seconds: for the first answer of a shard.
    """

    call_seconds: float = 120.0
    attempt_seconds: float = 20.0
    connect_seconds: float = 20.0
    seconds_per_megabyte: float = 0.25


class Attempt:
    """One call on its way: its bytes stay the same over all tries, so a retry carries the same token."""

    def __init__(self, link: ShardLink, method: str, data: bytes, large_reply: bool, seconds: float) -> None:
        self._link, self._method, self._data, self._large_reply = link, method, data, large_reply
        self._begin = time.monotonic()
        self._until = self._begin + seconds
        self._tries = 0
        self._send()

    def wait(self) -> bytes:
        """The reply. Raises: the shard's refusal; StoreUnavailableError after the last try."""
        while True:
            try:
                return self._receive()
            except grpc.RpcError as error:
                self._retry_or_raise(error)

    def _send(self) -> None:
        self._tries += 1
        left = self._until - time.monotonic()
        patience = self._link.patience
        size = len(self._data) + (chunks.LARGE_BYTES if self._large_reply else 0)
        timeout = max(min(left, patience.attempt_seconds + size / 1e6 * patience.seconds_per_megabyte), 0.001)
        large = self._large_reply or len(self._data) > chunks.LARGE_BYTES
        self._receive = self._link.start(self._method, self._data, timeout, chunked=large)

    def _retry_or_raise(self, error: grpc.RpcError) -> None:
        refusal = self._link.refusal(error)
        if refusal is not None:
            raise refusal from None
        code = error.code()
        elapsed = time.monotonic() - self._begin
        if code not in _TRANSIENT or time.monotonic() >= self._until:
            raise StoreUnavailableError(
                f"{self._link.name} did not answer {self._method} in {elapsed:.1f} s and {self._tries} tries: "
                f"{code.name}: {_first_line(error)}"
            ) from None
        backoff = min(FIRST_BACKOFF_SECONDS * 2 ** min(self._tries - 1, 16), MOST_BACKOFF_SECONDS)
        # Jitter: many clients that lost the same shard must not come back in one wave.
        time.sleep(min(backoff * random.uniform(0.5, 1.0), max(self._until - time.monotonic(), 0.0)))
        self._send()


class ShardLink:
    """A client's channel to one shard.

    Thread safety: any thread; the store's lane keeps data calls in order.
    """

    def __init__(self, address: str, security: ClientSecurity, patience: Patience, index: int | None = None) -> None:
        self.address = address
        self.patience = patience
        self.index = index
        self.tablets = ""
        self._metadata = security.metadata()
        self._channel = security.channel(address, client_options())
        self._calls: dict[str, Callable[..., Any]] = {}
        self._chunked: Any = self._channel.stream_stream(f"/{SERVICE}/Chunked")
        self.header = pb.CallHeader()

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
        return reply

    def call(self, method: str, data: bytes, seconds: float | None = None, *, large_reply: bool = False) -> bytes:
        """The reply to one call. large_reply: it may be too large for one message."""
        return self.begin(method, data, seconds, large_reply=large_reply).wait()

    def begin(self, method: str, data: bytes, seconds: float | None = None, *, large_reply: bool = False) -> Attempt:
        """One call on its way; `wait` gives its reply."""
        return Attempt(self, method, data, large_reply, self.patience.call_seconds if seconds is None else seconds)

    def start(self, method: str, data: bytes, timeout: float, *, chunked: bool) -> Callable[[], bytes]:
        """Send one try; the result waits for its reply and raises grpc.RpcError."""
        if not chunked:
            stub = self._calls.get(method)
            if stub is None:
                call: Any = self._channel.unary_unary(f"/{SERVICE}/{method}")
                stub = self._calls[method] = call.future
            future = stub(data, timeout=timeout, metadata=self._metadata)
            result: Callable[[], bytes] = future.result
            return result
        replies: Iterator[bytes] = self._chunked(chunks.cut(data, method), timeout=timeout, metadata=self._metadata)
        return lambda: chunks.collect(replies, 1 << 40)[1]

    def refusal(self, error: grpc.RpcError) -> Exception | None:
        """The error a shard meant, None if it did not refuse but failed to answer."""
        refusal = error_of(error.trailing_metadata(), self.name)
        if refusal is not None:
            return refusal
        if error.code() in (_Code.UNAUTHENTICATED, _Code.PERMISSION_DENIED):
            return AccessDeniedError(f"{self.name}: {_first_line(error)}")
        if error.code() is _Code.UNIMPLEMENTED:
            return WrongPeerError(f"{self.name}: expected an Embershard shard, got a server without its methods")
        return None

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


def _first_line(error: grpc.RpcError) -> str:
    text = error.details() or "no details"
    return text.splitlines()[0][:300]
