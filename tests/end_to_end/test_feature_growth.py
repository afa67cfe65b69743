"""Features that come, go and start anew when a run is resumed: predictions, rows, columns, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embershard.cli.main import run
from embershard.embedding.checkpoint import open_checkpoint
from embershard.feature_map.yaml_file import write_yaml

from .job import Job, clicks, job_config

ROWS = 8000
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
    write_yaml(folder / "job.yaml", config)
    return Job(folder, folder / "job.yaml")


def add(job: Job, *fields: str) -> None:
    assert run(["features", "add", str(job.path), *fields]) == 0


def add_city(job: Job) -> None:
    add(job, "name=city", "kind=categorical", "id=text")


def resume(job: Job, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], str]:
    """The JSON line of a resume of `run`, and what it said on stderr."""
    import json

    capsys.readouterr()
    code = run(["train", str(job.path), "--json", "--resume", NAMED, *words])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out), captured.err


def predictions(job: Job, checkpoint: str) -> npt.NDArray[Any]:
    to = job.folder / "predicted.parquet"
    assert run(["predict", checkpoint, str(job.folder / "clicks.parquet"), "--to", str(to)]) == 0
    return pq.read_table(to)["probability"].to_numpy()


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
    for line in ("feature 'city' added: table 'city' starts from zeros", "feature 'stay' added: its columns start at"):
        assert line in said
    assert manifest(after["checkpoint"]).feature_map["version"] == 4
