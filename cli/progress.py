"""Progress of long work: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Protocol, TextIO

from .console import format_value

LINE_EVERY_SECONDS = 10.0


class Progress(Protocol):
    """Shows how far a piece of work is. Thread safety: one thread at a time."""

    def __enter__(self) -> Progress: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def update(self, done: int, facts: Mapping[str, object]) -> None:
        """`done` items are finished; `facts` are shown beside."""


def open_progress(title: str, unit: str, total: int | None, stream: TextIO | None = None) -> Progress:
    """A bar where `stream` (stdout unless given) is a terminal, else lines; `total` None: the end is not known."""
    target = sys.stdout if stream is None else stream
    if target.isatty():
        return _Bar(title, unit, total, target)
    return LineProgress(title, unit, total, target)


class LineProgress:
    """One line every `every_seconds`, and one at the end."""

    def __init__(
        self,
        title: str,
        unit: str,
        total: int | None,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title, self._unit, self._total, self._stream = title, unit, total, stream
        self._clock = clock
        self._started = self._shown_at = clock()
        self._done = self._shown = 0
        self._facts: Mapping[str, object] = {}

    def __enter__(self) -> LineProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._done > self._shown or (self._done == 0 and error is None):
            self._show()

    def update(self, done: int, facts: Mapping[str, object]) -> None:
        """Remember where the work is; print when the last line is old enough."""
        self._done, self._facts = done, facts
        if self._clock() - self._shown_at >= LINE_EVERY_SECONDS:
            self._show()

    def _show(self) -> None:
        now = self._clock()
        rate = self._done / max(now - self._started, 1e-9)
        of_total = "" if self._total is None else f" of {self._total:,}"
        parts = [f"{self._title}: {self._done:,}{of_total} {self._unit}", f"{rate:,.0f}/s", *_shown(self._facts)]
        self._stream.write(", ".join(parts) + "\n")
        self._stream.flush()
        self._shown, self._shown_at = self._done, now


class _Bar:
    """A rich progress bar with rate, time left and facts."""

    def __init__(self, title: str, unit: str, total: int | None, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn(unit),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[facts]}"),
            console=Console(file=stream),
        )
        self._task = self._bar.add_task(title, total=total, facts="")

    def __enter__(self) -> _Bar:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self, done: int, facts: Mapping[str, object]) -> None:
        """Move the bar; rich draws it at its own pace."""
        self._bar.update(self._task, completed=done, facts=", ".join(_shown(facts)))


def _shown(facts: Mapping[str, object]) -> list[str]:
    return [f"{name} {format_value(value)}" for name, value in facts.items() if value is not None]
