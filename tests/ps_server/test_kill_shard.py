"""Killed shards, harmed calls and failing disks: nothing acknowledged is lost and nothing is applied twice."""

import collections
import contextlib
import errno
import functools
import itertools
import os
import resource
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from shard_processes import (
    ITEM,
    TABLET_BITS,
    USER,
    Client,
    Progress,
    ShardProcesses,
    counts_of,
    killed_at_random,
    rows_of,
    run_clients,
    spread,
)
from unreliable_proxy import TROUBLES, proxied

from embershard.embedding.checkpoint import TrainingState, write_checkpoint
from embershard.embedding.reference import ReferenceTableGroup
from embershard.embedding.store import Push, PushToken
from embershard.embedding.table_group import TableKeys
from embershard.ps_server import shard_link, shared_memory
from embershard.ps_server.client import connect
from embershard.ps_server.cluster_spec import ClusterSpec
from embershard.ps_server.errors import CorruptPushLogError, DurabilityError, PushLogInUseError, PushLogMismatchError
from embershard.ps_server.local_store import LocalStore
from embershard.ps_server.mutation import ApplyPush
from embershard.ps_server.push_log_files import DiskFile, DiskFolder
from embershard.ps_server.push_log_format import segment_name
from embershard.ps_server.push_log_reader import PushLogReader
from embershard.ps_server.server import ShardOptions, ShardServer
from embershard.ps_server.shard import Shard
from embershard.ps_server.shard_link import Patience, ShardLink

pytestmark = pytest.mark.process

KILLS = 20
SHARED, SOCKET = True, False
"""How a client's arrays travel: through memory that it shares with the shard, or through the socket."""


class Transports:
    """Connects clients whose exchanges all go through shared memory, however small, or all through the socket."""

    def __init__(self, monkeypatch):
        self.exchanges = collections.Counter()
        exchange = ShardLink._exchange_in_memory

        def counted(link, *arguments):
            answer = exchange(link, *arguments)
            self.exchanges["failed" if answer is None else "shared"] += 1
            return answer

        monkeypatch.setattr(shard_link, "SHARED_BYTES", 0)
        monkeypatch.setattr(ShardLink, "_exchange_in_memory", counted)

    def connects(self, address, *shares):
        """A function that connects one client after another, each as `shares` says of it."""
        each = itertools.cycle(shares)
        return lambda: connect(address, shared_memory=next(each))

    def check(self, clients, shares):
        """Every client's exchanges went as it was told, but for those that a kill cut off."""
        sharing = sum(client.batches for client in clients) * sum(shares) // len(shares)
        if sharing:
            assert self.exchanges["shared"] + 3 * KILLS > 3 * sharing  # each batch has keys on each of three shards
            assert self.exchanges["failed"]
        else:
            assert not self.exchanges


@pytest.fixture
def transports(monkeypatch):
    return Transports(monkeypatch)


def trained_locally(clients):
    """Rows after the same clients, one after another, in one process where nobody dies."""
    with LocalStore(TABLET_BITS) as store:
        store.ensure_tables([USER, ITEM])
        for client in clients:
            client.train(store)
        return rows_of(store)


def train_under_kills(clients, seed, transports, shares, durability="log", every=8):
    """Rows and counts after the clients trained while shards were killed, what each shard's log holds, and the map."""
    if any(shares) and not shared_memory.IS_POSSIBLE:
        pytest.skip("no memfd on this system")
    with ShardProcesses(3, durability) as processes:
        with connect(processes.spec.shards[0], shared_memory=False) as store:
            store.ensure_tables([USER, ITEM])
            with killed_at_random(processes, seed, KILLS, every) as disturb:
                run_clients(clients, transports.connects(processes.spec.shards[1], *shares), disturb)
            transports.check(clients, shares)
            rows, counts = rows_of(store), counts_of(store)
        assert processes.stop() == [0, 0, 0]
        logs = [list(log_of(options).records()) for options in processes.options]
    return rows, counts, logs, processes.spec.first_map()


def train_through_proxies(clients, seed, kills):
    """Rows and counts after the clients trained through proxies that harm calls, while some shards were killed."""
    patience = Patience(attempt_seconds=0.5, connect_seconds=20)
    with ShardProcesses(3) as processes, proxied(processes.spec, processes.folder, seed) as (addresses, proxies):
        with connect(processes.spec.shards[0]) as store:
            store.ensure_tables([USER, ITEM])
            with killed_at_random(processes, seed, kills, every=20) as disturb:
                run_clients(clients, lambda: connect(addresses, patience=patience), disturb)
            rows, counts = rows_of(store), counts_of(store)
        did = sum((proxy.did for proxy in proxies), collections.Counter())
        assert all(did[trouble] for trouble in TROUBLES), did
    return rows, counts


def log_of(options):
    return PushLogReader(DiskFolder(options.folder / "push_log"))


def total_counts(clients):
    total = {}
    for client in clients:
        for key, count in client.counts.items():
            total[key] = total.get(key, 0) + count
    return total


@pytest.mark.parametrize("shares", [SHARED, SOCKET], ids=["shared", "socket"])
def test_one_client_gets_the_rows_of_a_run_without_kills(shares, transports):
    client = Client(unit=1, batches=200)
    rows, counts, logs, _ = train_under_kills([client], 1, transports, [shares])
    expected = Client(unit=1, batches=200)
    assert rows == trained_locally([expected])
    assert client.counts == expected.counts
    assert all(counts[key] == count for key, count in client.counts.items())
    tokens = [record.token for log in logs for _, record in log if isinstance(record, ApplyPush)]
    assert len(tokens) == 3 * 200  # each shard has each batch once
    assert len(set(tokens)) == 200


def test_two_clients_with_disjoint_keys_get_the_rows_of_a_run_without_kills(transports):
    def clients():
        return [Client(unit=unit, batches=120, first_key=10_000 * unit) for unit in (1, 2)]

    killed = clients()
    rows, counts, _, _ = train_under_kills(killed, 2, transports, [SHARED, SOCKET], durability="fsync", every=10)
    assert rows == trained_locally(clients())
    assert {key: counts[key] for key in total_counts(killed)} == total_counts(killed)


@pytest.mark.parametrize("shares", [SHARED, SOCKET], ids=["shared", "socket"])
def test_two_clients_with_common_keys_get_exact_counts_and_the_rows_of_a_serial_replay(shares, transports):
    clients = [Client(unit=unit, batches=100, keys=400, feedback=False) for unit in (1, 2)]
    rows, counts, logs, tablet_map = train_under_kills(clients, 3, transports, [shares], every=8)
    assert counts == total_counts(clients)
    replayed = {}
    for number, log in enumerate(logs):
        shard = Shard(ReferenceTableGroup(TABLET_BITS))  # the definition, not the tables the shards ran on
        batches = {1: [], 2: []}
        for _, record in log:
            shard.apply(record)
            if isinstance(record, ApplyPush):
                batches[record.token.unit].append(record.token.batch)
        assert batches == {1: list(range(100)), 2: list(range(100))}
        assert shard.owned.tolist() == tablet_map.tablets_of(number).tolist()
        replayed.update(rows_of(shard, np.flatnonzero(shard.owned).tolist()))
    assert rows == replayed


def test_calls_dropped_delayed_doubled_and_sent_again_leave_the_rows_of_a_run_without_trouble():
    def clients():
        return [Client(unit=unit, batches=120, first_key=10_000 * unit) for unit in (1, 2)]

    harmed = clients()
    rows, counts = train_through_proxies(harmed, seed=4, kills=3)
    assert rows == trained_locally(clients())
    assert {key: counts[key] for key in total_counts(harmed)} == total_counts(harmed)
    assert all(client.duplicates for client in harmed)


def test_calls_dropped_delayed_doubled_and_sent_again_by_clients_with_common_keys_are_counted_once():
    clients = [Client(unit=unit, batches=100, keys=400, feedback=False) for unit in (1, 2)]
    _, counts = train_through_proxies(clients, seed=5, kills=3)
    assert counts == total_counts(clients)
    assert all(client.duplicates for client in clients)


class KillingSource:
    """A store whose shard dies in the middle of a checkpoint."""

    def __init__(self, store, kill):
        self._store, self._kill = store, kill

    def __getattr__(self, name):
        return getattr(self._store, name)

    def snapshot(self, tablet, since_version=None):
        if tablet == 1 << (TABLET_BITS - 1):
            self._kill()
        return self._store.snapshot(tablet, since_version)


def test_checkpoints_taken_under_load_and_kills_trim_the_logs_and_shards_start_from_them(transports):
    client = Client(unit=1, batches=300)
    with ShardProcesses(3) as processes, connect(processes.spec.shards) as store:
        store.ensure_tables([USER, ITEM])

        def save_and_kill(progress, is_over):
            """Checkpoints beside the training; a shard dies in the middle of, during or after each."""
            rng = np.random.default_rng(6)
            for step in range(6):
                progress.raise_limit(40 * step + 40)  # training goes on beside the checkpoint, but not past it
                progress.wait_for(40 * step + 5, is_over)
                assert not is_over()
                kill = functools.partial(processes.restart, int(rng.integers(0, 3)))
                with connect(processes.spec.shards) as saver, ThreadPoolExecutor(1) as pool:
                    dying = pool.submit(kill) if step % 3 == 1 else None
                    source = KillingSource(saver, kill) if step % 3 == 0 else saver
                    path = write_checkpoint(processes.folder / "checkpoints", source, TrainingState(step=step))
                    if dying is not None:
                        dying.result()
                    # Committed by then; a second time it tells whether a shard still needs an older checkpoint.
                    is_everywhere = saver.commit_checkpoint(path)
                    assert step % 3 == 1 or is_everywhere == (step % 3 == 2)
                if step % 3 == 2:
                    kill()
            progress.raise_limit(float("inf"))

        connects = transports.connects(processes.spec.shards, SHARED)
        run_clients([client], connects, save_and_kill, Progress(limit=40))
        expected = trained_locally([Client(unit=1, batches=300)])
        assert rows_of(store) == expected
        for index in range(3):
            assert log_of(processes.options[index]).first > 0
            processes.restart(index)
        assert rows_of(store) == expected
        counts = counts_of(store)
        assert {key: counts[key] for key in client.counts} == client.counts


def push_of(batch, seed=0):
    """A push to one table with counts that are easy to sum."""
    rng = np.random.default_rng((seed, batch))
    keys = TableKeys.of("user", spread(np.arange(50), 1))
    gradients = rng.standard_normal(50 * USER.dim).astype(np.float32)
    return Push(PushToken(1, 1, batch), keys, gradients, np.ones(50, np.uint32), 32, batch + 1, 1000 + batch)


def test_full_disk_refuses_pushes_loses_nothing_and_is_over_when_there_is_room():
    with ShardProcesses(1) as processes, connect(processes.spec.shards) as store:
        store.ensure_tables([USER])
        for batch in range(3):
            store.exchange(push_of(batch), None)
        before, pid = rows_of(store), processes.processes[0].pid
        # A limit on the size of files is a full disk as far as the shard can tell.
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (processes.log_bytes(0) + 200, resource.RLIM_INFINITY))
        for _ in range(3):
            with pytest.raises(DurabilityError, match=r"shard 0 .*no room for record 5 of the push log"):
                store.exchange(push_of(3), None)
        assert rows_of(store) == before
        processes.kill(0)
        processes.start(0)
        assert rows_of(store) == before
        resource.prlimit(processes.processes[0].pid, resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))
        with pytest.raises(DurabilityError):
            store.exchange(push_of(3), None)
        resource.prlimit(processes.processes[0].pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        assert store.exchange(push_of(3), None).report.duplicate == 0
        assert set(counts_of(store).values()) == {4}


def test_failed_disk_stops_the_shard_and_clients_go_on_with_its_successor(monkeypatch):
    def broken(_file):
        raise OSError(errno.EIO, "injected")

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        spec = ClusterSpec(name="disk", shards=(f"unix:{folder}/0.sock",), tablet_bits=TABLET_BITS)
        options = ShardOptions(spec=spec, folder=Path(folder) / "shard", durability="fsync")
        server = ShardServer(options).start()
        store = stack.enter_context(connect(spec.shards))
        store.ensure_tables([USER])
        store.exchange(push_of(0), None)
        monkeypatch.setattr(DiskFile, "sync", broken)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(store.exchange, push_of(1), None)
            assert server.service.stopping.wait(20)
            server.stop(1.0)
            monkeypatch.undo()
            assert "injected" in str(server.service.failure)
            successor = ShardServer(options).start()
            stack.callback(successor.stop, 1.0)
            report = answer.result(60).report
        assert report.applied + report.duplicate == 1 << TABLET_BITS
        assert set(counts_of(store).values()) == {2}


def test_shard_does_not_start_on_a_damaged_a_foreign_or_a_used_push_log():
    with tempfile.TemporaryDirectory() as folder:
        spec = ClusterSpec(
            name="start", shards=(f"unix:{folder}/0.sock", f"unix:{folder}/1.sock"), tablet_bits=TABLET_BITS
        )
        options = ShardOptions(spec=spec, folder=Path(folder) / "shard", durability="log")
        server = ShardServer(options).start()
        with pytest.raises(PushLogInUseError, match=f"got process {os.getpid()}"):
            ShardServer(options)
        server.service.adopt(spec.first_map(), 0)
        server.stop(1.0)
        for other in (
            options.model_copy(update={"spec": spec.model_copy(update={"name": "other"})}),
            options.model_copy(update={"index": 1}),
            options.model_copy(update={"spec": spec.model_copy(update={"shards": spec.shards[:1]})}),
        ):
            with pytest.raises(PushLogMismatchError, match="push_log"):
                ShardServer(other)
        segment = options.folder / "push_log" / segment_name(0)
        data = bytearray(segment.read_bytes())
        data[len(data) // 2] ^= 16
        segment.write_bytes(data)
        with pytest.raises(CorruptPushLogError, match=f"{segment.name}, offset"):
            ShardServer(options)
        assert segment.read_bytes() == data
