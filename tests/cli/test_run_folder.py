"""Where a run's files go."""

from __future__ import annotations

from pathlib import Path

import pytest

from embershard.cli.errors import UsageError
from embershard.cli.run_folder import last_run, new_run


def test_runs_are_numbered_and_the_last_is_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "x"
    assert [new_run(folder, None).path.name for _ in range(3)] == ["run-0001", "run-0002", "run-0003"]
    (folder / "run-0009").mkdir()
    (folder / "notes").mkdir()
    assert new_run(folder, None).path.name == "run-0010"
    assert last_run(folder, None).path == folder / "run-0010"


def test_a_named_run_is_never_written_over(tmp_path: Path) -> None:
    run = new_run(tmp_path, "mine")
    assert new_run(tmp_path, "mine") == run
    run.config.write_text("a: 1\n")
    with pytest.raises(UsageError, match=r"expected a new run folder, got .*mine"):
        new_run(tmp_path, "mine")
    assert last_run(tmp_path, "mine") == run


@pytest.mark.parametrize("name", [None, "mine"])
def test_nothing_to_resume_is_said(tmp_path: Path, name: str | None) -> None:
    with pytest.raises(UsageError, match="expected a run, got none in"):
        last_run(tmp_path / "none", name)
