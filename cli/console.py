"""What a command prints: tables and progress for people, JSON for programs, never both on stdout."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence

UNLIMITED_WIDTH = 10_000
"""Columns that output to a file or a pipe may take: nothing is folded there."""


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
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


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
