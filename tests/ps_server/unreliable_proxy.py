"""A proxy before each shard that drops, delays, duplicates and re-sends calls and replies, as seeded."""

from __future__ import annotations

import collections
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np

from embershard.ps_server import parameter_server_pb2 as pb
from embershard.ps_server.channel_options import client_options, server_options
from embershard.ps_server.service_name import SERVICE

TROUBLES = {
    "drop_call": 0.04,  # the shard never sees it, the client is told at once
    "lose_call": 0.01,  # the shard never sees it, the client hears nothing
    "drop_reply": 0.06,  # the shard carries it out, the client is told it failed
    "lose_reply": 0.01,  # the shard carries it out, the client hears nothing
    "delay": 0.10,
    "late": 0.06,  # the client is told it failed, the shard gets it some time later
    "duplicate": 0.10,  # the shard gets it twice at once
    "resend": 0.15,  # the shard gets an old call again
}
LONGEST_DELAY_SECONDS = 0.03
REMEMBERED_CALLS = 200


class UnreliableProxy(grpc.GenericRpcHandler):
    """The proxy before one shard. Greetings pass untouched, but for the addresses, which become those of proxies."""

    def __init__(self, upstream, addresses, index, seed):
        self.did = collections.Counter()
        self._addresses, self._address = addresses, addresses[index]
        self._rng = np.random.default_rng((seed, index))
        self._lock = threading.Lock()
        self._old = collections.deque(maxlen=REMEMBERED_CALLS)
        self._moment = threading.Event()
        self._channel = grpc.insecure_channel(upstream, client_options())
        self._background = ThreadPoolExecutor(8)
        self._pool = ThreadPoolExecutor(32)
        self._server = grpc.server(self._pool, options=server_options())
        self._server.add_generic_rpc_handlers((self,))

    def __enter__(self):
        self._server.add_insecure_port(self._address)
        self._server.start()
        return self

    def __exit__(self, *error):
        self._moment.set()
        self._server.stop(0).wait()
        self._pool.shutdown()
        self._background.shutdown()
        self._channel.close()

    def service(self, details):
        """Every method, as bytes."""
        method = details.method
        assert not method.endswith("/Chunked"), "the batches of these tests fit one message"
        return grpc.unary_unary_rpc_method_handler(lambda data, context: self._call(method, data, context))

    def _call(self, method, data, context):
        if method == f"/{SERVICE}/Hello":
            reply = pb.HelloReply.FromString(self._forward(method, data, context))
            reply.map.addresses[:] = self._addresses
            return reply.SerializeToString()
        trouble, delay, old = self._choose(method, data)
        if trouble == "drop_call":
            context.abort(grpc.StatusCode.UNAVAILABLE, "the proxy dropped the call")
        if trouble == "lose_call":
            self._hang(context)
        if trouble == "delay":
            self._moment.wait(delay)
        if trouble == "late":
            self._background.submit(self._send_quietly, method, data, delay)
            context.abort(grpc.StatusCode.UNAVAILABLE, "the proxy keeps the call for later")
        if trouble == "duplicate":
            self._background.submit(self._send_quietly, method, data, 0.0)
        if trouble == "resend":
            self._background.submit(self._send_quietly, *old, delay)
        reply = self._forward(method, data, context)
        if trouble == "drop_reply":
            context.abort(grpc.StatusCode.UNAVAILABLE, "the proxy dropped the reply")
        if trouble == "lose_reply":
            self._hang(context)
        return reply

    def _choose(self, method, data):
        with self._lock:
            trouble = str(self._rng.choice([*TROUBLES, "none"], p=[*TROUBLES.values(), 1 - sum(TROUBLES.values())]))
            self._old.append((method, data))
            old = self._old[int(self._rng.integers(0, len(self._old)))]
            self.did[trouble] += 1
            return trouble, float(self._rng.uniform(0, LONGEST_DELAY_SECONDS)), old

    def _forward(self, method, data, context):
        try:
            return self._channel.unary_unary(method)(data, timeout=max(context.time_remaining(), 0.001))
        except grpc.RpcError as error:
            context.set_trailing_metadata(error.trailing_metadata() or ())
            context.abort(error.code(), error.details() or "")

    def _send_quietly(self, method, data, delay):
        self._moment.wait(delay)
        with contextlib.suppress(grpc.RpcError):
            self._channel.unary_unary(method)(data, timeout=10)

    @staticmethod
    def _hang(context):
        gone = threading.Event()
        if context.add_callback(gone.set):
            gone.wait()
        context.abort(grpc.StatusCode.UNAVAILABLE, "the client is gone")


@contextlib.contextmanager
def proxied(spec, folder, seed):
    """Proxies before the shards of a cluster: their addresses, and what each did."""
    addresses = [f"unix:{folder}/proxy-{index}.sock" for index in range(len(spec.shards))]
    with contextlib.ExitStack() as stack:
        proxies = [
            stack.enter_context(UnreliableProxy(upstream, addresses, index, seed))
            for index, upstream in enumerate(spec.shards)
        ]
        yield addresses, proxies
