"""Processes that benchmarks talk to: shards, and servers of their own."""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from ..ps_server.cluster_spec import ClusterSpec
from ..ps_server.server import ShardOptions, serve

Transport = Literal["unix", "tcp"]
PORT_ANY = "127.0.0.1:0"


@contextmanager
def running_shard(transport: Transport, threads: int) -> Iterator[str]:
    """Address of a shard process that lives as long as the block."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        address = f"unix:{folder}/shard.sock" if transport == "unix" else PORT_ANY
        spec = ClusterSpec(name="bench", shards=(address,))
        ready = folder / "ready.json"
        stack.enter_context(process(_serve_shard, spec, threads, ready))
        yield wait_for(ready)


@contextmanager
def running_shards(count: int, threads: int) -> Iterator[list[str]]:
    """Addresses of `count` shard processes on Unix sockets that live as long as the block."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        spec = ClusterSpec(name="bench", shards=tuple(f"unix:{folder}/{index}.sock" for index in range(count)))
        readies = [folder / f"ready-{index}.json" for index in range(count)]
        for index, ready in enumerate(readies):
            stack.enter_context(process(_serve_shard, spec, threads, ready, index))
        yield [wait_for(ready) for ready in readies]


@contextmanager
def process(target: Callable[..., None], *arguments: object) -> Iterator[None]:
    """A process that runs `target` as long as the block."""
    started = multiprocessing.get_context("spawn").Process(target=target, args=arguments, daemon=True)
    started.start()
    try:
        yield
    finally:
        started.terminate()
        started.join()


def _serve_shard(spec: ClusterSpec, threads: int, ready: Path, index: int = 0) -> None:
    serve(ShardOptions(spec=spec, index=index, threads=threads, ready_file=ready))


def wait_for(ready: Path, seconds: float = 60.0) -> str:
    """The address in a ready file, once it is there. Raises: TimeoutError."""
    until = time.monotonic() + seconds
    while not ready.exists():
        if time.monotonic() > until:
            raise TimeoutError(f"expected {ready.name} within {seconds} s, got none: the process did not start")
        time.sleep(0.01)
    address: str = json.loads(ready.read_text(encoding="utf-8"))["address"]
    return address
