"""The status of a fleet while one of its shards is down."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from embershard.cluster.errors import ClusterNotRunningError
from embershard.cluster.fleet_status import fleet_status
from embershard.cluster.shard_fleet import FleetConfig, ShardFleet

pytestmark = pytest.mark.process


@pytest.fixture
def fleet() -> Iterator[ShardFleet]:
    folder = Path(tempfile.mkdtemp(prefix="fleet-"))
    fleet = ShardFleet(folder)
    fleet.start(FleetConfig(shards=2, tablet_bits=3))
    yield fleet
    fleet.stop()
    shutil.rmtree(folder)


def test_a_stopped_shard_is_listed_and_the_other_answers(fleet: ShardFleet) -> None:
    quiet = fleet_status(fleet, interval_seconds=0.2)
    assert [(shard.index, shard.state, shard.tablets, shard.restarts) for shard in quiet] == [
        (0, "answers", 4, 0),
        (1, "answers", 4, 0),
    ]
    assert all(shard.pulls_per_second == 0.0 for shard in quiet)
    pid = quiet[1].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    try:
        stopped = fleet_status(fleet, interval_seconds=0.0)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert time.monotonic() - began < 15
    assert [shard.state for shard in stopped] == ["answers", "silent"]
    assert stopped[1].status is None
    assert stopped[1].cpu_share is None


def test_a_folder_without_a_cluster_is_said_to_have_none(tmp_path: Path) -> None:
    with pytest.raises(ClusterNotRunningError, match=f"expected a running cluster in {tmp_path}/none, got none"):
        fleet_status(ShardFleet(tmp_path / "none"))
