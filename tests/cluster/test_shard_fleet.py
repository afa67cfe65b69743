"""Shards as `cluster up` starts them: they come back after kill -9 with their rows, and nothing outlives its owner."""

import contextlib
import json
import os
import re
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from small_disk import small_disk

from embershard.cluster.errors import (
    ClusterNotRunningError,
    ClusterRunningError,
    ClusterStartError,
    ClusterStopError,
)
from embershard.cluster.lock_file import lock_holder
from embershard.cluster.shard_fleet import FleetConfig, ShardFleet
from embershard.cluster.supervisor import LOCK_FILE
from embershard.embedding.store import Pull, Push, PushToken
from embershard.embedding.table_config import ColumnBlock, TableConfig
from embershard.embedding.table_group import TableKeys
from embershard.ps_server.client import connect
from embershard.ps_server.errors import DurabilityError
from embershard.ps_server.shard_link import Patience

pytestmark = pytest.mark.process

TABLE = TableConfig(name="user", blocks=(ColumnBlock(dim=4),))
KEYS = TableKeys.of("user", np.arange(64, dtype=np.uint64) << np.uint64(58))
CONFIG = FleetConfig(shards=2, tablet_bits=3, durability="log")


@pytest.fixture
def fleet():
    """A fleet whose folder's path is short enough for sockets; whatever a test leaves is killed."""
    folder = Path(tempfile.mkdtemp(prefix="fleet-"))
    fleet = ShardFleet(folder)
    yield fleet
    if fleet.cluster.is_running():
        fleet.stop()
    shutil.rmtree(folder)


def push(batch):
    gradients = np.random.default_rng(batch).standard_normal(64 * TABLE.dim).astype(np.float32)
    return Push(PushToken(1, 1, batch), KEYS, gradients, np.ones(64, np.uint32), 8, batch + 1, batch)


def counts(store):
    parts = [store.snapshot(tablet).tables["user"].count for tablet in range(1 << CONFIG.tablet_bits)]
    return np.concatenate(parts).tolist()


def pids(fleet):
    return [role.pid for role in fleet.cluster.status()]


def first_refused(store):
    """Batch that no longer fits on the disk, and what is said of it; some fit into the page that the log ends in."""
    for batch in range(1, 20):
        try:
            store.exchange(push(batch), None)
        except DurabilityError as error:
            return batch, error
    raise AssertionError("expected a full disk, got room for all batches")


def wait_until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)


def wait_until_gone(processes):
    """Return when none of the processes runs."""
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert alive == []


def test_killed_shards_come_back_at_their_address_with_their_rows(fleet):
    spec = fleet.start(CONFIG)
    with connect(spec.shards) as store:
        store.ensure_tables([TABLE])
        for batch in range(2):
            store.exchange(push(batch), None)
            os.kill(pids(fleet)[batch], signal.SIGKILL)
            rows = store.exchange(push(batch), Pull(KEYS))  # sent again, too: a duplicate
            assert rows.report.applied == 0
        assert counts(store) == [2] * 64
        assert sum(role.restarts for role in fleet.cluster.status()) == 2
        assert {role.last_exit for role in fleet.cluster.status()} == {-signal.SIGKILL}
        with pytest.raises(ClusterRunningError, match=str(fleet.folder)):
            ShardFleet(fleet.folder).start(CONFIG)
    running = [psutil.Process(pid) for pid in [*pids(fleet), lock_holder(fleet.folder / LOCK_FILE)]]
    fleet.stop()
    wait_until_gone(running)
    with pytest.raises(ClusterNotRunningError):
        fleet.stop()
    left = {path.name for path in fleet.folder.iterdir()}
    assert left == {"cluster.yaml", "logs", "shard-0", "shard-1"}
    words = (fleet.folder / "logs" / "shard-0.log").read_text()
    assert "records replayed" in words
    assert "drained and stopped" in words
    spec = fleet.start(CONFIG)  # up after down: the same rows
    with connect(spec.shards) as store:
        assert counts(store) == [2] * 64


def files_of(fleet):
    """Content of each file but locks and the logs of what was tried, and which folders there are."""
    paths = [path for path in fleet.folder.rglob("*") if "logs" not in path.relative_to(fleet.folder).parts]
    return {path: path.read_bytes() if path.is_file() and path.name != "lock" else None for path in paths}


@pytest.mark.parametrize("change", [{"shards": 3}, {"tablet_bits": 4, "transport": "tcp"}])
def test_refused_start_over_the_push_logs_of_another_cluster_leaves_it_as_it_was(fleet, change):
    fleet.start(CONFIG)
    with connect(fleet.spec().shards) as store:
        store.ensure_tables([TABLE])
        store.exchange(push(0), None)
    fleet.stop()
    before = files_of(fleet)
    with pytest.raises(ClusterStartError, match=r"expected (a|the) push log of"):
        fleet.start(CONFIG.model_copy(update=change))
    assert not fleet.cluster.is_running()
    assert files_of(fleet) == before
    fleet.start(CONFIG)
    with connect(fleet.spec().shards) as store:
        assert counts(store) == [1] * 64


def test_first_start_that_fails_leaves_only_logs(fleet):
    (fleet.folder / "shard-1").write_text("no folder")
    before = files_of(fleet)
    with pytest.raises(ClusterStartError, match="shard-1"):
        fleet.start(CONFIG)
    assert files_of(fleet) == before


def test_killed_shard_comes_back_on_a_full_disk_for_reads_and_takes_pushes_when_there_is_room(fleet):
    with small_disk(fleet.folder / "disk", "4m") as disk:
        full = ShardFleet(disk)
        spec = full.start(CONFIG)
        filler, ready = disk / "filler", disk / "shard-0.ready.json"
        try:
            with connect(spec.shards, patience=Patience(call_seconds=60)) as store:
                store.ensure_tables([TABLE])
                store.exchange(push(0), None)
                expected = store.exchange(None, Pull(KEYS)).rows.values
                with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                    while file.write(bytes(1 << 10)):
                        pass
                os.kill(killed := pids(full)[0], signal.SIGKILL)
                rows = store.exchange(push(0), Pull(KEYS))  # sent again, too: a duplicate
                assert rows.report.applied == 0
                assert np.array_equal(rows.rows.values, expected)
                batch, error = first_refused(store)
                assert re.search(r"no room for record \d+ of the push log, nothing was changed.*shard-\d", str(error))
                assert store.exchange(None, Pull(KEYS)).rows is not None
                filler.unlink()
                store.exchange(push(batch), None)
                assert counts(store) == [batch + 1] * 64
                wait_until(lambda: killed != json.loads(ready.read_text())["pid"] == pids(full)[0])
                assert sum(role.restarts for role in full.cluster.status()) == 1
                for pid in pids(full):
                    os.kill(pid, signal.SIGKILL)
                assert counts(store) == [batch + 1] * 64
        finally:
            filler.unlink(missing_ok=True)
            full.stop()


def test_no_shard_outlives_a_killed_supervisor_and_clients_may_come_first(fleet):
    answers = []

    def early():
        sockets = [f"unix:{fleet.folder}/shard-{index}.socket" for index in range(2)]
        with connect(sockets, patience=Patience(connect_seconds=60)) as store:
            answers.append(store.tablet_bits)

    client = threading.Thread(target=early)
    client.start()
    fleet.start(CONFIG)
    client.join(60)
    assert answers == [CONFIG.tablet_bits]
    shards = [psutil.Process(pid) for pid in pids(fleet)]
    os.kill(lock_holder(fleet.folder / LOCK_FILE), signal.SIGKILL)
    wait_until_gone(shards)
    assert not fleet.cluster.is_running()
    fleet.start(CONFIG)
    assert all(pids(fleet))


def test_of_two_that_start_at_once_one_is_refused_and_the_other_is_reached_at_its_addresses(fleet):
    tcp = CONFIG.model_copy(update={"transport": "tcp"})
    outcomes, gate = [], threading.Barrier(2)

    def start():
        gate.wait()
        try:
            outcomes.append(ShardFleet(fleet.folder).start(tcp))
        except ClusterRunningError as error:
            outcomes.append(error)

    starters = [threading.Thread(target=start) for _ in range(2)]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join(60)
    (refused,) = [outcome for outcome in outcomes if isinstance(outcome, ClusterRunningError)]
    # It waits a moment for the other one, which may be up by then.
    expected = f"expected no cluster in {fleet.folder}, got one that "
    assert str(refused) in (f"{expected}process {os.getpid()} starts", f"{expected}runs; take it down first")
    (spec,) = [outcome for outcome in outcomes if not isinstance(outcome, ClusterRunningError)]
    assert fleet.spec() == spec
    with connect(spec.shards) as store:
        store.ensure_tables([TABLE])


def test_a_supervisor_that_does_not_end_is_no_cluster_that_is_down(fleet, monkeypatch):
    fleet.start(CONFIG)
    supervisor = lock_holder(fleet.folder / LOCK_FILE)
    os.kill(supervisor, signal.SIGSTOP)
    monkeypatch.setattr("embershard.cluster.local_cluster.STOP_SECONDS", 0.5)
    try:
        with pytest.raises(ClusterStopError, match=rf"expected the supervisor \(process {supervisor}\) .* to end"):
            fleet.stop()
    finally:
        os.kill(supervisor, signal.SIGCONT)
    monkeypatch.undo()
    wait_until_gone([psutil.Process(supervisor)])


def test_sockets_of_a_folder_with_a_long_path_lie_elsewhere_and_are_gone_afterwards(tmp_path, monkeypatch):
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    fleet = ShardFleet(deep / "cluster")
    spec = fleet.start(CONFIG)
    place = Path(spec.shards[0].removeprefix("unix:")).parent
    try:
        assert place.parent == Path("/tmp")
        with connect(spec.shards) as store:
            store.ensure_tables([TABLE])
    finally:
        fleet.stop()
    assert not place.exists()
