"""A small job that all end-to-end tests train: click log, run file, and what its checkpoints hold."""

from __future__ import annotations

import json
from dataclasses import dataclass
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

ROWS = 24_000


def clicks(rows: int = ROWS, seed: int = 1) -> pa.Table:
    """Clicks on 60 items by 300 users with lists of tags and a price; an item's own taste decides most of them."""
    random = np.random.default_rng(seed)
    user, item = random.integers(0, 300, rows), random.integers(0, 60, rows)
    price = random.lognormal(1.0, 1.0, rows).astype(np.float32)
    taste = np.random.default_rng(0).normal(0.0, 1.2, 60)
    chance = 1.0 / (1.0 + np.exp(0.5 - taste[item] + 0.2 * np.log1p(price)))
    lengths = random.integers(0, 4, rows)
    tags = pa.ListArray.from_arrays(
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), pa.array(random.integers(0, 40, lengths.sum()))
    )
    return pa.table(
        {
            "click": (random.random(rows) < chance).astype(np.int8),
            "user": user,
            "item": [f"item-{number}" for number in item],
            "tags": tags,
            "price": price,
        }
    )


def job_config(folder: Path) -> dict[str, Any]:
    """The run file's content: four features, DeepFM, everything in `folder`."""
    return {
        "data": {
            "path": str(folder / "clicks.parquet"),
            "unit_rows": 4000,
            "evaluate": {"kind": "random", "share": 0.2, "seed": 3},
        },
        "features": {
            "label": "click",
            "features": [
                {"name": "user", "kind": "categorical", "id": "int64"},
                {"name": "item", "kind": "categorical", "id": "text"},
                {"name": "tags", "kind": "categorical", "id": "int64", "pooling": "mean"},
                {"name": "price", "kind": "numeric", "transform": "log1p"},
            ],
        },
        "model": {"kind": "deepfm", "dim": 4, "hidden": [16], "dropout": 0.1},
        "optimizer": {"rows": {"kind": "adagrad", "lr": 0.05}},
        "train": {"batch_size": 64, "epochs": 4, "threads": 1, "pipeline_depth": 0, "synchronous_steps": 20},
        "output": {"folder": str(folder / "runs")},
    }


@dataclass(frozen=True, slots=True)
class Job:
    """The job's folder and run file."""

    folder: Path
    path: Path

    @classmethod
    def make(cls, folder: Path, rows: int = ROWS) -> Job:
        """Write the click log and the run file."""
        pq.write_table(clicks(rows), folder / "clicks.parquet", row_group_size=4000)
        path = folder / "job.yaml"
        write_yaml(path, job_config(folder))
        return cls(folder, path)

    def train(self, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
        """The JSON line of `embershard train`; its run must succeed."""
        code = run(["train", str(self.path), "--json", *words])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        (line,) = captured.out.splitlines()
        facts: dict[str, Any] = json.loads(line)
        return facts

    def fail(self, capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> str:
        """The message of a command that must fail with `code`; nothing may be on stdout."""
        assert run([*words]) == code
        captured = capsys.readouterr()
        assert captured.out == ""
        errors = [line for line in captured.err.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, captured.err
        assert "Traceback" not in captured.err
        return errors[0]


def weights(checkpoint: str) -> dict[str, npt.NDArray[Any]]:
    """Everything a checkpoint's model is made of, by name: rows with state and counters in key order, dense arrays."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    with open_checkpoint(checkpoint) as opened:
        for tablet in range(1 << opened.tablet_bits):
            for name, rows in opened.snapshot(tablet).tables.items():
                for part in ("keys", "weights", "state", "count", "clicks"):
                    arrays[f"{name}/{tablet}/{part}"] = getattr(rows, part)
        arrays.update(opened.dense())
    return arrays


def assert_equal_bits(left: dict[str, npt.NDArray[Any]], right: dict[str, npt.NDArray[Any]]) -> None:
    """Both hold the same arrays, bit for bit."""
    assert left.keys() == right.keys()
    different = [name for name, array in left.items() if array.tobytes() != right[name].tobytes()]
    assert different == []
