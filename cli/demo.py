"""`embershard demo`: the main job on a built-in click log, no files needed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from .console import format_value, people, print_json, say


def demo(
    folder: Annotated[Path, typer.Option("--folder", help="Where everything is written.")] = Path("demo-run"),
    rows: Annotated[int, typer.Option("--rows", min=10_000, help="Rows of the built-in click log.")] = 600_000,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the weights and the order of rows.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line on stdout and nothing else.")] = False,
) -> None:
    """Train on a built-in click log whose best reachable AUC is known; write a checkpoint and an export."""
    from .demo_run import run_demo

    stream = people() if as_json else sys.stdout
    found = run_demo(folder, rows, seed, stream)
    if as_json:
        print_json(found)
        return
    say()
    say(f"AUC {format_value(found['auc'])}; the best that any model can reach on these rows: {found['best_auc']:.4f}")
    say(f"checkpoint: {found['checkpoint']}")
    say(f"export:     {found['export']} ({found['rows']:,} rows with their raw ids)")
    say()
    say("Try next:")
    command = _command()
    say(f"  {command} predict {folder}/demo.yaml {folder}/clicks/test.parquet --keep label --to {folder}/clicks.csv")
    say(f"  {command} train {folder}/demo.yaml model.dim=12 train.epochs=4")
    say(f"  {command} inspect {folder}/export")


def _command() -> str:
    """How this program was started, so that the lines printed work as they stand."""
    on_path = shutil.which("embershard")
    started = Path(sys.argv[0])
    if started.name != "embershard" or (on_path is not None and Path(on_path).resolve() == started.resolve()):
        return "embershard"
    try:
        return str(started.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(started)
