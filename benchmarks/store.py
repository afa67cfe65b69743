"""Store benchmarks: pull and push through a shard process, beside a raw gRPC echo of the same bytes, and in-process."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
from pydantic import Field

from ..embedding.store import EmbeddingStore, Pull, Push
from ..embedding.table_config import ColumnBlock, TableConfig
from ..embedding.table_group import TableKeys
from ..ps_server.allocator import keep_large_buffers
from ..ps_server.channel_options import client_options, server_options
from ..ps_server.client import connect
from ..ps_server.local_store import LocalStore
from ..ps_server.wire_values import WireDtype, WireFormat
from .measurement import BenchOptions, Measurement, interleaved_rates
from .shard_processes import PORT_ANY, Transport, process, running_shard, wait_for

TABLE = "bench"
REPORT_BYTES = 200
COUNTER_BYTES = 2048


class Options(BenchOptions):
    """What is measured: unique random keys × `dim` a call, one shard process, one client.

    threads: of the shard's table and of the store in this process.   shared_memory: arrays through memory that both
    processes map (True), or all bytes through the socket as to a shard on another machine (False).
    """

    keys: tuple[int, ...] = Field(default=(1_000, 10_000, 100_000), min_length=1)
    dim: int = Field(default=16, ge=1)
    rows: int = Field(default=1_000_000, ge=1)
    wires: tuple[WireDtype, ...] = ("float32", "bfloat16")
    transports: tuple[Transport, ...] = ("unix", "tcp")
    shared_memory: tuple[bool, ...] = (True, False)
    threads: int = Field(default=2, ge=1)
    rounds: int = Field(default=25, ge=1)


def run(options: Options) -> Iterator[Measurement]:
    """Pull and push of each size, dtype and transport; the reference echoes the same request and reply sizes."""
    if options.quick:
        small = {"keys": (1_000,), "rows": 10_000, "rounds": 3, "wires": ("float32",), "transports": ("unix",)}
        options = options.model_copy(update=small)
    keep_large_buffers()
    random = np.random.default_rng(0)
    space = np.unique(random.integers(0, 1 << 64, options.rows, dtype=np.uint64))
    table = TableConfig(name=TABLE, blocks=(ColumnBlock(dim=options.dim),))
    with LocalStore(threads=options.threads) as local:
        _fill(local, table, space)
        for transport in options.transports:
            with running_shard(transport, options.threads) as address, _echo(transport) as echo:
                for wire, shares in itertools.product(options.wires, options.shared_memory):
                    with connect(address, wire=WireFormat(wire), shared_memory=shares) as store:
                        _fill(store, table, space)
                        for size in options.keys:
                            batches = [random.choice(space, size, replace=False) for _ in range(4)]
                            told = {"wire": wire, "transport": transport, "shared_memory": shares}
                            yield from _measure(options, told, batches, local, store, echo)


def _measure(
    options: Options,
    told: Mapping[str, object],
    batches: list[npt.NDArray[np.uint64]],
    local: EmbeddingStore,
    store: EmbeddingStore,
    echo: Callable[[str, bytes], bytes],
) -> Iterator[Measurement]:
    size = len(batches[0])
    gradients = np.random.default_rng(1).normal(0, 0.01, size * options.dim).astype(np.float32)
    occurrences = np.ones(size, np.uint32)
    turn = iter(range(1 << 62))
    value_bytes = size * options.dim * (4 if told["wire"] == "float32" else 2)
    # Method names tell the echo how much to answer, so that request and reply are as long as the store's.
    pull_reply, pull_request = value_bytes + COUNTER_BYTES, bytes(size * 8)
    push_request = bytes(size * (8 + 4) + value_bytes)

    def pull(of: EmbeddingStore) -> None:
        of.exchange(None, Pull(TableKeys.of(TABLE, batches[next(turn) % len(batches)])))

    def push(of: EmbeddingStore) -> None:
        keys = TableKeys.of(TABLE, batches[next(turn) % len(batches)])
        of.exchange(Push(None, keys, gradients, occurrences, 4096, 1, 0), None)

    work: dict[str, Callable[[], object]] = {
        "pull": lambda: pull(store),
        "pull_echo": lambda: echo(f"reply_{pull_reply}", pull_request),
        "pull_local": lambda: pull(local),
        "push": lambda: push(store),
        "push_echo": lambda: echo(f"reply_{REPORT_BYTES}", push_request),
        "push_local": lambda: push(local),
    }
    rates = interleaved_rates(work, dict.fromkeys(work, float(size)), options.rounds, warm_up=4)
    for workload in ("pull", "push"):
        details = {
            "keys_per_call": size,
            "dim": options.dim,
            "rows": options.rows,
            **told,
            "threads": options.threads,
            "shards": 1,
            "local_rate": rates[f"{workload}_local"],
        }
        echoed = "raw gRPC echo of the same bytes"
        yield Measurement(workload, rates[workload], "keys/s", echoed, rates[f"{workload}_echo"], details)


def _fill(store: EmbeddingStore, table: TableConfig, space: npt.NDArray[np.uint64]) -> None:
    store.ensure_tables([table])
    if store.stats()[TABLE].rows >= len(space):
        return
    for keys in np.array_split(space, max(1, len(space) // 100_000)):
        store.assign(TableKeys.of(TABLE, keys), np.zeros(len(keys) * table.dim, np.float32))


@contextmanager
def _echo(transport: Transport) -> Iterator[Callable[[str, bytes], bytes]]:
    """A call to an echo process: method name and request in, as many bytes as the name says back."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        address = f"unix:{folder}/echo.sock" if transport == "unix" else PORT_ANY
        ready = folder / "ready.json"
        stack.enter_context(process(_serve_echo, address, ready))
        channel = stack.enter_context(grpc.insecure_channel(wait_for(ready), client_options()))
        stubs: dict[str, Any] = {}

        def call(method: str, request: bytes) -> bytes:
            if method not in stubs:
                stubs[method] = channel.unary_unary(f"/echo/{method}")
            reply: bytes = stubs[method](request, timeout=60)
            return reply

        yield call


class _EchoHandler(grpc.GenericRpcHandler):
    def __init__(self) -> None:
        self._replies: dict[str, bytes] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        size = int(handler_call_details.method.rpartition("_")[2])
        reply = self._replies.setdefault(handler_call_details.method, bytes(size))
        return grpc.unary_unary_rpc_method_handler(lambda _request, _context: reply)


def _serve_echo(address: str, ready: Path) -> None:
    keep_large_buffers()
    server = grpc.server(ThreadPoolExecutor(4), options=server_options())
    server.add_generic_rpc_handlers((_EchoHandler(),))
    port = server.add_insecure_port(address)
    server.start()
    bound = address if address.startswith("unix:") else f"127.0.0.1:{port}"
    part = ready.with_suffix(".part")
    part.write_text(f'{{"address": "{bound}"}}', encoding="utf-8")
    part.replace(ready)
    server.wait_for_termination()
