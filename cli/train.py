"""`embershard train`: one training run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .console import format_value, people, print_json, say
from .errors import UsageError


def train(
    config: Annotated[Path, typer.Argument(help="Run configuration (YAML).", metavar="CONFIG")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes to it, as train.epochs=3.", metavar="[key=value]...")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last run's newest checkpoint.")] = False,
    reinit: Annotated[
        list[str] | None,
        typer.Option("--reinit", metavar="TABLE", help="With --resume: start this table anew; repeat it."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON line on stdout and nothing else.")] = False,
) -> None:
    """Train a model from a click log; writes checkpoints, metrics and a report into the run's folder."""
    from .run_config import load_run_config
    from .training_run import train_run

    if reinit and not resume:
        raise UsageError(f"expected --reinit together with --resume, got --reinit {reinit[0]} alone")
    settings = load_run_config(config, overrides or ())
    stream = people() if as_json else sys.stdout
    finished = train_run(settings, config, resume=resume, stream=stream, reinit=reinit or ())
    report = finished.report
    facts = {
        "auc": report.auc,
        "logloss": report.logloss,
        "examples": report.examples,
        "examples_per_second": report.examples_per_second,
        "seconds": report.seconds,
        "rows": report.rows,
        "checkpoint": report.checkpoint,
        "report": str(finished.folder.report),
    }
    by_table: dict[str, dict[str, int]] = {
        name: {table.table: getattr(table, name) for table in report.tables if getattr(table, name)}
        for name in ("evicted", "held_out", "non_finite", "clipped")
    }
    if as_json:
        print_json({**facts, **by_table})
        return
    for name, value in facts.items():
        say(f"{name.replace('_', ' ')}: {format_value(value)}")
    units = {"evicted": "rows", "clipped": "pushes"}
    for name, tables in by_table.items():
        if tables:
            unit = units.get(name, "gradient rows")
            counts = ", ".join(f"{count:,} {unit} of {table}" for table, count in tables.items())
            say(f"{name.replace('_', ' ')}: {counts}")
    if report.history and report.history[-1]["note"]:
        say(f"note: {report.history[-1]['note']}")
