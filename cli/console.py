"""What a command prints: tables and progress for people, JSON for programs, never both on stdout."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO, cast

UNLIMITED_WIDTH = 10_000
"""Columns that output to a file or a pipe may take: nothing is folded there."""


class _People(io.TextIOBase):
    def write(self, text: str) -> int:
        """Write, or let it be."""
        try:
            return sys.stderr.write(text)
        except OSError:
            give_up_stderr()
            return len(text)

    def flush(self) -> None:
        """Flush, or let it be."""
        try:
            sys.stderr.flush()
        except OSError:
            give_up_stderr()

    def isatty(self) -> bool:
        """Whether somebody may be looking."""
        return sys.stderr.isatty()

    def fileno(self) -> int:
        """That of stderr."""
        return sys.stderr.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """That of stderr."""
        return sys.stderr.encoding


def people() -> TextIO:
    """Stderr, which what is reported on the way goes to; an error of writing there ends nothing."""
    return cast("TextIO", _People())


def open_streams() -> None:
    """Give stdin, stdout and stderr that the process was started without a place where nothing is kept, so that no
    file of ours takes their number; text that stdout has no letters for is escaped."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def is_given_up(stream: TextIO) -> bool:
    """Whether the process was started without this stream."""
    return getattr(stream, "name", None) == os.devnull


def give_up_stderr() -> None:
    """Nothing is written there any more; what waits in its buffer is dropped, also when the process ends."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stderr.fileno())
        os.close(nowhere)
        sys.stderr.flush()


def print_json(value: object) -> None:
    """Print `value` as one line of strict JSON (no NaN: an undefined number is null) and flush it."""
    say(json.dumps(strict_json(value), allow_nan=False))


def say(line: str = "") -> None:
    """Print one line for people, as it stands."""
    from ..datasets.whole_file import naming_file

    with naming_file("<stdout>"):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def note(line: str) -> None:
    """Print one line for people on stderr, out of the way of results."""
    people().write(line + "\n")
    people().flush()


def say_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """Print rows under column heads; numbers stand right, with thousands separated."""
    from rich.console import Console
    from rich.table import Table

    body = [list(row) for row in rows]
    table = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        is_number = bool(body) and all(isinstance(row[index], int | float) for row in body)
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in body:
        table.add_row(*(format_value(value) for value in row))
    width = None if sys.stdout.isatty() else UNLIMITED_WIDTH
    Console(file=sys.stdout, highlight=False, width=width).print(table)


def format_value(value: object) -> str:
    """A value as a person reads it."""
    if isinstance(value, bool) or value is None:
        return "-" if value is None else str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:,.4g}" if abs(value) >= 1000 else f"{value:.4f}"
    return str(value)


def strict_json(value: object) -> object:
    """`value` in plain dicts, lists and scalars that strict JSON has; a number that is not finite becomes None."""
    if isinstance(value, Mapping):
        return {str(key): strict_json(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [strict_json(child) for child in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int | bool):
        return value
    item = getattr(value, "item", None)
    return strict_json(item()) if callable(item) else str(value)
