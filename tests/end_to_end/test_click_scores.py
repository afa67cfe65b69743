"""`embershard train` with a show/click score: the log's clicks are on the rows, and decide which of them stay."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from embershard.cli.main import run
from embershard.embedding.checkpoint import open_checkpoint

from .job import Job, assert_equal_bits, weights

SCORE = "{kind: score, min_score: 10, half_life_seconds: 86400, show_weight: 0.1, click_weight: 1.0}"
WORDS = (f"model.tables={{eviction: [{SCORE}]}}", "data.evaluate=null", "train.epochs=1")
CLUSTER = ("store.kind=cluster", "store.shards=2", "store.durability=log")


def counted(checkpoint: str, table: str) -> list[tuple[int, int]]:
    """(count, clicks) of each row of a table, sorted."""
    found: list[tuple[int, int]] = []
    with open_checkpoint(checkpoint) as opened:
        for tablet in range(1 << opened.tablet_bits):
            rows = opened.snapshot(tablet).tables[table]
            found += zip(rows.count.tolist(), rows.clicks.tolist(), strict=True)
    return sorted(found)


def logged(folder: Path, column: str) -> list[tuple[int, int]]:
    """(rows, clicks) of each value of a column of the click log, sorted."""
    log = pq.read_table(folder / "clicks.parquet")
    _, place, counts = np.unique(log[column].to_numpy(), return_inverse=True, return_counts=True)
    clicks = np.bincount(place.reshape(-1), weights=log["click"].to_numpy()).astype(int)
    return sorted(zip(counts.tolist(), clicks.tolist(), strict=True))


def stays(entry: tuple[int, int]) -> bool:
    count, clicks = entry
    return 0.1 * (count - clicks) + 1.0 * clicks >= 10


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A third of the usual click log."""
    return Job.make(tmp_path, rows=8_000)


@pytest.mark.parametrize("store", [(), CLUSTER], ids=["local", "cluster"])
def test_rows_have_the_clicks_of_the_log_and_leave_by_their_score(
    job: Job, capsys: pytest.CaptureFixture[str], store: tuple[str, ...]
) -> None:
    facts = job.train(capsys, *WORDS, *store)
    left = {}
    for column in ("user", "item"):
        entries = logged(job.folder, column)
        assert counted(facts["checkpoint"], column) == [entry for entry in entries if stays(entry)]
        left[column] = sum(not stays(entry) for entry in entries)
    left = {column: rows for column, rows in left.items() if rows}
    assert facts["evicted"] == left
    report = json.loads(Path(facts["report"]).read_text())
    assert {table["table"]: table["evicted"] for table in report["tables"] if table["evicted"]} == left
    assert 50 < sum(stays(entry) for entry in logged(job.folder, "user")) < 250


def test_a_cluster_and_a_resumed_run_end_with_the_bits_of_a_local_run(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*WORDS, "train.evict_every=40"]
    straight = job.train(capsys, *words, "output.name=straight", "output.checkpoint_every=60")
    job.train(capsys, *words, *CLUSTER, "train.max_steps=60", "output.name=stopped")
    resumed = job.train(capsys, *words, *CLUSTER, "output.name=stopped", "--resume")
    expected = weights(straight["checkpoint"])
    assert sum(int(array.sum()) for name, array in expected.items() if name.endswith("/clicks")) > 0
    assert_equal_bits(expected, weights(resumed["checkpoint"]))
    assert resumed["evicted"] == straight["evicted"]
    assert min(straight["evicted"].values()) > 0


def test_rows_that_make_room_for_new_ones_count_as_evicted(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("model.tables={eviction: [{kind: capacity, capacity_rows: 256}]}", "data.evaluate=null", "train.epochs=1")
    assert run(["train", str(job.path), *words, "output.name=text"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("evicted: ")]
    facts = job.train(capsys, *words)
    assert facts["evicted"]["user"] > 100, facts["evicted"]
    assert line == "evicted: " + ", ".join(f"{rows:,} rows of {table}" for table, rows in facts["evicted"].items())
