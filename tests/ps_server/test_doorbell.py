"""Exchanges called by doorbell: the same answers and errors as through the socket, and nothing that waits for ever."""

import contextlib
import mmap
import os
import signal
import struct
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from running_shards import make_spec, running_shards

from embershard.embedding.errors import DuplicateKeyError, UnknownTableError
from embershard.embedding.native_table_group import NativeTableGroup
from embershard.embedding.store import Pull, Push, PushToken
from embershard.embedding.table_config import ColumnBlock, TableConfig
from embershard.embedding.table_group import TableKeys, UpdateStep
from embershard.ps_server import parameter_server_pb2 as pb
from embershard.ps_server import shared_memory
from embershard.ps_server.client import connect
from embershard.ps_server.doorbell import REPLY_ROOM, ClientBell, Doorbells, Ending, Piece
from embershard.ps_server.errors import StoreUnavailableError
from embershard.ps_server.shard_link import Patience, ShardLink
from embershard.ps_server.shared_memory import HALF, ClientBlock

pytestmark = pytest.mark.skipif(not shared_memory.IS_POSSIBLE, reason="no memfd on this system")

TABLE = TableConfig(name="wide", blocks=(ColumnBlock(dim=16),))
KEYS = TableKeys.of("wide", np.arange(20_000, dtype=np.uint64) << np.uint64(49))
PATIENCE = Patience(call_seconds=3, attempt_seconds=0.5, connect_seconds=5)


def push_of(batch, keys=KEYS):
    count = len(keys.keys)
    gradients = np.random.default_rng(batch).normal(0, 0.1, count * 16).astype(np.float32)
    return Push(PushToken(1, 1, batch), keys, gradients, np.ones(count, np.uint32), 8, 1, 5)


@contextlib.contextmanager
def shard_and_store(tmp_path, **options):
    """A shard, and a store whose block is there."""
    spec = make_spec(tmp_path)
    with (
        running_shards(spec, NativeTableGroup, **options) as servers,
        connect(spec.shards[0], patience=PATIENCE) as store,
    ):
        store.ensure_tables([TABLE])
        store.exchange(None, Pull(KEYS))
        yield servers[0], store


def wait_until(is_true):
    until = time.monotonic() + 5
    while not is_true():
        assert time.monotonic() < until
        time.sleep(0.002)


@pytest.fixture
def calls(monkeypatch):
    """Exchanges that go through the socket."""
    seen = []

    def watched(attempt):
        def watch(link, method, data, timeout):
            if method == "Exchange":
                seen.append(data)
            return attempt(link, method, data, timeout)

        return watch

    for name in ("_try", "_try_again"):
        monkeypatch.setattr(ShardLink, name, watched(getattr(ShardLink, name)))
    return seen


def test_large_exchanges_pass_the_socket_by_and_their_threads_end_with_the_store(tmp_path, calls):
    with shard_and_store(tmp_path) as (server, store):
        for batch in range(3):
            assert store.exchange(push_of(batch), Pull(KEYS)).report.applied == 16
        assert len(server.service.doorbells) == 1
        assert calls == []
        store.close()
        wait_until(lambda: len(server.service.doorbells) == 0)
        assert len(server.service.shared_blocks) == 0


def test_refusals_have_their_class_and_leave_the_bell_as_it_was(tmp_path, calls):
    twice = TableKeys.of("wide", np.repeat(KEYS.keys[:5000], 2))
    with shard_and_store(tmp_path) as (server, store):
        block = store._links.link(0)._block
        with pytest.raises(DuplicateKeyError, match="more than once"):
            store.exchange(push_of(0, twice), None)
        server.shard._tables.drop_table("wide")
        with pytest.raises(UnknownTableError, match="wide"):
            store.exchange(push_of(1), None)
        with pytest.raises(UnknownTableError, match="wide"):
            store.exchange(None, Pull(KEYS))
        assert store._links.link(0)._block is block
        assert calls == []


def test_no_more_clients_have_a_bell_than_calls_may_run(tmp_path, calls):
    with shard_and_store(tmp_path, workers=1) as (server, store), connect(server.address) as other:
        for client in (store, other):
            client.exchange(None, Pull(KEYS))
        assert len(server.service.doorbells) == 1
        assert len(server.service.shared_blocks) == 2
        assert len(calls) == 1  # of the store that has no bell
        assert all(pb.ExchangeRequest.FromString(data).HasField("shared") for data in calls)


def test_push_whose_client_goes_before_its_gradients_are_there_changes_nothing(tmp_path, monkeypatch):
    with shard_and_store(tmp_path) as (server, store):
        before = store.exchange(push_of(0), Pull(KEYS)).rows
        write = ClientBlock._write

        def stop_at_gradients(block, piece):
            if piece is Piece.GRADIENTS:
                raise KeyboardInterrupt
            write(block, piece)

        with monkeypatch.context() as patch:
            patch.setattr(ClientBlock, "_write", stop_at_gradients)
            with pytest.raises(KeyboardInterrupt):
                store.exchange(push_of(1), None)
        wait_until(lambda: len(server.service.doorbells) == 0)
        after = store.exchange(None, Pull(KEYS)).rows
        assert after.values.tobytes() == before.values.tobytes()
        assert after.pushes.tolist() == before.pushes.tolist()
        assert store.exchange(push_of(1), None).report.applied == 16


def test_client_that_stands_still_in_the_middle_of_a_push_keeps_nobody_waiting(tmp_path, monkeypatch):
    stopped, go_on, write = threading.Event(), threading.Event(), ClientBlock._write

    def wait_at_gradients(block, piece):
        if piece is Piece.GRADIENTS and threading.current_thread() is slow:
            stopped.set()
            go_on.wait(10)
        write(block, piece)

    with shard_and_store(tmp_path) as (server, store), connect(server.address) as other:
        monkeypatch.setattr(ClientBlock, "_write", wait_at_gradients)
        reports = []
        slow = threading.Thread(target=lambda: reports.append(store.exchange(push_of(0), None).report))
        slow.start()
        assert stopped.wait(5)
        quick = Push(PushToken(2, 1, 0), KEYS, push_of(1).gradients, np.ones(len(KEYS.keys), np.uint32), 8, 1, 5)
        assert other.exchange(quick, Pull(KEYS)).report.applied == 16
        go_on.set()
        slow.join()
        assert reports[0].applied == 16


def test_shard_that_does_not_answer_is_asked_through_the_socket_within_its_time(tmp_path, monkeypatch):
    with shard_and_store(tmp_path) as (server, store):
        exchange, silent = server.service._exchange, threading.Event()

        def stand_still(data, bell=None):
            if bell is not None:
                silent.wait(10)
            return exchange(data, bell)

        monkeypatch.setattr(server.service, "_exchange", stand_still)
        start = time.monotonic()
        assert store.exchange(push_of(0), None).report.applied == 16
        assert PATIENCE.attempt_seconds <= time.monotonic() - start < PATIENCE.call_seconds
        silent.set()
        # The call that was given up comes to its end: its token has been applied.
        wait_until(lambda: len(server.service.doorbells) == 0)
        assert store.exchange(push_of(0), None).report.duplicate == 16


def test_shard_that_never_answers_is_told_with_all_the_time_and_tries_it_had(tmp_path, monkeypatch):
    silent = threading.Event()
    with shard_and_store(tmp_path) as (server, store):
        store._links.link(0).patience = Patience(call_seconds=0.6, attempt_seconds=5)

        def stand_still(data, bell=None):
            silent.wait(10)
            return b""

        monkeypatch.setattr(server.service, "_exchange", stand_still)
        with pytest.raises(StoreUnavailableError, match=r"did not answer Exchange in 0\.6 s and 2 tries"):
            store.exchange(push_of(0), None)
        silent.set()


def test_shard_that_stops_ends_the_running_call_and_answers_no_other(tmp_path, monkeypatch):
    with shard_and_store(tmp_path) as (server, store):
        push, inside, go_on = server.service._durable.push, threading.Event(), threading.Event()

        def slow(*arguments):
            inside.set()
            go_on.wait(10)
            return push(*arguments)

        monkeypatch.setattr(server.service._durable, "push", slow)
        reports = []
        caller = threading.Thread(target=lambda: reports.append(store.exchange(push_of(0), None).report))
        caller.start()
        assert inside.wait(5)
        stopping = threading.Thread(target=server.service.doorbells.stop, args=(5.0,))
        stopping.start()
        go_on.set()
        stopping.join()
        caller.join()
        assert reports[0].applied == 16
        assert len(server.service.doorbells) == 0
        server.stop(1.0)
        with pytest.raises(StoreUnavailableError):
            store.exchange(push_of(1), None)


def serve_nothing(request, bell):
    bell.wait(Piece.ALL)
    return Ending.REPLY, request[::-1]


@contextlib.contextmanager
def bell_and_memory(serve=serve_nothing):
    """A bell, answered by `serve`, and its memory."""
    bells, bell, memory = Doorbells(serve, 2), ClientBell(), np.zeros(HALF, np.uint8)
    request = pb.ShareMemoryRequest(process=os.getpid())
    bell.invite(request)
    assert bells.add(request, memory, lambda: None)
    bell.connect()
    try:
        yield bells, bell, memory
    finally:
        bell.close()
        bells.stop(5)
        assert len(bells) == 0


def test_pieces_are_waited_for_in_any_order():
    order = []

    def serve(request, bell):
        bell.wait(Piece.GRADIENTS)
        order.append("served")
        return Ending.REPLY, request

    with bell_and_memory(serve) as (_, bell, memory):
        pieces = {Piece.KEYS: lambda: order.append("keys"), Piece.GRADIENTS: lambda: order.append("gradients")}
        assert bell.call(memory, 64, b"abc", 5, pieces) == (Ending.REPLY, b"abc")
        assert order == ["keys", "gradients", "served"]
        assert bell.call(memory, 64, b"", 5, {}) == (Ending.REPLY, b"")


def test_reply_without_room_is_a_failure():
    with bell_and_memory(lambda request, bell: (Ending.REPLY, bytes(REPLY_ROOM + 1))) as (_, bell, memory):
        assert bell.call(memory, 64, b"abc", 5, {}) == (Ending.FAILURE, b"")
        assert bell.fits(memory, HALF - REPLY_ROOM - 64, 64)
        assert not bell.fits(memory, HALF - REPLY_ROOM - 64, 65)


@pytest.mark.parametrize(
    "word",
    [
        struct.pack("<QII", 64, 3, 0),
        struct.pack("<QII", 64, 3, 256 + 4),
        struct.pack("<QII", HALF, 3, 256),
        struct.pack("<QII", (1 << 64) - 1, (1 << 32) - 1, 256),
        b"short",
    ],
)
def test_word_that_is_no_call_ends_the_bell(word):
    with bell_and_memory() as (bells, bell, memory):
        os.write(bell._ring, word)
        wait_until(lambda: len(bells) == 0)
        with pytest.raises(OSError, match="pipe"):
            bell.call(memory, 64, b"abc", 5, {})


def test_answer_that_is_none_is_an_error():
    for word in (struct.pack("<QII", 0, 1, 3), struct.pack("<QII", 0, REPLY_ROOM + 1, 0), b"short"):
        bell = ClientBell()
        os.write(bell._from_shard, word)
        with pytest.raises(ConnectionError):
            bell.call(np.zeros(HALF, np.uint8), 64, b"abc", 5, {})
        bell.close()


def test_only_pipes_are_taken():
    bells, bell = Doorbells(serve_nothing, 2), ClientBell()
    file = os.open(__file__, os.O_RDONLY)
    try:
        for ring, answer in ((file, bell._from_shard), (bell._of_shard, file), (1 << 20, bell._from_shard)):
            request = pb.ShareMemoryRequest(process=os.getpid(), ring=ring, answer=answer)
            assert not bells.add(request, np.zeros(HALF, np.uint8), lambda: None)
        assert not bells.add(pb.ShareMemoryRequest(process=os.getpid()), np.zeros(HALF, np.uint8), lambda: None)
        assert len(bells) == 0
    finally:
        os.close(file)
        bell.close()


CLIENT = """
import sys
import numpy as np
from embershard.embedding.store import Pull
from embershard.embedding.table_group import TableKeys
from embershard.ps_server.client import connect
store = connect(sys.argv[1])
store.exchange(None, Pull(TableKeys.of("wide", np.arange(20_000, dtype=np.uint64))))
print("pulled", flush=True)
sys.stdin.read()
"""


@pytest.mark.process
def test_client_that_is_killed_leaves_no_thread_and_no_memory(tmp_path):
    with shard_and_store(tmp_path) as (server, _):
        command = [sys.executable, "-c", CLIENT, server.address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout.readline() == b"pulled\n"
            assert (len(server.service.doorbells), len(server.service.shared_blocks)) == (2, 2)
            other.kill()
        wait_until(lambda: len(server.service.doorbells) == 1)
        wait_until(lambda: len(server.service.shared_blocks) == 1)


def test_push_to_a_table_that_is_made_anew_while_it_comes_is_applied_to_the_new_one(tmp_path, monkeypatch, calls):
    with shard_and_store(tmp_path) as (server, store):
        prepare, made = server.shard.prepare_push, []

        def prepare_and_make_anew(*arguments):
            made.append(prepare(*arguments))
            server.shard._tables.drop_table("wide")
            server.shard._tables.ensure_table(TABLE)
            return made[0]

        monkeypatch.setattr(server.shard, "prepare_push", prepare_and_make_anew)
        monkeypatch.setattr(ClientBlock, "_write", slowly(ClientBlock._write))
        report = store.exchange(push_of(0), None).report
        assert made != [None]
        assert report.tables["wide"].created == len(KEYS.keys)
        assert calls == []


def slowly(write):
    """As `write`, but gradients come when the keys were prepared."""

    def wait_and_write(block, piece):
        if piece is Piece.GRADIENTS:
            time.sleep(0.2)
        write(block, piece)

    return wait_and_write


FORKING = """
import os, sys, time
import numpy as np
from embershard.embedding.store import Pull
from embershard.embedding.table_group import TableKeys
from embershard.ps_server.client import connect
store = connect(sys.argv[1])
store.exchange(None, Pull(TableKeys.of("wide", np.arange(20_000, dtype=np.uint64))))
child = os.fork()
if child == 0:
    time.sleep(20)
    os._exit(0)
print(child, flush=True)
sys.stdin.read()
"""


@pytest.mark.process
def test_child_of_a_client_that_is_killed_keeps_neither_its_thread_nor_its_memory(tmp_path):
    with shard_and_store(tmp_path) as (server, _):
        command = [sys.executable, "-W", "ignore", "-c", FORKING, server.address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            child = int(other.stdout.readline())
            assert len(server.service.doorbells) == 2
            other.kill()
        try:
            wait_until(lambda: len(server.service.doorbells) == 1)
            assert len(server.service.shared_blocks) == 1
            os.kill(child, 0)  # it still runs
        finally:
            os.kill(child, signal.SIGKILL)


def open_files():
    return len(os.listdir("/proc/self/fd"))


def test_connection_stopped_while_it_shows_its_memory_leaves_nothing_open(tmp_path, monkeypatch):
    attempt = ShardLink._try

    def interrupt(link, method, data, timeout):
        reply = attempt(link, method, data, timeout)
        if method == "ShareMemory":
            raise KeyboardInterrupt
        return reply

    with shard_and_store(tmp_path) as (server, _), connect(server.address) as other:
        other.exchange(None, Pull(TableKeys.of("wide", KEYS.keys[:10])))
        before = open_files()
        with monkeypatch.context() as patch:
            patch.setattr(ShardLink, "_try", interrupt)
            with pytest.raises(KeyboardInterrupt):
                other.exchange(None, Pull(KEYS))
        wait_until(lambda: len(server.service.doorbells) == 1)
        wait_until(lambda: open_files() <= before + 1)  # the pipe that tells all bells to stop
        other.exchange(None, Pull(KEYS))


def test_block_that_cannot_be_mapped_leaves_nothing_open(monkeypatch):
    def refuse(*_):
        raise OSError(12, "no address space")

    before = open_files()
    with monkeypatch.context() as patch:
        patch.setattr(mmap, "mmap", refuse)
        with pytest.raises(OSError, match="address space"):
            ClientBlock()
    assert open_files() == before


def test_prepared_keys_serve_one_push_of_their_request():
    groups = [NativeTableGroup(4), NativeTableGroup(4)]
    for group in groups:
        group.ensure_table(TABLE)
    push, few = push_of(0), TableKeys.of("wide", KEYS.keys[:100])
    once = np.ones(len(KEYS.keys), np.uint32)
    prepared = groups[0].prepare(KEYS, once)
    for group, keys, mask in (
        (groups[1], KEYS, None),
        (groups[0], few, None),
        (groups[0], KEYS, np.ones(16, np.bool_)),
    ):
        count = len(keys.keys)
        times = once if keys is KEYS else once[:count]
        with pytest.raises(ValueError, match="prepared"):
            group.apply_gradients(keys, push.gradients[: 16 * count], times, UpdateStep(), mask, prepared=prepared)
    reports = [
        groups[0].apply_gradients(KEYS, push.gradients, once, UpdateStep(), prepared=prepared),
        groups[1].apply_gradients(KEYS, push.gradients, once, UpdateStep()),
    ]
    assert reports[0] == reports[1]
    assert groups[0].lookup(KEYS).tobytes() == groups[1].lookup(KEYS).tobytes()
    with pytest.raises(ValueError, match="prepared"):
        groups[0].apply_gradients(KEYS, push.gradients, once, UpdateStep(), prepared=prepared)
    twice = TableKeys.of("wide", np.repeat(KEYS.keys[:10_000], 2))
    with pytest.raises(DuplicateKeyError):
        groups[0].prepare(twice, once)
    same = TableKeys(KEYS.tables, KEYS.keys.copy(), KEYS.splits.copy())
    with pytest.raises(ValueError, match="this very request"):
        groups[0].apply_gradients(same, push.gradients, once, UpdateStep(), prepared=groups[0].prepare(KEYS, once))
    with pytest.raises(ValueError, match="very request and occurrences"):
        groups[0].apply_gradients(KEYS, push.gradients, once + 1, UpdateStep(), prepared=groups[0].prepare(KEYS, once))
    assert groups[0].lookup(KEYS).tobytes() == groups[1].lookup(KEYS).tobytes()
    with pytest.raises(UnknownTableError):
        groups[0].prepare(TableKeys.of("slim", KEYS.keys), once)
