"""Shard servers as clients meet them: not there, stopped, restarted, another's, sent garbage, under many clients."""

import concurrent.futures
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import grpc
import numpy as np
import psutil
import pytest
from counters import BITS, COUNTER, keys_of, push_of, read
from running_shards import make_spec, running_shards

from embershard.embedding.errors import TableConflictError, UnknownTableError
from embershard.embedding.native_table_group import NativeTableGroup
from embershard.embedding.reference import ReferenceTableGroup
from embershard.embedding.store import Pull, PushToken
from embershard.embedding.table_group import TableKeys
from embershard.ps_server import parameter_server_pb2 as pb
from embershard.ps_server.client import connect
from embershard.ps_server.cluster_spec import ClusterSpec
from embershard.ps_server.errors import LostRowsError, StoreUnavailableError, WrongPeerError
from embershard.ps_server.security import ClientSecurity
from embershard.ps_server.server import ShardOptions, ShardServer, default_threads
from embershard.ps_server.service_name import SERVICE
from embershard.ps_server.shard_link import Patience
from embershard.ps_server.tablet_map import TabletMap

HASTY = Patience(call_seconds=5, attempt_seconds=1, connect_seconds=1)


# --- who does not answer ----------------------------------------------------------------------------------------------


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("address", ["127.0.0.1:{port}", "unix:/nowhere/shard.sock", "no-such-host.invalid:7700"])
def test_nobody_there_is_an_error_with_the_peer_in_time(address):
    address = address.format(port=free_port())
    start = time.monotonic()
    with pytest.raises(StoreUnavailableError, match=r"server at .* did not answer Hello in .* s and \d+ tries"):
        connect(address, patience=HASTY, security=ClientSecurity(insecure=True))
    assert time.monotonic() - start < 5


def test_stopped_shard_is_named_within_the_deadline_and_answers_after(folder):
    spec = ClusterSpec(name="stop", shards=(f"unix:{folder}/stop.sock",), tablet_bits=BITS)
    ready = folder / "ready.json"
    program = (
        "from embershard.ps_server import ClusterSpec, ShardOptions, serve\n"
        f"spec = ClusterSpec(name='stop', shards=({spec.shards[0]!r},), tablet_bits={BITS})\n"
        f"serve(ShardOptions(spec=spec, ready_file={str(ready)!r}))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        wait_until(ready.exists)
        patience = Patience(call_seconds=1.5, attempt_seconds=0.5, connect_seconds=5)
        with connect(spec.shards[0], patience=patience) as store:
            store.ensure_tables([COUNTER])
            process.send_signal(signal.SIGSTOP)
            wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
            start = time.monotonic()
            with pytest.raises(StoreUnavailableError) as caught:
                store.exchange(push_of(range(10), PushToken(1, 1, 0)), None)
            assert time.monotonic() - start < 8
            for part in (
                "shard 0 at unix:",
                "tablets 0..15",
                "map epoch 1",
                "generation 0",
                "DEADLINE_EXCEEDED",
                "tries",
            ):
                assert part in str(caught.value)
            process.send_signal(signal.SIGCONT)
            # The calls that were given up may still arrive; the same token keeps them one.
            wait_until(lambda: store.exchange(push_of(range(10), PushToken(1, 1, 0)), None).report.duplicate > 0)
            assert read(store, range(10)) == [-1.0] * 10
        process.terminate()
        assert process.wait(10) == 0
        assert not ready.exists()
        assert not (folder / "stop.sock").exists()
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def test_snapshot_of_a_shard_that_stops_half_way_is_tried_again(folder):
    class Exhausted(ReferenceTableGroup):
        def erase(self, request, tablets=None):
            raise MemoryError

    spec = make_spec(folder, 1, BITS)
    with running_shards(spec, Exhausted) as servers, connect(spec.shards[0], patience=HASTY) as store:
        store.ensure_tables([COUNTER])
        link = store._links.link(0)
        link.patience = Patience(call_seconds=0.3)
        for call in (lambda: store.erase(TableKeys.of(COUNTER.name, keys_of(range(3)))), lambda: store.snapshot(0)):
            with pytest.raises(StoreUnavailableError, match=r"[2-9] tries: UNAVAILABLE: shard 0 stops: .*half way"):
                call()
        assert servers[0].service.stopping.is_set()


def wait_until(condition, seconds=20):
    until = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except StoreUnavailableError:
            pass
        assert time.monotonic() < until, "gave up waiting"
        time.sleep(0.01)


def test_restarted_shard_without_its_rows_is_noticed(folder):
    spec = make_spec(folder, 1, BITS)
    with running_shards(spec), connect(spec.shards[0]) as store:
        store.ensure_tables([COUNTER])
        first = store.identity
    with running_shards(spec):
        store = connect(spec.shards[0])
        assert store.identity != first
        store.ensure_tables([COUNTER])
    with running_shards(spec):
        with pytest.raises(
            LostRowsError, match=r"restarted without its rows \(durability none\).*restore a checkpoint"
        ):
            read(store, range(10))
        store.close()


def test_other_cluster_and_other_shard_at_the_address_are_refused_b54(folder):
    spec = make_spec(folder, 2, BITS)
    with running_shards(spec) as servers:
        with pytest.raises(WrongPeerError, match="expected cluster 'mine', got cluster 'test'"):
            connect(spec.shards[0], cluster="mine", patience=HASTY)
        swapped = TabletMap(1, BITS, tuple(reversed(spec.shards)), servers[0].map.owners)
        servers[0].service.tablet_map = swapped
        with pytest.raises(WrongPeerError, match="expected shard 0 of 'test', got shard 1"):
            connect(spec.shards[0], patience=HASTY)


def test_unknown_table_and_another_configuration_are_refused_with_the_peer(folder):
    spec = make_spec(folder, 2, BITS)
    with running_shards(spec), connect(spec.shards[0]) as store:
        store.ensure_tables([COUNTER])
        peer = f"shard 0 at {spec.shards[0]} .*: "
        with pytest.raises(UnknownTableError, match=peer + r"expected one of tables \['counter'\], got 'clicks'"):
            store.exchange(push_of(range(10), table="clicks"), None)
        with pytest.raises(UnknownTableError, match=peer + "expected one of tables"):
            store.exchange(None, Pull(TableKeys.of("clicks", keys_of(range(3)))))
        other = COUNTER.model_copy(update={"seed": 7})
        with pytest.raises(TableConflictError, match=peer + r"expected seed 0, got 7 \(table 'counter'"):
            store.ensure_tables([other])
        assert store.tables() == (COUNTER,)


def test_older_client_is_told_to_upgrade(folder):
    spec = make_spec(folder, 1, BITS)
    with running_shards(spec), grpc.insecure_channel(spec.shards[0]) as channel:
        request = pb.HelloRequest(protocol=0, client_version="0.0.1").SerializeToString()
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(f"/{SERVICE}/Hello")(request, timeout=5)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "expected protocol 1" in caught.value.details()
        assert "got 0 (Embershard 0.0.1): upgrade the client" in caught.value.details()


def test_server_that_is_no_shard_is_refused():
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with pytest.raises(WrongPeerError, match=f"server at 127.0.0.1:{port}: expected an Embershard shard"):
            connect(f"127.0.0.1:{port}", patience=HASTY)
        server.stop(0).wait()


# --- servers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_second_server_on_an_address_fails_at_its_start_b54(folder, transport):
    address = f"127.0.0.1:{free_port()}" if transport == "tcp" else f"unix:{folder}/one.sock"
    spec = ClusterSpec(name="one", shards=(address,), tablet_bits=BITS)
    with running_shards(spec) as servers:
        second = ShardServer(ShardOptions(spec=spec), NativeTableGroup(BITS))
        with pytest.raises(OSError, match=f"expected to listen at {address}"):
            second.start()
        second.stop(0)
        with connect(servers[0].address) as store:
            assert store.tables() == ()


def test_a_port_in_use_is_told_with_the_reason(folder):
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        server = ShardServer(ShardOptions(spec=ClusterSpec(shards=(address,))))
        with pytest.raises(OSError, match=f"expected to listen at {address}, got: Address already in use"):
            server.start()
        server.stop()


def test_a_file_that_is_no_socket_is_left_where_it_is(folder):
    path = folder / "notes.txt"
    path.write_text("mine")
    server = ShardServer(ShardOptions(spec=ClusterSpec(shards=(f"unix:{path}",))))
    with pytest.raises(FileExistsError, match=f"expected a socket or nothing at unix:{path}"):
        server.start()
    server.stop()
    assert path.read_text() == "mine"
    assert list(folder.iterdir()) == [path]


def test_twenty_servers_on_port_zero_get_twenty_ports_b54():
    servers = []
    try:
        for number in range(20):
            spec = ClusterSpec(name=f"job-{number}", shards=("127.0.0.1:0",), tablet_bits=1)
            servers.append(ShardServer(ShardOptions(spec=spec, workers=1), NativeTableGroup(1)).start())
        assert len({server.address for server in servers}) == 20
        for number, server in enumerate(servers):
            connect(server.address, cluster=f"job-{number}").close()
    finally:
        for server in servers:
            server.stop(0)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no CPU sets on this system")
def test_shards_share_the_cpus_of_their_machine_by_default(monkeypatch):
    def threads(cpus, *shards):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cpus))
        spec = ClusterSpec(shards=shards)
        return [default_threads(spec, index) for index in range(len(shards))]

    assert threads(2, "unix:/tmp/a") == [2]
    assert threads(2, "unix:/tmp/a", "127.0.0.1:1", "localhost:2") == [1, 1, 1]
    assert threads(64, "unix:/tmp/a") == [8]
    assert threads(6, "10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1") == [3, 3, 6]


def test_garbage_is_refused_and_the_server_stays_up(folder):
    spec = make_spec(folder, 1, BITS)
    random = np.random.default_rng(0)
    with running_shards(spec, NativeTableGroup) as servers, grpc.insecure_channel(spec.shards[0]) as channel:
        methods = (
            "Hello",
            "EnsureTables",
            "Exchange",
            "Assign",
            "Erase",
            "Snapshot",
            "Restore",
            "Cut",
            "Evict",
            "Status",
        )
        for method in methods:
            for size in (1, 10, 200):
                with pytest.raises(grpc.RpcError) as caught:
                    channel.unary_unary(f"/{SERVICE}/{method}")(b"\xff" + random.bytes(size), timeout=5)
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, (method, caught.value.details())
        with connect(spec.shards[0]) as store:
            store.ensure_tables([COUNTER])
            assert read(store, range(3)) == [0.0] * 3
        assert (
            servers[0].metrics.registry.get_sample_value("embershard_shard_refusals_total", {"kind": "WireFormatError"})
            == len(methods) * 3
        )


def test_hundred_client_threads_and_many_connections_leave_nothing_behind(folder):
    spec = make_spec(folder, 1, BITS)
    with running_shards(spec, NativeTableGroup):
        with connect(spec.shards[0]) as store:
            store.ensure_tables([COUNTER])
            with concurrent.futures.ThreadPoolExecutor(100) as pool:
                jobs = [pool.submit(store.exchange, push_of([1]), None) for _ in range(300)]
                assert all(job.result().report.applied == 16 for job in jobs)
            assert read(store, [1]) == [-300.0]
        me = psutil.Process()

        def opened(count):
            for _ in range(count):
                connect(spec.shards[0]).close()
            return threading.active_count(), me.num_fds(), me.memory_info().rss

        opened(20)
        threads, descriptors, memory = opened(50)
        after = opened(300)
        assert after[0] <= threads + 2
        assert after[1] <= descriptors + 10
        assert after[2] < memory + 64_000_000


def test_metrics_health_and_reflection(folder):
    from urllib.request import urlopen

    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

    spec = make_spec(folder, 1, BITS)
    with running_shards(spec, NativeTableGroup, metrics_port=0) as servers, connect(spec.shards[0]) as store:
        store.ensure_tables([COUNTER])
        for batch in range(20):
            pulled = store.exchange(None, Pull(TableKeys.of("counter", keys_of(range(100))))).rows
            store.exchange(push_of(range(100), PushToken(1, 1, batch), seen_pushes=pulled.pushes), None)
        text = urlopen(f"http://{servers[0].metrics_address}/metrics").read().decode()
        for line in (
            "embershard_shard_pulls_total 20.0",
            "embershard_shard_pushed_keys_total 2000.0",
            'embershard_shard_push_parts_total{outcome="applied"}',
            "embershard_shard_rows 100.0",
            'embershard_shard_staleness_bucket{le="0.0"} 20.0',
            'embershard_tablet_pushed_keys_total{tablet="3"}',
        ):
            assert line in text, line
        status = store.status()[0]
        assert (status.pulls, status.pushes, status.rows) == (20, 20, 100)
        assert status.pushed_keys_by_tablet.sum() > 0
        assert status.resident_bytes > 1 << 20
        with grpc.insecure_channel(spec.shards[0]) as channel:
            health = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=SERVICE), timeout=5
            )
            assert health.status == health_pb2.HealthCheckResponse.SERVING
            assert SERVICE in ProtoReflectionDescriptorDatabase(channel).get_services()


def test_process_without_the_server_module_can_fork_after_use_b56(folder):
    """A data loader's fork while a channel exists: the child works on without touching the store."""
    spec = make_spec(folder, 1, BITS)
    program = (
        "import os, warnings; warnings.simplefilter('ignore')\n"
        "from embershard.ps_server import connect\n"
        f"store = connect({spec.shards[0]!r})\n"
        "store.tables()\n"
        "for _ in range(5):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        try: store.tables()\n"
        "        except RuntimeError as error: os._exit(0 if 'es.connect' in str(error) else 2)\n"
        "        os._exit(3)\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "    store.tables()\n"
        "store.close()\n"
    )
    with running_shards(spec):
        done = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
