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


def test_profile_goes_by_the_importance_that_was_saved(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.train(capsys, "train.epochs=2")
    saved = job.folder / "ranks" / "importance.json"
    ranked = told(capsys, "features", "importance", str(job.path), "--save", str(saved))
    assert isinstance(ranked, list)
    assert json.loads(saved.read_text()) == ranked
    words = ["features", "profile", str(job.path), "--to", str(job.folder / "profile"), "--no-picture"]
    found = told(capsys, *words, "--importance", str(saved))
    assert isinstance(found, dict)
    lost = {row["feature"]: row["auc_loss"] for row in ranked}
    for row in [*found["features"], *found["numbers"]]:
        assert row["AUC loss"] == lost[row["feature"]]
    # As if the model had no use for items, which tell most of the label: the suggestion follows the file.
    without_items = [{**row, "auc_loss": -0.001 if row["feature"] == "item" else 0.2} for row in ranked]
    saved.write_text(json.dumps(without_items))
    found = told(capsys, *words, "--importance", str(saved))
    assert isinstance(found, dict)
    left_out = [(one["feature"], one["reason"]) for one in found["suggestions"] if one["action"] == "leave out"]
    assert left_out == [("item", "the trained model loses no AUC without its values")]
    by_label = told(capsys, *words)
    assert isinstance(by_label, dict)
    assert "item" not in [one["feature"] for one in by_label["suggestions"] if one["action"] == "leave out"]
    assert "AUC loss" not in by_label["features"][0]


def test_a_file_that_is_no_importance_is_refused(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["features", "profile", str(job.path), "--importance"]
    path = job.folder / "importance.json"
    before = sorted(job.folder.rglob("*"))
    assert "importance.json" in job.fail(capsys, *words, str(path))
    for text, expected in (
        ("{", "expected what `features importance --save` writes"),
        ('{"auc": 1}', "expected a feature and its auc_loss at $[0]"),
        ('[{"feature": "user", "auc_loss": null}]', "expected a feature and its auc_loss at $[0]"),
        ('[{"feature": "user", "auc_loss": 0.1}]', "got none of ['item', 'tags', 'price']"),
    ):
        path.write_text(text)
        message = job.fail(capsys, *words, str(path))
        assert str(path) in message
        assert expected in message
    path.unlink()
    assert sorted(job.folder.rglob("*")) == before
