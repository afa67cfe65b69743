"""Processes that benchmarks talk to: shards, and servers of their own."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path
from typing import Literal

from ..ps_server.cluster_spec import ClusterSpec
from ..ps_server.server import ShardOptions, serve

Transport = Literal["unix", "tcp"]
PORT_ANY = "127.0.0.1:0"
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
    """A process that runs `target` as long as the block, or this process; Ctrl-C is this process's affair alone."""
    started = multiprocessing.get_context("spawn").Process(target=_run, args=(target, *arguments), daemon=True)
    try:
        with _signals_later():
            started.start()
        yield
    finally:
        if started.pid is not None:
            started.terminate()
            started.join()


@contextmanager
def _signals_later() -> Iterator[None]:
    """Signals to end take effect behind the block, so that no process is left half started.

    A process that is started inside never hears of Ctrl-C, with which a terminal interrupts all of a command's."""
    came: list[int] = []

    def note(number: int, _frame: object) -> None:
        came.append(number)

    is_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.signal(number, note) for number in _ENDING} if is_main else {}
    ensure_running()  # else it is started inside, and lifts the block for those that come after it
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for late in came:
            signal.raise_signal(late)


def _run(target: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    target(*arguments)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


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
