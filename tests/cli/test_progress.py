"""Progress on terminals and elsewhere."""

from __future__ import annotations

import io

from embershard.cli.progress import LineProgress, open_progress


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_lines_come_every_ten_seconds_and_at_the_end() -> None:
    stream, clock = io.StringIO(), Clock()
    with LineProgress("train", "examples", 4000, stream, clock) as progress:
        for step in range(1, 5):
            clock.now = 6.0 * step
            progress.update(1000 * step, {"loss": 0.5, "auc": None})
    assert stream.getvalue().splitlines() == [
        "train: 2,000 of 4,000 examples, 167/s, loss 0.5000",
        "train: 4,000 of 4,000 examples, 167/s, loss 0.5000",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_and_a_file_gets_lines() -> None:
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        with open_progress("train", "examples", 10, stream) as progress:
            progress.update(10, {"loss": 0.25})
    assert "━" in terminal.getvalue()
    assert file.getvalue().startswith("train: 10 of 10 examples, ")
