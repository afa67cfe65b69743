"""Scalars of a run as JSON lines and as TensorBoard events."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from embershard.cli.metrics_log import MetricsLog


def test_lines_are_json_and_a_second_log_goes_on_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        log.add("train", 10, {"loss": 0.5, "auc": None})
    with MetricsLog(path) as log:
        log.add("evaluate", 20, {"auc": math.nan})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"phase": "train", "step": 10, "loss": 0.5, "auc": None},
        {"phase": "evaluate", "step": 20, "auc": None},
    ]


def test_a_last_line_that_was_not_written_whole_is_cut_off(tmp_path: Path) -> None:
    """A full disk leaves one; the next line would be lost with it."""
    path = tmp_path / "metrics.jsonl"
    for torn in ("", '{"phase": "train", "st'):
        path.write_text('{"step": 1}\n' + torn)
        with MetricsLog(path) as log:
            log.add("train", 2, {"loss": 0.5})
        steps = [json.loads(line)["step"] for line in path.read_text().splitlines()]
        assert steps == [1, 2]
    path.write_text('{"st')
    MetricsLog(path).close()
    assert path.read_text() == ""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_back_the_scalars(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with MetricsLog(tmp_path / "metrics.jsonl", tmp_path / "tensorboard") as log:
        for step in (1, 2, 3):
            log.add("train", step, {"loss": 1.0 / step, "auc": math.nan})
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert events.Tags()["scalars"] == ["train/loss"]
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [
        (1, 1.0),
        (2, 0.5),
        (3, pytest.approx(1 / 3)),
    ]
