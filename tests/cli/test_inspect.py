"""What `inspect` says of checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from embershard.cli.main import run
from embershard.embedding.checkpoint import TrainingState, write_checkpoint
from embershard.embedding.reference import ReferenceTableGroup
from embershard.embedding.table_config import ColumnBlock, TableConfig
from embershard.embedding.table_group import TableKeys
from embershard.ps_server import LocalStore


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    store = LocalStore(tables=ReferenceTableGroup(tablet_bits=2))
    store.ensure_tables([TableConfig(name="user", blocks=(ColumnBlock(dim=4),))])
    store.assign(TableKeys.of("user", [1, 2, 1 << 63]), np.ones(12, np.float32))
    state = TrainingState(step=20, cursor={"epoch": 0}, scalars={"auc": 0.75})
    return Path(write_checkpoint(tmp_path / "checkpoints", store, state))


def test_checkpoint_is_told_in_json(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(checkpoint), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["kind"] == "checkpoint"
    assert (facts["step"], facts["rows"], facts["auc"]) == (20, 3, 0.75)
    assert facts["tables"][0]["table"] == "user"
    assert facts["tables"][0]["rows"] == 3


def test_checkpoint_is_told_to_people(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(checkpoint)]) == 0
    out = capsys.readouterr().out
    assert "step: 20" in out
    assert "weights 4 x adagrad" in out


def test_folder_of_checkpoints_lists_them_and_says_what_is_none(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkpoint.parent / "step-000000030").mkdir()
    assert run(["inspect", str(checkpoint.parent.parent), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [entry["checkpoint"] for entry in facts["checkpoints"]] == ["step-000000020"]
    assert "without a manifest" in facts["skipped"][0]["reason"]


def test_directory_without_a_manifest_is_one_clear_error(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkpoint / "manifest.json").unlink()
    assert run(["inspect", str(checkpoint)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "without a manifest is no checkpoint" in captured.err


def test_path_that_is_not_there_is_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(tmp_path / "nothing")]) == 2
    assert "got no such path" in capsys.readouterr().err
