"""Features that come, go and start anew when a run is resumed: predictions, rows, columns, and what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from embershard.cli.main import run
from embershard.embedding.checkpoint import open_checkpoint
from embershard.feature_map.config_file import read_yaml
from embershard.feature_map.yaml_file import write_yaml

from .job import Job, assert_equal_bits, clicks, job_config, weights

ROWS = 6000
MODELS: dict[str, dict[str, Any]] = {
    "lr": {"kind": "lr"},
    "fm": {"kind": "fm", "dim": 4},
    "deepfm": {"kind": "deepfm", "dim": 4, "hidden": [16, 8]},
}
NAMED = "output.name=run"


def growing_clicks(rows: int = ROWS, seed: int = 1) -> pa.Table:
    """The job's clicks with a city and a length of stay, which decide as much of them as the item does."""
    table = clicks(rows, seed)
    random = np.random.default_rng(seed + 100)
    city, stay = random.integers(0, 20, rows), random.normal(0.0, 1.0, rows)
    taste = np.random.default_rng(5).normal(0.0, 2.0, 20)
    chance = 1.0 / (1.0 + np.exp(-taste[city] - stay))
    click = np.where(random.random(rows) < 0.5, table["click"].to_numpy(), random.random(rows) < chance)
    columns: dict[str, Any] = {
        "click": pa.array(click.astype(np.int8)),
        "city": [f"city-{number}" for number in city],
        "stay": stay.astype(np.float32),
    }
    for name, values in columns.items():
        place = table.schema.get_field_index(name)
        table = table.append_column(name, [values]) if place < 0 else table.set_column(place, name, [values])
    return table


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return grown_job(tmp_path, MODELS["deepfm"])


def grown_job(folder: Path, model: dict[str, Any]) -> Job:
    pq.write_table(growing_clicks(), folder / "clicks.parquet", row_group_size=2000)
    config = job_config(folder)
    config["model"] = model
    config["data"]["unit_rows"] = 2000
    config["store"] = {"kind": "local", "tablet_bits": 3}
    write_yaml(folder / "job.yaml", config)
    return Job(folder, folder / "job.yaml")


def add(job: Job, *fields: str) -> None:
    assert run(["features", "add", str(job.path), *fields]) == 0


def add_city(job: Job) -> None:
    add(job, "name=city", "kind=categorical", "id=text")


def resume(job: Job, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], str]:
    """The JSON line of a resume of `run`, and what it said on stderr."""
    capsys.readouterr()
    code = run(["train", str(job.path), "--json", "--resume", NAMED, *words])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out), captured.err


def predictions(job: Job, checkpoint: str) -> npt.NDArray[Any]:
    to = job.folder / "predicted.parquet"
    assert run(["predict", checkpoint, str(job.folder / "clicks.parquet"), "--to", str(to)]) == 0
    return pq.read_table(to)["probability"].to_numpy()


def dense(checkpoint: str) -> dict[str, npt.NDArray[Any]]:
    with open_checkpoint(checkpoint) as opened:
        return dict(opened.dense())


def edit(job: Job, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the run file by hand."""
    config: dict[str, Any] = dict(read_yaml(job.path))
    change(config)
    write_yaml(job.path, config)


def names(checkpoint: str) -> list[str]:
    return [feature["name"] for feature in manifest(checkpoint).feature_map["features"]]


def manifest(checkpoint: str) -> Any:
    with open_checkpoint(checkpoint) as opened:
        return opened.manifest


@pytest.mark.parametrize("kind", MODELS)
def test_first_prediction_after_features_were_added_is_the_last_one_before(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = grown_job(tmp_path, MODELS[kind])
    before = job.train(capsys, "train.max_steps=150", NAMED)["checkpoint"]
    add_city(job)
    add(job, "name=stay", "kind=numeric")
    add(job, "name=city_item", "kind=cross", "of=[city, item]")
    after, said = resume(job, capsys, "train.max_steps=150")
    assert after["checkpoint"] != before
    assert predictions(job, before).tobytes() == predictions(job, after["checkpoint"]).tobytes()
    *_, last, first = json.loads(Path(after["report"]).read_text())["history"]
    assert (last["step"], last["auc"], last["logloss"]) == (first["step"], first["auc"], first["logloss"])
    assert first["step"] == 150
    for line in ("feature 'city' added: table 'city' starts from zeros", "feature 'stay' added: its columns start at"):
        assert line in said
    assert manifest(after["checkpoint"]).feature_map["version"] == 4


def test_features_put_first_in_the_file_by_hand_leave_the_prediction_too(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    before = job.train(capsys, "train.max_steps=60", NAMED)["checkpoint"]
    added = [{"name": "stay", "kind": "numeric"}, {"name": "city", "kind": "categorical", "id": "text"}]
    edit(job, lambda config: config["features"]["features"].__setitem__(slice(0, 0), added))
    after, said = resume(job, capsys, "train.max_steps=60")
    assert predictions(job, before).tobytes() == predictions(job, after["checkpoint"]).tobytes()
    assert "feature map version 1 -> 2" in said
    assert manifest(after["checkpoint"]).feature_map["version"] == 2
    again, said = resume(job, capsys, "train.max_steps=61")
    assert manifest(again["checkpoint"]).feature_map["version"] == 2
    assert "feature" not in said


def test_rows_dense_columns_and_their_optimizer_state_keep_their_bits(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    before = job.train(capsys, "train.max_steps=60", NAMED)["checkpoint"]
    add_city(job)
    after = resume(job, capsys, "train.max_steps=60")[0]["checkpoint"]
    old, new = weights(before), weights(after)
    added = {name for name in new if name not in old}
    assert {name for name in added if not name.startswith(("city/", "optimizer/"))} == {"model/added.0.weight"}
    assert all(len(new[name]) == 0 for name in added if name.startswith("city/"))
    carried = {name: array for name, array in new.items() if name not in added and not name.startswith("optimizer/")}
    assert_equal_bits({name: array for name, array in old.items() if not name.startswith("optimizer/")}, carried)
    for moment in ("exp_avg", "exp_avg_sq", "step"):
        states = [
            sorted(array.tobytes() for name, array in found.items() if name.endswith(f"/{moment}"))
            for found in (old, new)
        ]
        assert states[0] == states[1]
        assert len(states[0]) == 6


@pytest.mark.parametrize("kind", MODELS)
def test_an_added_feature_that_matters_is_learned(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = grown_job(tmp_path, MODELS[kind])
    job.train(capsys, "train.epochs=3", NAMED)
    without = job.train(capsys, "train.epochs=8")["auc"]
    add_city(job)
    add(job, "name=stay", "kind=numeric")
    grown = resume(job, capsys, "train.epochs=8")[0]
    assert grown["auc"] > without + 0.08
    rows = [rows for name, rows in weights(grown["checkpoint"]).items() if name.startswith("city/") and len(rows)]
    assert sum(len(keys) for keys in rows if keys.dtype == np.uint64) == 20
    learned = np.concatenate([part for part in rows if part.dtype == np.float32 and part.ndim == 2 and part.shape[1]])
    assert np.abs(learned).max() > 0.1


def test_an_added_feature_of_learned_statistics_learns_them_at_the_resume(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    standard = ["features.features.3.transform=[log1p, standardise]"]
    before = job.train(capsys, "train.max_steps=40", NAMED, *standard)["checkpoint"]
    add(job, "name=stay", "kind=numeric", "transform=standardise")
    add(job, "name=stay_bucket", "kind=bucketize", "column=stay", "quantiles=8")
    after = resume(job, capsys, "train.max_steps=40", *standard)[0]["checkpoint"]
    assert predictions(job, before).tobytes() == predictions(job, after).tobytes()
    by_name = {feature["name"]: feature for feature in manifest(after).feature_map["features"]}
    assert by_name["price"] == {f["name"]: f for f in manifest(before).feature_map["features"]}["price"]
    assert abs(by_name["stay"]["mean"]) < 0.1
    assert len(by_name["stay_bucket"]["edges"]) == 7


def test_a_changed_transform_learns_its_statistics_anew_and_changed_quantiles_are_refused(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    add(job, "name=price_bucket", "kind=bucketize", "column=price", "quantiles=8")
    capsys.readouterr()
    before = job.train(capsys, "train.max_steps=20", NAMED, "features.features.3.transform=[log1p, standardise]")
    message = job.fail(capsys, "train", str(job.path), "--resume", NAMED, "features.features.4.quantiles=4")
    assert "feature 'price_bucket': edges" in message
    facts, said = resume(job, capsys, "train.max_steps=20", "features.features.3.transform=[standardise]")
    assert "feature 'price': transform" in said
    means = [manifest(one["checkpoint"]).feature_map["features"][3]["mean"] for one in (before, facts)]
    price = pq.read_table(job.folder / "clicks.parquet")["price"].to_numpy()
    assert means == pytest.approx([np.log1p(price).mean(), price.mean()], rel=0.1)


def test_growing_twice_and_resuming_in_between_are_exact(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.train(capsys, "train.max_steps=40", NAMED)
    add_city(job)
    resume(job, capsys, "train.max_steps=80", "output.keep=9")
    between = resume(job, capsys, "train.max_steps=120", "output.keep=9")[0]["checkpoint"]
    add(job, "name=stay", "kind=numeric")
    add(job, "name=stay_bucket", "kind=bucketize", "column=stay", "edges=[-1, 0, 1]")
    twice = resume(job, capsys, "train.max_steps=120", "output.keep=9")[0]["checkpoint"]
    assert predictions(job, between).tobytes() == predictions(job, twice).tobytes()
    assert manifest(twice).config["model"]["added"] == [["city"], ["stay", "stay_bucket"]]
    kinds = {table.name: table.blocks[1].initializer.kind for table in manifest(twice).tables}
    assert kinds == {"user": "uniform", "item": "uniform", "tags": "uniform", "city": "zeros", "stay_bucket": "zeros"}
    assert dense(twice)["model/added.0.weight"].tobytes() == dense(between)["model/added.0.weight"].tobytes()
    straight = resume(job, capsys, "train.max_steps=160", "output.keep=9")[0]["checkpoint"]
    (Path(straight)).rename(job.folder / "straight")
    resume(job, capsys, "train.max_steps=140", "output.keep=9")
    stepwise = resume(job, capsys, "train.max_steps=160", "output.keep=9")[0]["checkpoint"]
    assert_equal_bits(weights(str(job.folder / "straight")), weights(stepwise))


def test_a_grown_checkpoint_is_evaluated_exported_inspected_and_trained_again_from_its_configuration(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    job.train(capsys, "train.max_steps=60", NAMED)
    add_city(job)
    facts, _ = resume(job, capsys, "train.epochs=3")
    assert run(["evaluate", facts["checkpoint"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["auc"] == pytest.approx(facts["auc"], abs=1e-12)
    to = job.folder / "city.parquet"
    assert run(["export", facts["checkpoint"], "--table", "city", "--to", str(to)]) == 0
    assert pq.read_table(to).num_rows == 20
    capsys.readouterr()
    assert run(["inspect", facts["checkpoint"], "--json"]) == 0
    assert "city" in {table["table"] for table in json.loads(capsys.readouterr().out)["tables"]}
    report = json.loads(Path(facts["report"]).read_text())
    assert report["changes"] == ["feature map version 1 -> 2", "feature 'city' added: table 'city' starts from zeros"]
    saved = Path(facts["report"]).with_name("config.yaml")
    fresh = Job(job.folder, saved).train(capsys, "train.max_steps=20", "output.name=fresh")
    assert {name.split("/")[0] for name in weights(fresh["checkpoint"])} >= {"user", "item", "tags", "city"}


@pytest.mark.parametrize("kind", ["fm", "deepfm"])
def test_a_removed_feature_takes_its_table_and_columns_along(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = grown_job(tmp_path, MODELS[kind])
    before = job.train(capsys, "train.max_steps=60", NAMED)["checkpoint"]
    for name in ("item", "price"):
        assert run(["features", "remove", str(job.path), name]) == 0
    facts, said = resume(job, capsys, "train.max_steps=60")
    assert run(["evaluate", facts["checkpoint"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["auc"] == pytest.approx(facts["auc"], abs=1e-12)
    assert "feature 'item' removed: table 'item' and its columns dropped" in said
    assert "feature 'price' removed: its columns dropped" in said
    after = facts["checkpoint"]
    assert [table.name for table in manifest(after).tables] == ["user", "tags"]
    old, new = weights(before), weights(after)
    assert_equal_bits(
        {name: array for name, array in new.items() if name.split("/")[0] in ("user", "tags")},
        {name: array for name, array in old.items() if name.split("/")[0] in ("user", "tags")},
    )
    if kind == "deepfm":
        columns = np.r_[0:4, 8:12]  # user | item | tags | price
        np.testing.assert_array_equal(new["model/mlp.0.weight"], old["model/mlp.0.weight"][:, columns])
        moments = [array for name, array in new.items() if name.endswith("/exp_avg") and array.shape == (16, 8)]
        states = [array for name, array in old.items() if name.endswith("/exp_avg") and array.shape == (16, 13)]
        np.testing.assert_array_equal(moments[0], states[0][:, columns])
    else:
        assert "model/dense.weight" not in new
    assert resume(job, capsys, "train.max_steps=90")[0]["auc"] > 0.5


def test_all_that_a_model_began_with_can_be_replaced(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.train(capsys, "train.max_steps=40", NAMED)
    add_city(job)
    resume(job, capsys, "train.max_steps=80")
    for name in ("user", "item", "tags", "price"):
        assert run(["features", "remove", str(job.path), name]) == 0
    facts, _ = resume(job, capsys, "train.max_steps=200")
    assert dense(facts["checkpoint"])["model/mlp.0.weight"].shape == (16, 0)
    assert facts["auc"] > 0.6


def test_a_removed_feature_comes_back_new(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.train(capsys, "train.max_steps=40", NAMED)
    assert run(["features", "remove", str(job.path), "tags"]) == 0
    gone = resume(job, capsys, "train.max_steps=40")[0]["checkpoint"]
    add(job, "name=tags", "kind=categorical", "id=int64", "pooling=mean")
    back = resume(job, capsys, "train.max_steps=40")[0]["checkpoint"]
    assert predictions(job, gone).tobytes() == predictions(job, back).tobytes()
    assert manifest(back).row_counts["tags"] == 0
    assert manifest(back).config["model"]["added"] == [["tags"]]


def test_a_feature_that_shares_a_table_with_rows_is_said_not_to_be_neutral(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    job.train(capsys, "train.max_steps=40", NAMED)
    add(job, "name=next_user", "kind=categorical", "column=user", "table=user")
    facts, said = resume(job, capsys, "train.max_steps=40")
    assert "feature 'next_user' added: its table 'user' has rows, so the prediction changes with it" in said
    assert not dense(facts["checkpoint"])["model/added.0.weight"].any()


def test_order_of_features_may_change(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    before = job.train(capsys, "train.max_steps=40", NAMED)["checkpoint"]
    edit(job, lambda config: config["features"]["features"].reverse())
    facts, said = resume(job, capsys, "train.max_steps=40")
    assert "order of features changed" in said
    np.testing.assert_allclose(predictions(job, facts["checkpoint"]), predictions(job, before), rtol=1e-5)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("features.features.0.id=text", ["feature 'user'", "id 'int64'", "'text'"]),
        ("features.features.0.key_space=people", ["feature 'user'", "key_space 'user'", "'people'"]),
        ("model.dim=8", ["dim 5", "got 9", "'user'", "'item'", "'tags'"]),
        ("model.tables.dtype=float16", ["dtype float32", "got float16", "'user'"]),
        ("features.features.3.missing_indicator=true", ["feature 'price'", "missing_indicator"]),
    ],
)
def test_a_changed_feature_is_refused_with_the_reason(
    word: str, expected: list[str], job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    job.train(capsys, "train.max_steps=20", NAMED)
    before = sorted(job.folder.rglob("*"))
    message = job.fail(capsys, "train", str(job.path), "--json", "--resume", NAMED, word)
    for part in [*expected, "--reinit TABLE"]:
        assert part in message
    assert sorted(job.folder.rglob("*")) == before


class OnlyUsers(torch.nn.Module):
    """Sums the rows of users."""

    def __init__(self, features: Any) -> None:
        super().__init__()

    def forward(self, inputs: Any, dense: torch.Tensor) -> torch.Tensor:
        return inputs["user"].sum(1)


def test_a_feature_that_is_no_longer_pooled_is_refused_with_the_reason(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    model = f"model={{class: '{__name__}:OnlyUsers', dim: 4}}"
    job.train(capsys, "train.max_steps=20", NAMED, model)
    words = ["--resume", NAMED, model, "features.features.2.pooling=none"]
    message = job.fail(capsys, "train", str(job.path), "--json", *words)
    for part in ["feature 'tags'", "pooling 'mean'", "'none'", "--reinit TABLE"]:
        assert part in message


def test_reinit_starts_a_table_and_its_columns_anew_and_leaves_the_others(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    before = job.train(capsys, "train.max_steps=60", NAMED)["checkpoint"]
    words = ["features.features.0.id=uint64", "--reinit", "user"]
    facts, said = resume(job, capsys, "train.max_steps=60", *words)
    assert "table 'user' starts anew, with its columns" in said
    old, new = weights(before), weights(facts["checkpoint"])
    assert manifest(facts["checkpoint"]).row_counts["user"] == 0
    others = ("item/", "tags/")
    assert_equal_bits(
        {name: array for name, array in new.items() if name.startswith(others)},
        {name: array for name, array in old.items() if name.startswith(others)},
    )
    was, now = old["model/mlp.0.weight"], new["model/mlp.0.weight"]
    np.testing.assert_array_equal(now[:, 4:], was[:, 4:])
    assert (now[:, :4] != was[:, :4]).all()
    assert manifest(facts["checkpoint"]).feature_map["version"] == 2
    trained = resume(job, capsys, "train.max_steps=90", words[0])[0]
    assert manifest(trained["checkpoint"]).row_counts["user"] > 0


def test_reinit_of_every_table_changes_the_width(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.train(capsys, "train.max_steps=40", NAMED)
    add_city(job)
    tables = [word for name in ("user", "item", "tags") for word in ("--reinit", name)]
    facts, _ = resume(job, capsys, "train.max_steps=80", "model.dim=8", *tables)
    assert {table.dim for table in manifest(facts["checkpoint"]).tables} == {9}
    assert resume(job, capsys, "train.max_steps=120", "model.dim=8")[0]["auc"] > 0.5


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--reinit", "user"], ["--reinit together with --resume"]),
        (["--resume", "--reinit", "usr"], ["expected --reinit with one of tables", "'usr'"]),
        (["--resume", "model={kind: fm, dim: 4}", "--reinit", "user"], ["expected model.kind deepfm", "got fm"]),
        (["--resume", "model.hidden=[16]", "--reinit", "user"], ["'mlp."]),
        (["--resume", "features.features.2.column=town", "features.features.2.required=true"], ["town", "clicks.parq"]),
    ],
)
def test_bad_input_at_a_resume_is_one_clear_error_and_leaves_nothing(
    words: list[str], expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = grown_job(tmp_path, {"kind": "deepfm", "dim": 4, "hidden": [16, 8]})
    job.train(capsys, "train.max_steps=20", NAMED)
    before = {path: path.read_bytes() for path in job.folder.rglob("*") if path.is_file()}
    message = job.fail(capsys, "train", str(job.path), "--json", NAMED, "train.max_steps=40", *words)
    for part in expected:
        assert part in message
    assert {path: path.read_bytes() for path in job.folder.rglob("*") if path.is_file()} == before


def test_after_a_change_early_stop_and_evaluate_take_the_best_of_the_features_there_are(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = ["train.early_stop={metric: auc, patience: 2}", "optimizer.rows.lr=0.5", "output.keep=1"]
    edit(job, lambda config: config["output"].update(name="run"))
    best = job.train(capsys, "train.epochs=3", *stop)
    for name in ("item", "price"):
        assert run(["features", "remove", str(job.path), name]) == 0
    facts, _ = resume(job, capsys, "train.epochs=30", *stop)
    assert facts["auc"] < best["auc"] - 0.02
    assert names(facts["checkpoint"]) == ["user", "tags"]
    assert Path(best["checkpoint"]).exists()
    assert run(["evaluate", str(job.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["checkpoint"] == facts["checkpoint"]
    assert found["auc"] == pytest.approx(facts["auc"], abs=1e-12)


def test_other_fields_of_a_feature_may_change_and_are_said(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    before = job.train(capsys, "train.max_steps=40", NAMED)["checkpoint"]
    facts, said = resume(job, capsys, "train.max_steps=40", "features.features.2.pooling=sum")
    assert "feature 'tags': pooling 'mean' → 'sum' (model)" in said
    assert_equal_bits(weights(before), weights(facts["checkpoint"]))
    assert manifest(facts["checkpoint"]).feature_map["version"] == 2


def test_a_renamed_table_starts_anew_where_that_is_asked_for(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    before = job.train(capsys, "train.max_steps=40", NAMED)["checkpoint"]
    facts, _ = resume(job, capsys, "train.max_steps=40", "features.features.0.table=people", "--reinit", "people")
    assert [table.name for table in manifest(facts["checkpoint"]).tables] == ["people", "item", "tags"]
    was, now = dense(before)["model/mlp.0.weight"], dense(facts["checkpoint"])["model/mlp.0.weight"]
    assert (was != now).any(0).tolist() == [True] * 4 + [False] * 9


OWN_MODEL = """
import torch
from torch import nn


class Plain(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.names = [f.name for f in features.categorical]
        self.layer = nn.Linear(4 * len(self.names) + features.dense_width, 8)
        self.last = nn.Linear(8, 1)

    def forward(self, inputs, dense):
        x = torch.cat([inputs.values(), dense], 1)
        return self.last(torch.relu(self.layer(x))).squeeze(1)


class Growing(Plain):
    def input_columns(self, features):
        names = [name for name in self.names for _ in range(4)]
        return {"layer.weight": names + [f.name for f in features.numeric]}


class Wrong(Plain):
    def input_columns(self, features):
        return {"layer.weight": ["user"]}
"""


@pytest.fixture
def own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "own_growing_models.py").write_text(OWN_MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_growing_models"
    sys.modules.pop("own_growing_models", None)


def test_a_model_of_ones_own_grows_by_saying_whose_its_columns_are(
    own_models: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = grown_job(tmp_path, {"class": f"{own_models}:Growing", "dim": 4})
    without = job.train(capsys, "train.epochs=6")["auc"]
    before = job.train(capsys, "train.max_steps=60", NAMED)["checkpoint"]
    add_city(job)
    add(job, "name=stay", "kind=numeric")
    facts, said = resume(job, capsys, "train.max_steps=60")
    assert "whether a field of zeros is neutral is up to own_growing_models:Growing" in said
    old, new = dense(before)["model/layer.weight"], dense(facts["checkpoint"])["model/layer.weight"]
    np.testing.assert_array_equal(new[:, [*range(12), 16]], old)  # user item tags [city] price [stay]
    assert new[:, 12:16].all()
    assert not new[:, 17].any()
    np.testing.assert_allclose(predictions(job, facts["checkpoint"]), predictions(job, before), rtol=1e-5)
    assert resume(job, capsys, "train.epochs=6")[0]["auc"] > without + 0.05


def test_a_model_of_ones_own_that_says_nothing_or_something_wrong_is_refused(
    own_models: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = grown_job(tmp_path, {"class": f"{own_models}:Plain", "dim": 4})
    job.train(capsys, "train.max_steps=20", NAMED)
    add_city(job)
    before = sorted(job.folder.rglob("*"))
    capsys.readouterr()
    message = job.fail(capsys, "train", str(job.path), "--json", "--resume", NAMED)
    assert "expected Plain to have input_columns(features), got none" in message
    message = job.fail(capsys, "train", str(job.path), "--json", "--resume", NAMED, f"model.class={own_models}:Wrong")
    assert "model.class" in message
    assert sorted(job.folder.rglob("*")) == before
    wrong = grown_job(tmp_path, {"class": f"{own_models}:Wrong", "dim": 4})
    wrong.train(capsys, "train.max_steps=20", "output.name=wrong")
    add_city(wrong)
    capsys.readouterr()
    message = wrong.fail(capsys, "train", str(wrong.path), "--json", "--resume", "output.name=wrong")
    assert "Wrong.input_columns: expected a parameter 'layer.weight' of 1 columns, got one of shape (8, 13)" in message


@pytest.mark.process
def test_growth_over_shards_gives_the_bits_of_the_local_store(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = ["store.kind=cluster", "store.shards=2"]
    job.train(capsys, "train.max_steps=40", NAMED)
    job.train(capsys, "train.max_steps=40", "output.name=shards", *cluster)
    add_city(job)
    assert run(["features", "remove", str(job.path), "tags"]) == 0
    local = resume(job, capsys, "train.max_steps=80")[0]["checkpoint"]
    words = ["--resume", "output.name=shards", "train.max_steps=80", *cluster]
    assert_equal_bits(weights(local), weights(job.train(capsys, *words)["checkpoint"]))


@pytest.mark.process
def test_growth_on_a_running_cluster_drops_and_starts_tables_there(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(job.folder / "cluster")
    assert (
        run(["cluster", "up", "--shards", "2", "--folder", folder, "transport=tcp", "durability=log", "tablet_bits=3"])
        == 0
    )
    capsys.readouterr()
    try:
        words = [f"store={{kind: cluster, address: {folder}/cluster.yaml}}"]
        job.train(capsys, "train.max_steps=40", NAMED, *words)
        add_city(job)
        assert run(["features", "remove", str(job.path), "tags"]) == 0
        reinit = ["features.features.0.id=uint64", "--reinit", "user"]
        facts, _ = resume(job, capsys, "train.max_steps=80", *words, *reinit)
        assert [table.name for table in manifest(facts["checkpoint"]).tables] == ["item", "user", "city"]
        assert manifest(facts["checkpoint"]).row_counts["city"] == 20
        again, _ = resume(job, capsys, "train.max_steps=100", *words, reinit[0])
        assert np.isfinite(again["auc"])
    finally:
        assert run(["cluster", "down", "--folder", folder]) == 0
