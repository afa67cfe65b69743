"""The commands one after the other on one job: what they print, write and agree on."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from embershard.cli.main import run
from embershard.cli.run_folder import RunFolder
from embershard.feature_map.config_file import read_yaml

from .job import Job, assert_equal_bits, clicks, weights


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    code = run([*words, "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


def test_a_run_leaves_what_its_layout_says(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    facts = job.train(capsys, "train.epochs=2", "output.tensorboard=true", "output.log_every=50")
    assert set(facts) == {
        "auc", "logloss", "examples", "examples_per_second", "seconds", "rows", "checkpoint", "report",
        "evicted", "held_out", "non_finite", "clipped",
    }  # fmt: skip
    folder = Path(facts["report"]).parent
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoints", "config.yaml", "metrics.jsonl", "report.json", "report.md", "tensorboard",
    ]  # fmt: skip
    assert folder == job.folder / "runs" / "run-0001"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["phase"] == "evaluate"] == [302, 604]
    assert [line["step"] for line in lines if line["phase"] == "train"] == [50 * n for n in range(1, 13)]
    report = json.loads((folder / "report.json").read_text())
    assert report["auc"] == facts["auc"] == lines[-1]["auc"]
    assert [table["table"] for table in report["tables"]] == ["user", "item", "tags"]
    assert list((folder / "tensorboard").iterdir())
    assert facts["auc"] > 0.70
    again = job.train(capsys, "train.epochs=1")
    assert Path(again["report"]).parent.name == "run-0002"


def test_the_saved_configuration_trains_the_same_run(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    facts = job.train(capsys, "train.max_steps=50", "model.dim=3", "features.features.3.transform=[log1p, standardise]")
    saved = Path(facts["report"]).with_name("config.yaml")
    assert read_yaml(saved)["model"] == {**read_yaml(saved)["model"], "dim": 3}  # type: ignore[dict-item]
    again = Job(job.folder, saved).train(capsys)
    assert_equal_bits(weights(facts["checkpoint"]), weights(again["checkpoint"]))


def test_learned_statistics_are_saved_and_resumed(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["features.features.3.transform=[log1p, standardise]", "output.name=run"]
    facts = job.train(capsys, *words, "train.max_steps=40")
    price = read_yaml(Path(facts["report"]).with_name("config.yaml"))["features"]["features"][3]  # type: ignore[index]
    logged = np.log1p(pq.read_table(job.folder / "clicks.parquet").column("price").to_numpy())
    assert price["mean"] == pytest.approx(logged.mean(), abs=0.02)
    resumed = job.train(capsys, *words, "train.max_steps=80", "--resume")
    straight = job.train(capsys, words[0], "train.max_steps=80")
    assert resumed["auc"] == straight["auc"]


def test_evaluate_predict_and_report_agree_and_no_table_grows(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    facts = job.train(capsys, "train.epochs=2")
    for source in (facts["checkpoint"], str(Path(facts["report"]).parent), str(job.path)):
        found = told(capsys, "evaluate", source)
        assert found["auc"] == pytest.approx(facts["auc"], abs=1e-12)
    fresh = clicks(3000, seed=9)
    unseen = fresh.set_column(1, "user", [list(range(10_000, 13_000))])
    pq.write_table(unseen, job.folder / "fresh.parquet")
    on_fresh = told(capsys, "evaluate", str(job.path), str(job.folder / "fresh.parquet"))
    assert on_fresh["examples"] == 3000
    for name in ("out.parquet", "out.csv"):
        to = job.folder / name
        words = ["predict", facts["checkpoint"], str(job.folder / "fresh.parquet"), "--keep", "user,click"]
        assert told(capsys, *words, "--to", str(to)) == {"rows": 3000, "path": str(to)}
        table = pq.read_table(to) if name.endswith("parquet") else pa_csv.read_csv(to)
        assert table.column_names == ["user", "click", "probability"]
        assert table.column("user").to_pylist() == list(range(10_000, 13_000))
        chance = np.clip(table.column("probability").to_numpy(), 1e-12, 1 - 1e-12)
        clicked = table.column("click").to_numpy()
        logloss = -np.mean(np.where(clicked == 1, np.log(chance), np.log(1 - chance)))
        assert logloss == pytest.approx(on_fresh["logloss"], abs=1e-6)
    assert told(capsys, "inspect", facts["checkpoint"])["rows"] == facts["rows"]


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv"])
def test_columns_kept_of_files_that_differ_in_type_are_written_in_the_first_ones(
    job: Job, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    facts = job.train(capsys, "train.max_steps=5")
    rows = clicks(200, seed=9).drop_columns(["tags"])
    tags = pa.array([[1, 2]] * 200)
    narrow = rows.set_column(rows.column_names.index("user"), "user", rows["user"].cast(pa.int32()))
    encoded = narrow.set_column(narrow.column_names.index("item"), "item", narrow["item"].dictionary_encode())
    for name, table in (("a", rows), ("b", encoded), ("c", rows)):
        pq.write_table(table.append_column("tags", tags), job.folder / f"part-{name}.parquet")
    to = job.folder / f"kept.{suffix}"
    words = ["predict", facts["checkpoint"], str(job.folder / "part-*.parquet"), "--keep", "user,item", "--to", str(to)]
    assert run(words) == 0, capsys.readouterr().err
    read = {"parquet": pq.read_table, "csv": pa_csv.read_csv}
    found = read[suffix](to) if suffix in read else pa.ipc.open_file(to.read_bytes()).read_all()
    assert found["user"].to_pylist() == rows["user"].to_pylist() * 3
    assert found["item"].to_pylist() == rows["item"].to_pylist() * 3
    assert found.schema.field("item").type == pa.string()
    assert found.schema.field("user").type == pa.int64()


MISFITS = {
    "text for whole numbers": (pa.array([1] * 200), pa.array(["007"] * 200)),
    "numbers for bools": (pa.array([True] * 200), pa.array([7] * 200)),
    "wider numbers": (pa.array([1.0] * 200, pa.float32()), pa.array([0.1] * 200)),
    "too large numbers": (pa.array([1] * 200, pa.int8()), pa.array([1 << 40] * 200)),
    "text for nothing": (pa.nulls(200), pa.array(["u"] * 200)),
    "other fields": (pa.array([{"a": 1}] * 200), pa.array([{"b": 5}] * 200)),
    "lists of text for lists of numbers": (pa.array([[1]] * 200), pa.array([["1"]] * 200)),
}


@pytest.mark.parametrize("case", MISFITS)
def test_a_kept_column_that_does_not_fit_the_first_files_type_is_named(
    job: Job, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    """Nothing is written for it that the file does not hold."""
    facts = job.train(capsys, "train.max_steps=5")
    for name, values in zip("ab", MISFITS[case], strict=True):
        pq.write_table(clicks(200, seed=9).append_column("note", values), job.folder / f"part-{name}.parquet")
    to = job.folder / "kept.parquet"
    words = [facts["checkpoint"], str(job.folder / "part-*.parquet"), "--keep", "note", "--to", str(to)]
    message = job.fail(capsys, "predict", *words)
    first, second = (values.type for values in MISFITS[case])
    assert f"expected --keep column 'note' as {first}, as in the first file, got {second}: " in message.replace(
        "list<element: ", "list<item: "
    )
    assert not to.exists()


@pytest.mark.parametrize("values", [pa.nulls(200), pa.array([1] * 200, pa.uint8()), pa.array([2] * 200)])
def test_a_kept_column_of_nulls_or_narrower_numbers_fits(
    job: Job, capsys: pytest.CaptureFixture[str], values: pa.Array
) -> None:
    facts = job.train(capsys, "train.max_steps=5")
    for name, own in (("a", pa.array([1] * 200)), ("b", values)):
        pq.write_table(clicks(200, seed=9).append_column("note", own), job.folder / f"part-{name}.parquet")
    to = job.folder / "kept.parquet"
    words = [facts["checkpoint"], str(job.folder / "part-*.parquet"), "--keep", "note", "--to", str(to)]
    assert run(["predict", *words]) == 0, capsys.readouterr().err
    assert pq.read_table(to)["note"].to_pylist() == [1] * 200 + values.to_pylist()


def test_predict_without_a_file_prints_csv(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["train", str(job.path), "--json", "train.max_steps=10"]) == 0
    pq.write_table(clicks(20, seed=2).drop_columns(["click"]), job.folder / "fresh.parquet")
    capfd.readouterr()
    assert run(["predict", str(job.path), str(job.folder / "fresh.parquet"), "--keep", "item"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == '"item","probability"'
    assert len(lines) == 21


def test_kept_texts_come_back_at_export_also_after_a_resume(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["features.features.1.keep_values=true", "output.name=run"]
    job.train(capsys, *words, "train.max_steps=5")
    facts = job.train(capsys, *words, "train.epochs=1", "--resume")
    assert not list(Path(tempfile.gettempdir()).glob("embershard-values-*"))
    to = job.folder / "item.parquet"
    told_of = told(capsys, "export", facts["checkpoint"], "--table", "item", "--to", str(to))
    assert told_of["collisions"]["item"]["texts"] == 60
    assert sorted(pq.read_table(to).column("id").to_pylist()) == sorted(f"item-{number}" for number in range(60))


@pytest.mark.process
@pytest.mark.parametrize("durability", ["none", "log"])
def test_shards_train_the_bits_of_the_local_store(
    durability: str, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train.max_steps=120"]
    local = job.train(capsys, *words)
    shards = job.train(capsys, *words, "store.kind=cluster", "store.shards=3", f"store.durability={durability}")
    assert shards["auc"] == local["auc"]
    assert_equal_bits(weights(local["checkpoint"]), weights(shards["checkpoint"]))


@pytest.mark.process
def test_a_run_over_shards_resumes_in_the_local_store_and_back(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = ["store.kind=cluster", "store.shards=2"]
    job.train(capsys, "train.max_steps=40", "output.name=run", *cluster)
    job.train(capsys, "train.max_steps=80", "output.name=run", "--resume")
    mixed = job.train(capsys, "train.max_steps=120", "output.name=run", "--resume", *cluster)
    straight = job.train(capsys, "train.max_steps=120")
    assert_equal_bits(weights(straight["checkpoint"]), weights(mixed["checkpoint"]))


@pytest.mark.process
def test_cluster_goes_up_is_trained_on_looked_at_and_goes_down(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(job.folder / "cluster")
    up = told(capsys, "cluster", "up", "--shards", "2", "--folder", folder, "transport=tcp")
    try:
        words = ["store.kind=cluster", f"store.address={folder}/cluster.yaml", "train.max_steps=30"]
        facts = job.train(capsys, *words)
        status = told(capsys, "cluster", "status", "--folder", folder)
        assert [shard["address"] for shard in status["shards"]] == up["shards"]
        assert sum(shard["rows"] for shard in status["shards"]) == facts["rows"]
        assert sum(shard["load_share"] for shard in status["shards"]) == pytest.approx(1.0)
        assert [(shard["state"], shard["tablets"]) for shard in status["shards"]] == [("answers", 128)] * 2
        message = job.fail(capsys, "cluster", "up", "--folder", folder)
        assert "expected no cluster in" in message
        job.train(capsys, *words)
        (first, second) = told(capsys, "cluster", "status", "--folder", folder)["shards"]
        assert (first["pushes"], second["pushes"], first["duplicates"]) == (60, 60, 0)
    finally:
        assert told(capsys, "cluster", "down", "--folder", folder) == {"folder": folder, "stopped": True}
    assert "expected a running cluster in" in job.fail(capsys, "cluster", "status", "--folder", folder)


def test_demo_runs_and_leaves_a_checkpoint_and_an_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "demo", "--folder", str(tmp_path / "demo-run"), "--rows", "60000")
    assert 0.75 < found["auc"] < found["best_auc"] < 0.93
    assert told(capsys, "inspect", str(tmp_path / "demo-run" / "export"))["rows"] == found["rows"]
    assert told(capsys, "evaluate", str(tmp_path / "demo-run" / "demo.yaml"))["auc"] == pytest.approx(found["auc"])


def test_the_lines_that_the_demo_prints_work_as_they_stand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--folder", str(tmp_path / "demo-run"), "--rows", "20000"]) == 0
    lines = capsys.readouterr().out.splitlines()
    to_try = lines[lines.index("Try next:") + 1 :]
    assert len(to_try) == 3
    for line in to_try:
        assert run(shlex.split(line)[1:]) == 0, capsys.readouterr().err


@pytest.mark.slow
def test_demo_comes_within_a_hundredth_of_the_best_reachable_auc(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(capsys, "demo", "--folder", str(tmp_path / "demo-run"))
    assert found["best_auc"] - 0.01 < found["auc"] < found["best_auc"]


def test_a_run_stands_for_its_feature_map(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(job.train(capsys, "train.max_steps=5")["report"]).parent
    assert run(["features", "diff", str(path), str(job.path)]) == 0
    assert capsys.readouterr().out == "no difference\n"
    assert told(capsys, "key", "user", "5", str(path)) == told(capsys, "key", "user", "5", str(job.path))


def test_a_run_that_another_process_trains_is_left_alone(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(job.train(capsys, "train.max_steps=5", "output.name=run")["report"]).parent
    before = sorted(path.rglob("*"))
    with RunFolder(path).trained_alone():
        message = job.fail(capsys, "train", str(job.path), "output.name=run", "--resume", "train.max_steps=10")
    assert f"expected a run that nobody trains, got {path}, which process {os.getpid()} trains" in message
    assert sorted(path.rglob("*")) == before
    (path.parent / "new").mkdir()
    with RunFolder(path.parent / "new").trained_alone():  # it has begun, and written nothing yet
        message = job.fail(capsys, "train", str(job.path), "output.name=new", "train.max_steps=10")
    assert "which process" in message
    assert list((path.parent / "new").iterdir()) == []
    assert job.train(capsys, "train.max_steps=10", "output.name=run", "--resume")["examples"] == 5 * 64
