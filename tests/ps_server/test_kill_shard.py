"""kill -9 of shards under load: nothing acknowledged is lost, nothing is applied twice, rows are what they would be."""

import collections

import pytest
from shard_processes import (
    ITEM,
    TABLET_BITS,
    USER,
    Client,
    ShardProcesses,
    counts_of,
    killed_at_random,
    rows_of,
    run_clients,
)
from unreliable_proxy import TROUBLES, proxied

from embershard.embedding.reference import ReferenceTableGroup
from embershard.ps_server.client import connect
from embershard.ps_server.local_store import LocalStore
from embershard.ps_server.mutation import ApplyPush
from embershard.ps_server.push_log_files import DiskFolder
from embershard.ps_server.push_log_reader import PushLogReader
from embershard.ps_server.shard import Shard
from embershard.ps_server.shard_link import Patience

pytestmark = pytest.mark.process

KILLS = 20


def trained_locally(clients):
    """Rows after the same clients, one after another, in one process where nobody dies."""
    with LocalStore(TABLET_BITS) as store:
        store.ensure_tables([USER, ITEM])
        for client in clients:
            client.train(store)
        return rows_of(store)


def train_under_kills(clients, seed, durability="log", every=8):
    """Rows and counts after the clients trained while shards were killed, what each shard's log holds, and the map."""
    with ShardProcesses(3, durability) as processes:
        with connect(processes.spec.shards[0]) as store:
            store.ensure_tables([USER, ITEM])
            with killed_at_random(processes, seed, KILLS, every) as disturb:
                run_clients(clients, lambda: connect(processes.spec.shards[1]), disturb)
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


def test_one_client_gets_the_rows_of_a_run_without_kills():
    client = Client(unit=1, batches=200)
    rows, counts, logs, _ = train_under_kills([client], seed=1)
    expected = Client(unit=1, batches=200)
    assert rows == trained_locally([expected])
    assert client.counts == expected.counts
    assert all(counts[key] == count for key, count in client.counts.items())
    tokens = [record.token for log in logs for _, record in log if isinstance(record, ApplyPush)]
    assert len(tokens) == 3 * 200  # each shard has each batch once
    assert len(set(tokens)) == 200


def test_two_clients_with_disjoint_keys_get_the_rows_of_a_run_without_kills():
    def clients():
        return [Client(unit=unit, batches=120, first_key=10_000 * unit) for unit in (1, 2)]

    killed = clients()
    rows, counts, _, _ = train_under_kills(killed, seed=2, durability="fsync", every=10)
    assert rows == trained_locally(clients())
    assert {key: counts[key] for key in total_counts(killed)} == total_counts(killed)


def test_two_clients_with_common_keys_get_exact_counts_and_the_rows_of_a_serial_replay():
    clients = [Client(unit=unit, batches=100, keys=400, feedback=False) for unit in (1, 2)]
    rows, counts, logs, tablet_map = train_under_kills(clients, seed=3, every=8)
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
        owned = tablet_map.tablets_of(number)
        replayed.update({key: value for key, value in rows_of(shard).items() if owned[key[0]]})
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
