"""The command line as a whole: help, version, exit codes, what gets imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from embershard import __version__
from embershard.cli.main import run

HEAVY = ("torch", "pyarrow", "grpc", "sqlalchemy", "torchmetrics")


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    for command in ("demo", "train", "evaluate", "predict", "export", "inspect", "key", "bench", "shard", "cluster"):
        assert command in out


def test_version_is_the_package_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


def test_unknown_command_and_option_end_with_two_and_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trian"]) == 2
    assert "No such command 'trian'" in capsys.readouterr().err
    assert run(["inspect", "x", "--jsn"]) == 2
    captured = capsys.readouterr()
    assert "No such option" in captured.err
    assert captured.out == ""


def test_no_traceback_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "nonsense"]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert run(["bench", "nonsense", "--traceback"]) == 2
    assert "Traceback" in capsys.readouterr().err


def imported_by(arguments: list[str]) -> list[str]:
    code = (
        f"import sys; from embershard.cli.main import run; assert run({arguments!r}) == 0; "
        f"print(*[name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stderr.split()


@pytest.mark.process
def test_help_imports_nothing_heavy() -> None:
    assert imported_by(["--help"]) == []


@pytest.mark.process
def test_key_and_inspect_do_without_torch(tmp_path: Path) -> None:
    path = tmp_path / "features.yaml"
    path.write_text("features: [{name: user, kind: categorical}]\n")
    assert imported_by(["key", "user", "5", str(path)]) == ["pyarrow"]
    assert imported_by(["inspect", str(path)]) == ["pyarrow"]
