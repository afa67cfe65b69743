"""`embershard predict`: click probabilities of a click log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import note, print_json


def predict(
    source: Annotated[
        Path, typer.Argument(help="A checkpoint, a run folder, or a run configuration.", metavar="CONFIG|CHECKPOINT")
    ],
    data: Annotated[list[str], typer.Argument(help="Files of the form that was trained on.", metavar="DATA...")],
    keep: Annotated[
        list[str] | None, typer.Option("--keep", help="Columns of DATA to write beside: a,b or repeat it.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", help="A .parquet, .arrow or .csv file; default: CSV on stdout.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --to: print one JSON object.")] = False,
) -> None:
    """Predict the click probability of every row, in row order; unseen keys read zeros and no table grows."""
    from .prediction import predict_to_file

    columns = [name for words in keep or () for name in words.split(",")]
    rows = predict_to_file(source, data, columns, to)
    if to is None:
        return
    if as_json:
        print_json({"rows": rows, "path": str(to)})
    else:
        note(f"{rows:,} predictions in {to}")
