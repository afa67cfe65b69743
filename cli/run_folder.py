"""The folder of one training run: what lies where."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..cluster.errors import LockHeldError
from ..cluster.lock_file import hold_lock
from .errors import UsageError

LOCK_FILE = "training.lock"
_NUMBERED = re.compile(r"run-(\d{4,})")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths inside a run's folder.

    runs/movielens/run-0001/
        config.yaml      the configuration as it was used, overrides included; `embershard train` reads it back
        checkpoints/     step-000012000/ …, each complete or absent
        metrics.jsonl    one JSON object a line: progress of training, each evaluation
        report.json      what was measured; report.md says it for people
        tensorboard/     event files, with `output.tensorboard: true`
        training.lock    while a process trains it; has its pid
    """

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def report(self) -> Path:
        return self.path / "report.json"

    @property
    def report_text(self) -> Path:
        return self.path / "report.md"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @contextmanager
    def trained_alone(self) -> Iterator[None]:
        """No other process trains the run during the block. Raises: UsageError naming the one that does."""

        def refusal(held: LockHeldError) -> Exception:
            return UsageError(f"expected a run that nobody trains, got {self.path}, which {held.holder} trains")

        with hold_lock(self.path / LOCK_FILE, refusal):
            yield


def check_new_run(folder: Path, name: str | None) -> None:
    """Raises: UsageError where `folder` holds a run called `name` already. Changes nothing."""
    if name is None or not (folder / name).is_dir():
        return
    if any(path.name != LOCK_FILE for path in (folder / name).iterdir()):
        raise UsageError(
            f"expected a new run folder, got {folder / name} with a run in it; --resume it, or name another one"
        )


def new_run(folder: Path, name: str | None) -> RunFolder:
    """A fresh run in `folder`: `name`, or the next of run-0001, run-0002 … The directory is made.

    Raises: UsageError where a run of that name is there already."""
    if name is not None:
        check_new_run(folder, name)
        (folder / name).mkdir(parents=True, exist_ok=True)
        return RunFolder(folder / name)
    number = max((_number(path) for path in _runs(folder)), default=0)
    while True:
        number += 1
        path = folder / f"run-{number:04d}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        return RunFolder(path)


def last_run(folder: Path, name: str | None) -> RunFolder:
    """The run called `name`, or the one with the highest number. Raises: UsageError where there is none."""
    if name is not None:
        runs = [folder / name] if (folder / name).is_dir() else []
    else:
        runs = sorted(_runs(folder), key=_number)
    if not runs:
        raise UsageError(f"expected a run, got none in {folder if name is None else folder / name}")
    return RunFolder(runs[-1])


def _runs(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if _NUMBERED.fullmatch(path.name) and path.is_dir()]


def _number(path: Path) -> int:
    match = _NUMBERED.fullmatch(path.name)
    return int(match.group(1)) if match else 0
