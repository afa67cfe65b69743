"""Changing, comparing, profiling and ranking features from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from embershard.cli.main import run

from ..end_to_end.job import Job


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job.make(tmp_path, rows=6000)


def told(capsys: pytest.CaptureFixture[str], *words: str) -> object:
    code = run([*words, "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


def test_a_feature_is_added_compared_and_removed(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    before = job.folder / "before.yaml"
    before.write_text(job.path.read_text())
    added = told(capsys, "features", "add", str(job.path), "name=city", "kind=categorical", "id=text")
    assert added == {"path": str(job.path), "version": 2, "features": ["user", "item", "tags", "price", "city"]}
    found = told(capsys, "features", "diff", str(before), str(job.path))
    assert isinstance(found, dict)
    assert (found["added"], found["removed"], found["changed"]) == (["city"], [], [])
    assert run(["features", "diff", str(before), str(job.path)]) == 0
    assert capsys.readouterr().out == "+ city\n"
    removed = told(capsys, "features", "remove", str(job.path), "city")
    assert isinstance(removed, dict)
    assert removed["version"] == 3
    assert run(["features", "diff", str(before), str(job.path)]) == 0
    assert capsys.readouterr().out == "no difference\n"


def test_a_feature_that_cannot_be_is_refused_and_the_file_stays(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    before = job.path.read_bytes()
    message = job.fail(capsys, "features", "add", str(job.path), "name=user", "kind=categorical")
    assert "user" in message
    message = job.fail(capsys, "features", "remove", str(job.path), "usr")
    assert "did you mean 'user'" in message
    assert job.path.read_bytes() == before


def test_profile_says_what_the_rows_hold_and_saves_it(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    folder = job.folder / "profile"
    found = told(capsys, "features", "profile", str(job.path), "--to", str(folder))
    assert isinstance(found, dict)
    by_name = {row["feature"]: row for row in found["features"]}
    assert by_name["user"]["distinct"] == 300
    assert by_name["item"]["distinct"] == 60
    assert by_name["item"]["label information"] > 5 * by_name["user"]["label information"]
    assert pq.read_table(folder / "profile.parquet").num_rows == 4
    assert (folder / "profile.png").read_bytes().startswith(b"\x89PNG")


def test_importance_ranks_the_planted_feature_first(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.train(capsys, "train.epochs=2")
    ranked = told(capsys, "features", "importance", str(job.path))
    assert isinstance(ranked, list)
    by_name = {row["feature"]: row for row in ranked}
    assert ranked[0]["feature"] == "item"
    assert by_name["item"]["auc_loss"] > 0.1 > by_name["user"]["auc_loss"]
    assert by_name["item"]["gradient_signal"] > by_name["user"]["gradient_signal"]
    assert by_name["price"]["gradient_signal"] is None
