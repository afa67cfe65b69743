"""Shards as real processes that can be killed and started again, and clients that train against them."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from embershard.embedding.store import Pull, Push, PushToken
from embershard.embedding.table_config import Adagrad, Adam, ColumnBlock, Score, TableConfig
from embershard.embedding.table_group import TableKeys
from embershard.ps_server.cluster_spec import ClusterSpec
from embershard.ps_server.server import ShardOptions, serve

# Each process is forked from one that has imported everything: a shard is back a tenth of a second after its end.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["embershard.ps_server.server", "embershard.embedding.native_table_group"])

START_SECONDS = 60.0
TABLET_BITS = 5
USER = TableConfig(name="user", blocks=(ColumnBlock(dim=8, optimizer=Adagrad(lr=0.1)),))
ITEM = TableConfig(
    name="item",
    blocks=(ColumnBlock(name="linear", dim=1, optimizer=Adam(lr=0.05)), ColumnBlock(name="factors", dim=4)),
    eviction=(Score(min_score=1.0, half_life_seconds=60, click_weight=1.0),),  # counts clicks; nobody evicts
)


class ShardProcesses:
    """A cluster of shard processes on Unix sockets; `start` brings a killed shard back on what is on its disk."""

    def __init__(self, shards=3, durability="log", **options):
        self.folder = Path(tempfile.mkdtemp(prefix="shards-"))
        sockets = tuple(f"unix:{self.folder}/{index}.sock" for index in range(shards))
        self.spec = ClusterSpec(name="kill", shards=sockets, tablet_bits=TABLET_BITS)
        self.options = [
            ShardOptions(
                spec=self.spec,
                index=index,
                folder=self.folder / f"shard-{index}",
                durability=durability,
                ready_file=self.folder / f"ready-{index}.json",
                **options,
            )
            for index in range(shards)
        ]
        self.processes = [None] * shards
        self.pids = set()

    def __enter__(self):
        for index in range(len(self.processes)):
            self.start(index)
        return self

    def __exit__(self, *error):
        for process in self.processes:
            if process is not None and process.is_alive():
                process.kill()
                process.join()
        shutil.rmtree(self.folder)

    def start(self, index):
        """Start a shard; returns when it answers."""
        ready = self.options[index].ready_file
        ready.unlink(missing_ok=True)
        process = _FORKS.Process(target=serve, args=(self.options[index],), daemon=True)
        process.start()
        self.processes[index] = process
        self.pids.add(process.pid)
        wait_until(lambda: ready.exists() or not process.is_alive())
        assert process.is_alive(), f"shard {index} ended with {process.exitcode} at its start"

    def kill(self, index):
        """kill -9 of a shard."""
        os.kill(self.processes[index].pid, signal.SIGKILL)
        self.processes[index].join(START_SECONDS)

    def restart(self, index):
        """Kill a shard and start it again."""
        self.kill(index)
        self.start(index)

    def log_bytes(self, index):
        """Bytes in a shard's push log files."""
        with os.scandir(self.options[index].folder / "push_log") as files:
            return sum(file.stat().st_size for file in files)

    def stop(self):
        """SIGTERM for all; each drains and ends."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.join(START_SECONDS)
        return [process.exitcode for process in self.processes]


class Progress:
    """Counts batches over all clients, wakes who waits for a number, and holds the clients at `limit`."""

    def __init__(self, limit=float("inf")):
        self._changed = threading.Condition()
        self._batches = 0
        self._limit = limit

    def add(self):
        with self._changed:
            self._batches += 1
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._batches < self._limit, START_SECONDS)

    def raise_limit(self, limit):
        with self._changed:
            self._limit = limit
            self._changed.notify_all()

    def wait_for(self, batches, is_over):
        """Return when `batches` are through or the clients are done."""
        with self._changed:
            self._changed.wait_for(lambda: self._batches >= batches or is_over(), START_SECONDS)
            return self._batches


@dataclasses.dataclass
class Client:
    """A seeded worker: batch i has the same keys on every run and gradients that follow from the rows it pulled.

    first_key, keys: range of its ids.   feedback: whether gradients depend on pulled rows.
    """

    unit: int
    batches: int
    first_key: int = 0
    keys: int = 3000
    feedback: bool = True
    seed: int = 0
    counts: dict = dataclasses.field(default_factory=dict)
    duplicates: int = 0

    def train(self, store, progress=None):
        """All batches in order: push of the batch before, pull of this one; now and then another verb."""
        push = None
        for batch in range(self.batches + 1):
            rng = np.random.default_rng((self.seed, self.unit, batch))
            pull = None if batch == self.batches else Pull(self._keys(rng))
            answer = store.exchange(push, pull)
            if answer.report is not None:
                self.duplicates += answer.report.duplicate
            if pull is not None:
                push = self._push(rng, batch, pull.keys, answer.rows.values)
                if batch % 16 == 7:
                    self._other_verb(rng, store, batch)
            if progress is not None:
                progress.add()

    def _keys(self, rng):
        def some(table):
            ids = np.sort(rng.choice(self.keys, int(rng.integers(20, 300)), replace=False)) + self.first_key
            return spread(ids, table)

        return TableKeys.concat({"user": some(1), "item": some(2)})

    def _push(self, rng, batch, keys, values):
        gradients = rng.standard_normal(len(values), np.float32)
        if self.feedback:
            gradients += values
        occurrences = rng.integers(1, 4, len(keys.keys)).astype(np.uint32)
        for index, table in enumerate(keys.tables):
            part = slice(int(keys.splits[index]), int(keys.splits[index + 1]))
            for key, count in zip(keys.keys[part].tolist(), occurrences[part].tolist(), strict=True):
                self.counts[table, key] = self.counts.get((table, key), 0) + count
        token = PushToken(self.unit, 1, batch)
        clicks = occurrences // np.uint32(2)
        return Push(token, keys, gradients, occurrences, 32, batch + 1, 1000 + batch, clicks=clicks)

    def _other_verb(self, rng, store, batch):
        if not self.feedback:  # clients that share keys only push: then counts are sums
            return
        keys = TableKeys.of("user", spread(np.sort(rng.choice(self.keys, 9, replace=False)) + self.first_key, 1))
        if batch % 32 == 7:
            store.assign(keys, rng.standard_normal(9 * USER.dim).astype(np.float32), if_absent=True)
        else:
            store.cut(int(rng.integers(0, 1 << TABLET_BITS)))
            store.complete_unit(1 << 32 | self.unit << 16 | batch)


def spread(ids, salt):
    """Keys over all tablets for small ids."""
    return (ids.astype(np.uint64) + np.uint64(salt << 20)) * np.uint64(0x9E3779B97F4A7C15)


def run_clients(clients, connect_one, disturb=None, progress=None):
    """Train all clients at once, each over a store of its own, while `disturb(progress, is_over)` does its harm."""
    progress, errors = progress or Progress(), []

    def work(client):
        try:
            with connect_one() as store:
                client.train(store, progress)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(client,), daemon=True) for client in clients]
    for thread in threads:
        thread.start()

    def is_over():
        return not any(thread.is_alive() for thread in threads)

    if disturb is not None:
        disturb(progress, is_over)
    for thread in threads:
        thread.join(240)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


def rows_of(source, tablets=range(1 << TABLET_BITS)):
    """Rows of tablets by table, of a store or shard: arrays to compare to the bit."""
    return {
        (tablet, name): {
            field: getattr(rows, field).tobytes()
            for field in ("keys", "weights", "state", "count", "touched_at", "clicks")
        }
        for tablet in tablets
        for name, rows in source.snapshot(tablet).tables.items()
    }


def counts_of(source):
    """Count of every row with any, by (table, key)."""
    return {
        (name, key): count
        for tablet in range(1 << TABLET_BITS)
        for name, rows in source.snapshot(tablet).tables.items()
        for key, count in zip(rows.keys.tolist(), rows.count.tolist(), strict=True)
        if count
    }


def wait_until(condition, seconds=START_SECONDS, pause=0.002):
    """Return when `condition()`, looked at every `pause` seconds; AssertionError after `seconds`."""
    over, deadline = threading.Event(), time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        if pause:
            over.wait(pause)
    raise AssertionError(f"waited {seconds} s in vain")


@contextlib.contextmanager
def killed_at_random(processes, seed, kills, every):
    """A `disturb` that kills a random shard after about `every` more batches, `kills` times.

    Every other kill comes at a random moment, the others as soon as the shard's push log grew: a record is there, and
    its answer is most likely not out yet."""
    done = []

    def disturb(progress, is_over):
        rng, target = np.random.default_rng(seed), 0
        moment = threading.Event()
        for kill in range(kills):
            target += int(rng.integers(every // 2, every + 1))
            target = max(target, progress.wait_for(target, is_over))
            if is_over():
                return
            index = int(rng.integers(0, len(processes.processes)))
            if kill % 2:
                before = processes.log_bytes(index)
                wait_until(lambda: processes.log_bytes(index) != before or is_over(), pause=0)  # noqa: B023
            else:
                moment.wait(float(rng.uniform(0, 0.006)))
            processes.restart(index)
            done.append(index)

    yield disturb
    assert len(done) == kills, f"the clients were through after {len(done)} kills"
    assert len(processes.pids) == len(processes.processes) + kills
