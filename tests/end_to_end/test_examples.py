"""The examples: short, complete, and as good on public data as the reference that comes with the data."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from embershard.cli.main import run
from embershard.cli.run_config import load_run_config

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
REFERENCE = {
    "adult": 0.917,
    "avazu": 0.689,
    "criteo": 0.720,
    "frappe": 0.931,
    "movielens": 0.772,
    "movielens_small": 0.788,
    "sparrow": 0.772,
}
"""AUC of logistic regression on the same data, from the note that comes with it."""


def train(example: Path, folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    """The result of `embershard train EXAMPLE --json`, run where the example's paths begin."""
    where = Path.cwd()
    os.chdir(ROOT)
    try:
        code = run(["train", str(example), "--json", f"output.folder={folder}", *words])
    finally:
        os.chdir(where)
    captured = capsys.readouterr()
    assert code == 0, captured.err
    result = json.loads(captured.out.splitlines()[-1])
    assert isinstance(result, dict)
    return result


def skip_without_data(example: Path) -> None:
    paths = load_run_config(example, ()).data.path
    if not any(list(ROOT.glob(path)) if "*" in path else (ROOT / path).exists() for path in paths):
        pytest.skip("no files of it in ../shared/data")


@pytest.mark.parametrize(
    "example", [path for path in EXAMPLES if path.stem not in REFERENCE], ids=lambda example: example.stem
)
def test_an_example_trains_from_the_publishers_files(
    example: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    skip_without_data(example)
    result = train(example, tmp_path, capsys, "train.epochs=1")
    assert isinstance(result["rows"], int)
    assert result["rows"] > 0
    assert (tmp_path / "run-0001" / "report.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_an_example_reaches_the_reference_of_its_data(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = ROOT / "examples" / f"{name}.yaml"
    skip_without_data(example)
    auc = train(example, tmp_path, capsys)["auc"]
    assert isinstance(auc, float)
    assert auc >= REFERENCE[name]
