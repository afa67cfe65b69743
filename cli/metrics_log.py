"""What a run measures while it goes: one JSON object a line, and TensorBoard scalars where asked for."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ..datasets.whole_file import naming_file

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter


class MetricsLog:
    """Writes scalars of a run under a step number. Thread safety: one thread at a time.

    A resumed run goes on in the same file, without a last line that was not written whole; lines after the step it
    resumed at are of the run that stopped there.
    """

    def __init__(self, path: Path, tensorboard: Path | None = None) -> None:
        _cut_torn_line(path)
        self._file = path.open("a", encoding="utf-8")
        self._writer: SummaryWriter | None = None
        if tensorboard is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(tensorboard))

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, phase: str, step: int, scalars: Mapping[str, float | None]) -> None:
        """Write `scalars` of `phase` (train, evaluate) at `step`; a value that is None or not finite becomes null."""
        known = {name: value for name, value in scalars.items() if value is not None and math.isfinite(value)}
        line = {"phase": phase, "step": step, **{name: known.get(name) for name in scalars}}
        with naming_file(self._file.name):
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        if self._writer is not None:
            for name, value in known.items():
                self._writer.add_scalar(f"{phase}/{name}", value, step)

    def close(self) -> None:
        """Flush and close both; idempotent."""
        self._file.close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _cut_torn_line(path: Path) -> None:
    """Cut off what follows the last line break, as a full disk leaves it."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        text = file.read()
        if text and not text.endswith(b"\n"):
            file.truncate(text.rfind(b"\n") + 1)
