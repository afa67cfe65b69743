"""`embershard evaluate`: how well a trained model predicts a click log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import print_json, say


def evaluate(
    source: Annotated[
        Path, typer.Argument(help="A checkpoint, a run folder, or a run configuration.", metavar="CONFIG|CHECKPOINT")
    ],
    data: Annotated[
        list[str] | None,
        typer.Argument(help="Files of the form that was trained on; else its evaluation rows.", metavar="[DATA]..."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Measure AUC and log loss of a trained model; no table grows by it."""
    from .evaluation import evaluate_source

    found = evaluate_source(source, data or [])
    if as_json:
        print_json(found)
        return
    for name, value in found.items():
        if value is not None:
            say(f"{name}: {value:,}" if isinstance(value, int) else f"{name}: {value}")
