"""Stores that benchmarks train against: rows in this process, or in shard processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..embedding.store import EmbeddingStore
from ..ps_server import LocalStore, connect
from ..ps_server.wire_values import WireDtype, WireFormat
from .shard_processes import running_shards


@contextmanager
def open_store(shards: int, threads: int, wire: WireDtype) -> Iterator[EmbeddingStore]:
    """Fresh rows: in this process for 0 shards, else in shard processes that live as long as the block."""
    if shards == 0:
        with LocalStore(threads=threads) as store:
            yield store
        return
    with running_shards(shards, threads) as addresses, connect(addresses, wire=WireFormat(wire)) as remote:
        yield remote
