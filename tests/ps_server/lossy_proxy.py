"""A proxy before a shard that loses, repeats, delays and re-sends calls and replies."""

from __future__ import annotations

import contextlib
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc

from embershard.ps_server.channel_options import client_options, server_options


class LossyProxy(grpc.GenericRpcHandler):
    """Forwards unary calls; what happens to each is drawn from `seed`.

    lose_call: not forwarded.   lose_reply: forwarded, answered with an error.   twice: forwarded twice.
    later: kept, and sent again after `later` further calls, whoever has answered it meanwhile.
    """

    def __init__(self, target, seed, *, lose_call=0.1, lose_reply=0.2, twice=0.2, later=0.2):
        self._channel = grpc.insecure_channel(target, client_options())
        self._random = random.Random(seed)
        self._odds = (lose_call, lose_reply, twice, later)
        self._lock = threading.Lock()
        self._kept = []
        self.lost_replies = self.lost_calls = self.repeated = self.resent = 0

    def service(self, details):
        method = details.method
        if method.endswith("/Chunked"):
            return None
        stub = self._channel.unary_unary(method)

        def forward(data, context):
            if not method.endswith("/Exchange"):
                return self._send(stub, data, context)
            with self._lock:
                lose_call, lose_reply, twice, later = (self._random.random() < odds for odds in self._odds)
                delay = self._random.randrange(1, 6)
                due = [entry for entry in self._kept if entry[0] <= 0]
                self._kept = [[left - 1, *entry] for left, *entry in self._kept if left > 0]
            if lose_call:
                self.lost_calls += 1
                context.abort(grpc.StatusCode.UNAVAILABLE, "call lost")
            for _, old_stub, old_data in due:
                self.resent += 1
                with contextlib.suppress(grpc.RpcError):
                    old_stub(old_data, timeout=10)
            reply = self._send(stub, data, context)
            if twice:
                self.repeated += 1
                reply = self._send(stub, data, context)
            if later:
                with self._lock:
                    self._kept.append([delay, stub, data])
            if lose_reply:
                self.lost_replies += 1
                context.abort(grpc.StatusCode.UNAVAILABLE, "reply lost")
            return reply

        return grpc.unary_unary_rpc_method_handler(forward)

    def _send(self, stub, data, context):
        try:
            return stub(data, timeout=10)
        except grpc.RpcError as error:
            context.set_trailing_metadata(error.trailing_metadata())
            context.abort(error.code(), error.details())


@contextlib.contextmanager
def lossy_proxy(address, target, seed, **odds):
    """The proxy, listening at `address` as long as the block."""
    proxy = LossyProxy(target, seed, **odds)
    with ThreadPoolExecutor(8) as pool:
        server = grpc.server(pool, options=server_options())
        server.add_generic_rpc_handlers((proxy,))
        server.add_insecure_port(address)
        server.start()
        try:
            yield proxy
        finally:
            server.stop(1).wait()
            proxy._channel.close()
