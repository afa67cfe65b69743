"""Doorbell calls to a shard process that is killed or stopped in the middle of one, and those of forked clients."""

import os
import signal
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
from embershard.ps_server import parameter_server_pb2 as pb
from embershard.ps_server import shared_memory
from embershard.ps_server.client import connect
from embershard.ps_server.doorbell import Doorbells, Ending, Piece
from embershard.ps_server.errors import StoreUnavailableError
from embershard.ps_server.shard_link import Patience
from embershard.ps_server.shared_memory import ClientBlock, SharedBlocks

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not shared_memory.IS_POSSIBLE, reason="no memfd on this system"),
]

TABLE = TableConfig(name="wide", blocks=(ColumnBlock(dim=16),))
KEYS = TableKeys.of("wide", np.arange(20_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
TABLETS = 32


@pytest.fixture(scope="module")
def shards():
    with ShardProcesses(1) as processes:
        yield processes


def ring_of(store):
    """The store's doorbell, its table there."""
    store.ensure_tables([TABLE])
    store.exchange(None, Pull(KEYS))
    bell = store._links.link(0)._block.bell
    assert bell.is_connected
    return bell


def push_of(unit):
    gradients = np.random.default_rng(unit).normal(0, 0.1, len(KEYS.keys) * 16).astype(np.float32)
    return Push(PushToken(unit, 1, 0), KEYS, gradients, np.ones(len(KEYS.keys), np.uint32), 8, 1, 5)


def counts_of(store):
    """How often each row was pushed, over all rows."""
    tables = [store.snapshot(tablet).tables["wide"] for tablet in range(TABLETS)]
    return np.unique(np.concatenate([table.count for table in tables])).tolist()


def before_gradients(monkeypatch, act):
    """Call `act` once when a client has rung for a push and is about to write its gradients."""
    write, acts = ClientBlock._write, [act]

    def act_and_write(block, piece):
        if piece is Piece.GRADIENTS and acts:
            acts.pop()()
        write(block, piece)

    monkeypatch.setattr(ClientBlock, "_write", act_and_write)
    return acts


def after_the_call(monkeypatch, act):
    """Call `act` once when a push has been rung for with all its pieces, before the client waits for the answer."""
    write, acts = os.write, [act]

    def write_and_act(file, data):
        size = write(file, data)
        if acts and len(data) == 16 and data[12] == Piece.GRADIENTS:
            acts.pop()()
        return size

    monkeypatch.setattr(os, "write", write_and_act)
    return acts


@pytest.mark.parametrize("at", [before_gradients, after_the_call])
@pytest.mark.parametrize("wait", [0, 0.002])
def test_push_whose_shard_is_killed_in_the_middle_is_applied_once(shards, monkeypatch, at, wait):
    with connect(shards.spec.shards[0]) as store:
        ring_of(store)
        once = counts_of(store)

        def kill():
            time.sleep(wait)
            shards.kill(0)
            starting.start()

        starting = threading.Thread(target=shards.start, args=(0,))
        left = at(monkeypatch, kill)
        report = store.exchange(push_of(101 + int(wait > 0) + 2 * int(at is after_the_call)), None).report
        starting.join()
        assert left == []
        assert report.applied + report.duplicate == TABLETS
        assert counts_of(store) == [count + 1 for count in once or [0]]
        store.exchange(None, Pull(KEYS))  # where the answer came before the kill, the bell is missed only now
        ring_of(store)


@pytest.mark.parametrize("at", [before_gradients, after_the_call])
def test_stopped_shard_is_named_within_the_time_and_its_push_applied_once(shards, monkeypatch, at):
    patience = Patience(call_seconds=0.8, attempt_seconds=0.3, connect_seconds=5)
    with connect(shards.spec.shards[0], patience=patience) as store:
        ring_of(store)
        once = counts_of(store)
        pid, push = shards.processes[0].pid, push_of(201 + int(at is after_the_call))
        left = at(monkeypatch, lambda: os.kill(pid, signal.SIGSTOP))
        start = time.monotonic()
        try:
            with pytest.raises(StoreUnavailableError, match=r"shard 0 at unix:.*0\.sock.* did not answer Exchange in"):
                store.exchange(push, None)
            assert time.monotonic() - start < 10  # gRPC alone would wait until the shard goes on
        finally:
            os.kill(pid, signal.SIGCONT)
        assert left == []
        store._links.link(0).patience = Patience()
        report = store.exchange(push, None).report
        assert report.applied + report.duplicate == TABLETS
        assert counts_of(store) == [count + 1 for count in once or [0]]


def test_shard_that_goes_on_in_time_applies_the_push_once(shards, monkeypatch):
    patience = Patience(call_seconds=20, attempt_seconds=0.3, connect_seconds=5)
    with connect(shards.spec.shards[0], patience=patience) as store:
        ring_of(store)
        once = counts_of(store)
        pid = shards.processes[0].pid
        goes_on = threading.Timer(0.7, os.kill, (pid, signal.SIGCONT))

        def stop():
            os.kill(pid, signal.SIGSTOP)
            goes_on.start()

        left = before_gradients(monkeypatch, stop)
        report = store.exchange(push_of(301), None).report
        goes_on.join()
        assert left == []
        assert report.applied + report.duplicate == TABLETS
        assert counts_of(store) == [count + 1 for count in once or [0]]


FORKING = """
import os, sys
import numpy as np
from embershard.embedding.store import Pull
from embershard.embedding.table_group import TableKeys
from embershard.ps_server.client import connect
store, keys = connect(sys.argv[1]), TableKeys.of("wide", np.arange(20_000, dtype=np.uint64))
store.exchange(None, Pull(keys))
block = store._links.link(0)._block
mine = list(block.bell._open)
if os.fork() == 0:
    closed = 0
    for file in mine:
        try:
            os.fstat(file)
        except OSError:
            closed += 1
    os._exit(closed)
_, status = os.wait()
store.exchange(None, Pull(keys))
print(len(mine), os.waitstatus_to_exitcode(status), store._links.link(0)._block is block)
"""


def test_child_of_a_client_has_no_doorbell_and_the_client_still_has_its_own(shards):
    with connect(shards.spec.shards[0]) as store:
        ring_of(store)
    command = [sys.executable, "-W", "ignore", "-c", FORKING, shards.spec.shards[0]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["2", "2", "True"], done.stderr


def test_a_thousand_doorbells_leave_no_descriptor_no_thread_and_no_mapping():
    def held():
        with open("/proc/self/maps", encoding="ascii") as maps:
            mapped = sum("memfd:embershard" in line for line in maps)
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), mapped

    blocks = SharedBlocks()
    bells = Doorbells(lambda request, _: (Ending.REPLY, request[::-1]), 4)
    before = held()
    for number in range(1000):
        block = ClientBlock()
        request = block.request(pb.CallHeader())
        memory = blocks.add(request)
        wait_until(lambda: len(bells) < bells.most)
        assert bells.add(request, memory, lambda number=request.block: blocks.remove(number))
        del memory
        block.bell.connect()
        assert block.call(b"abc", 10) == (Ending.REPLY, b"cba")
        if number % 2:
            block.bell.close()  # the client's end alone: its memory goes with the object
        block.close()
    bells.stop(10)
    wait_until(lambda: len(bells) == 0)
    assert len(blocks) == 0
    wait_until(lambda: held() == before)
