"""CallWatch: connections it shuts, calls to a stopped shard that end in time, and what is left of it."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from shard_processes import ShardProcesses, wait_until

from embershard.embedding.store import Pull, Push, PushToken
from embershard.embedding.table_config import ColumnBlock, TableConfig
from embershard.embedding.table_group import TableKeys
from embershard.ps_server.call_watch import CallWatch, shut_connections
from embershard.ps_server.client import connect
from embershard.ps_server.errors import StoreUnavailableError
from embershard.ps_server.shard_link import Patience
from embershard.ps_server.wire_values import WireFormat

TABLE = TableConfig(name="wide", blocks=(ColumnBlock(dim=16),))
TABLETS = 32


def watch_threads():
    return [thread for thread in threading.enumerate() if thread.name == "call watch"]


def connected(family, address):
    listener = socket.socket(family)
    listener.bind(address)
    listener.listen()
    client = socket.socket(family)
    client.connect(listener.getsockname())
    return listener, client, listener.accept()[0]


@pytest.mark.parametrize("kind", ["port", "name", "unix"])
def test_connections_to_the_address_are_shut_and_no_others(tmp_path, kind):
    places = [str(tmp_path / "a"), str(tmp_path / "b")] if kind == "unix" else [("127.0.0.1", 0)] * 2
    family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
    pairs = [connected(family, place) for place in places]
    name = pairs[0][0].getsockname()
    address = {"unix": f"unix:{name}", "port": f"127.0.0.1:{name[1]}", "name": f"localhost:{name[1]}"}[kind]
    files = len(os.listdir("/dev/fd"))
    try:
        assert shut_connections(address) == 1
        assert pairs[0][1].recv(1) == b""
        pairs[1][1].sendall(b"x")
        assert pairs[1][2].recv(1) == b"x"
        assert len(os.listdir("/dev/fd")) == files
        assert shut_connections("no-such-host.invalid:1") == 0
    finally:
        for opened in (file for pair in pairs for file in pair):
            opened.close()


def test_locks_of_files_outlast_the_search(tmp_path):
    trial = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    with open(tmp_path / "lock", "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        shut_connections(f"unix:{tmp_path / 'a'}")
        other = subprocess.run(
            [sys.executable, "-c", trial, file.name], capture_output=True, text=True, timeout=60, check=False
        )
    assert "BlockingIOError" in other.stderr


def test_calls_that_end_in_time_shut_nothing_and_late_ones_do(tmp_path):
    listener, client, peer = connected(socket.AF_UNIX, str(tmp_path / "a"))
    watch, address = CallWatch(), f"unix:{tmp_path / 'a'}"
    try:
        assert not watch_threads()
        slow = watch.begin(address, 1000)
        for _ in range(100):
            watch.end(watch.begin(address, 0.05))
        assert len(watch_threads()) == 1
        wait_until(lambda: watch._wakes_at > time.monotonic() + 100)
        client.sendall(b"x")
        assert peer.recv(1) == b"x"
        watch.begin(address, 0.05)  # earlier than what the thread waits for
        assert client.recv(1) == b""
        watch.end(slow)
    finally:
        watch.close()
        for opened in (listener, client, peer):
            opened.close()
    assert not watch_threads()
    watch.end(watch.begin(address, 0.05))
    assert not watch_threads()


@pytest.fixture(scope="module")
def shards():
    with ShardProcesses(1) as processes:
        yield processes


@pytest.mark.process
@pytest.mark.parametrize("rows", [100_000, 700_000], ids=["one message", "chunked"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_first_try_of_a_large_push_to_a_stopped_shard_ends_in_time(shards, rows, compression):
    keys = TableKeys.of("wide", np.arange(rows, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    gradients = np.random.default_rng(rows).normal(0, 0.1, rows * 16).astype(np.float32)
    unit = rows + len(compression)
    push = Push(PushToken(unit, 1, 0), keys, gradients, np.ones(rows, np.uint32), 8, 1, 5)
    patience = Patience(call_seconds=0.8, attempt_seconds=0.8, connect_seconds=5, seconds_per_megabyte=0)
    wire = WireFormat(compression=compression)
    with connect(shards.spec.shards[0], patience=patience, shared_memory=False, wire=wire) as store:
        link = store._links.link(0)
        link.patience = Patience()
        store.ensure_tables([TABLE])
        store.exchange(None, Pull(TableKeys.of("wide", keys.keys[:1000])))
        link.patience = patience
        os.kill(shards.processes[0].pid, signal.SIGSTOP)
        goes_on = threading.Timer(10, os.kill, (shards.processes[0].pid, signal.SIGCONT))
        goes_on.start()
        start = time.monotonic()
        try:
            with pytest.raises(
                StoreUnavailableError, match=r"shard 0 at unix:.* did not answer Exchange in .*DEADLINE"
            ):
                store.exchange(push, None)
            assert time.monotonic() - start < 5
        finally:
            goes_on.cancel()
            os.kill(shards.processes[0].pid, signal.SIGCONT)
        link.patience = Patience()
        report = store.exchange(push, None).report
        assert report.applied + report.duplicate == TABLETS
    assert not watch_threads()
