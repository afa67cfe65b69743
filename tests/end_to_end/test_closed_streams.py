"""Commands whose stdout or stderr was closed before they began, or cannot take what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.csv as pa_csv
import pytest

from .job import Job

pytestmark = pytest.mark.process

SHORT = ("train.max_steps=40", "output.checkpoint_every=20")


def shell(redirected: str, *words: object) -> subprocess.CompletedProcess[str]:
    """The command with its streams as a shell redirects them."""
    command = [sys.executable, "-m", "embershard.cli", *map(str, words)]
    script = f'exec "$@" {redirected}'
    return subprocess.run(
        ["bash", "-c", script, "bash", *command], capture_output=True, text=True, check=False, timeout=120
    )


@pytest.fixture
def trained(job: Job, capsys: pytest.CaptureFixture[str]) -> Path:
    return Path(job.train(capsys, "train.max_steps=5")["report"]).parent


@pytest.mark.parametrize("redirected", ["2>&-", "2>/dev/full"])
def test_a_run_that_cannot_report_on_stderr_goes_on(job: Job, redirected: str) -> None:
    done = shell(redirected, "train", job.path, "--json", *SHORT)
    assert done.returncode == 0
    (line,) = done.stdout.splitlines()
    facts = json.loads(line)
    assert Path(facts["report"]).exists()
    assert Path(facts["checkpoint"]).name == "step-000000040"


@pytest.mark.parametrize("redirected", ["2>&-", "2>/dev/full", ">&-", ">&- 2>&- <&-"])
def test_predictions_are_written_whatever_becomes_of_the_streams(job: Job, trained: Path, redirected: str) -> None:
    to = job.folder / "predicted.csv"
    done = shell(redirected, "predict", trained, job.folder / "clicks.parquet", "--to", to)
    assert done.returncode == 0, done.stderr
    assert pa_csv.read_csv(to).num_rows == 24_000


def test_an_error_that_cannot_be_told_has_its_exit_code_all_the_same(job: Job) -> None:
    for redirected in ("2>&-", "2>/dev/full"):
        done = shell(redirected, "train", job.path, "--json", "train.epochs=none")
        assert (done.returncode, done.stdout) == (2, "")


def test_predictions_for_a_stdout_that_is_closed_are_refused(job: Job, trained: Path) -> None:
    done = shell(">&-", "predict", trained, job.folder / "clicks.parquet")
    assert done.returncode == 2
    assert done.stderr == "error: expected an open stdout, or --to with a file, got neither\n"


def test_text_that_stdout_has_no_letters_for_is_escaped(job: Job) -> None:
    command = [sys.executable, "-m", "embershard.cli", "key", "item", "größe", str(job.path)]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    assert "gr\\xf6\\xdfe" in done.stdout
