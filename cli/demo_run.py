"""The demonstration: write the built-in click log, train on it, measure against the best reachable AUC, export."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..datasets.synthetic import SyntheticClicks, best_auc
from ..datasets.whole_file import whole_file
from ..embedding.checkpoint import open_checkpoint
from ..embedding.export import export_tables
from ..feature_map.yaml_file import write_yaml
from .run_config import load_run_config
from .training_run import train_run

TEST_SHARE = 0.2
MAX_IDS = 500
"""Ids of the widest column: few enough that the demo's rows suffice to learn them."""


def run_demo(folder: Path, rows: int, seed: int, stream: TextIO) -> dict[str, object]:
    """What was measured, and where things are; best_auc is that of the true click probabilities on the test rows."""
    clicks = SyntheticClicks(rows=rows, max_ids=MAX_IDS)
    stream.write(f"writing a click log of {rows:,} rows into {folder / 'clicks'}\n")
    test = _write_clicks(folder / "clicks", clicks)
    path = folder / "demo.yaml"
    write_yaml(path, demo_config(folder, clicks))
    config = load_run_config(path, [f"train.seed={seed}"])
    finished = train_run(config, path, resume=False, stream=stream)
    report = finished.report
    export = folder / "export"
    with open_checkpoint(str(report.checkpoint)) as checkpoint:
        exported = export_tables(checkpoint, export)
    return {
        "auc": report.auc,
        "best_auc": best_auc(
            test.column("true_probability").to_numpy(), test.column("label").to_numpy().astype(np.float64)
        ),
        "logloss": report.logloss,
        "examples": report.examples,
        "examples_per_second": report.examples_per_second,
        "seconds": report.seconds,
        "rows": sum(exported.rows.values()),
        "checkpoint": _shown(report.checkpoint),
        "export": str(export),
        "report": str(finished.folder.report),
    }


def demo_config(folder: Path, clicks: SyntheticClicks) -> dict[str, object]:
    """The run file of the demonstration, ready to be changed and trained again."""
    features: list[dict[str, object]] = [
        {"name": f"n{number + 1}", "kind": "numeric", "transform": "log1p"} for number in range(clicks.numerics)
    ]
    features += [{"name": f"c{number + 1}", "kind": "categorical", "id": "int64"} for number in range(clicks.features)]
    return {
        "data": {
            "path": str(folder / "clicks" / "train.parquet"),
            "evaluate": {"kind": "files", "path": str(folder / "clicks" / "test.parquet")},
        },
        "features": {"label": "label", "features": features},
        "model": {"kind": "fm", "dim": 6},
        "optimizer": {"rows": {"kind": "adagrad", "lr": 0.15}},
        "train": {"batch_size": 1024, "epochs": 3, "threads": 1},
        "output": {"folder": str(folder / "runs")},
    }


def _write_clicks(folder: Path, clicks: SyntheticClicks) -> pa.Table:
    """The test rows; train.parquet and test.parquet are written, the last rows of the log being the test's."""
    folder.mkdir(parents=True, exist_ok=True)
    log = pa.concat_tables(clicks.tables())
    training = round(log.num_rows * (1 - TEST_SHARE))
    train, test = log.slice(0, training), log.slice(training)
    for rows, name in ((train, "train.parquet"), (test, "test.parquet")):
        with whole_file(folder / name) as partial:
            pq.write_table(rows, partial, row_group_size=65_536)
    return test


def _shown(path: str | None) -> str | None:
    """A path as short as it can be from here."""
    if path is None:
        return None
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path
