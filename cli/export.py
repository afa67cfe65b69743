"""`embershard export`: vectors of a checkpoint with their raw ids, in files that other systems read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import print_json, say, say_table
from .errors import UsageError

SUFFIX_FORMATS = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".safetensors": "safetensors"}


def export(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint, or a run folder.", metavar="CHECKPOINT")],
    to: Annotated[Path, typer.Option("--to", help="A file (one table; its suffix says the format) or a directory.")],
    tables: Annotated[
        list[str] | None, typer.Option("--table", help="Table to export; repeat it. Default: all.")
    ] = None,
    format: Annotated[str | None, typer.Option("--format", help="parquet, arrow, safetensors or npy.")] = None,
    vectors: Annotated[str, typer.Option("--vectors", help="float32, float16 or int8.")] = "float32",
    blocks: Annotated[list[str] | None, typer.Option("--block", help="Column block to export; repeat it.")] = None,
    min_count: Annotated[int, typer.Option("--min-count", help="Leave out rows that occurred less often.")] = 0,
    base: Annotated[Path | None, typer.Option("--base", help="An earlier export: write only what changed.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Write keys, raw ids, counts and vectors of a checkpoint's tables."""
    from ..embedding.checkpoint import open_checkpoint
    from ..embedding.export import ExportOptions, export_tables
    from ..feature_map.config_file import validate
    from .checkpoint_source import checkpoint_in
    from .value_keeping import kept_values

    chosen = format or SUFFIX_FORMATS.get(to.suffix, None if to.suffix else "parquet")
    if chosen is None:
        raise UsageError(f"expected --to with a suffix of {sorted(SUFFIX_FORMATS)} or --format, got {to}")
    data = {"format": chosen, "vectors": vectors, "blocks": blocks or None, "min_count": min_count}
    options = validate(ExportOptions, data, "embershard export")
    with open_checkpoint(checkpoint_in(checkpoint)) as source:
        values, collisions = kept_values(Path(source.path), tuple(table.name for table in source.tables()))
        report = export_tables(source, to, tables or None, options, dictionaries=values, base=base)
    if as_json:
        seen = {one.table: {"texts": one.texts, "expected": one.expected, "seen": one.seen} for one in collisions}
        print_json({"path": report.path, "rows": report.rows, "erased": report.erased, "collisions": seen})
        return
    erased = {} if base is None else report.erased
    columns = ["table", "rows", *(["erased"] if erased else [])]
    rows = [[name, count, *([erased[name]] if erased else [])] for name, count in report.rows.items()]
    say(f"exported to {report.path}")
    say_table(columns, rows)
    for one in collisions:
        say(f"texts of {one.table}: {one.texts:,}, collisions of keys: {one.seen} seen, {one.expected:.2g} expected")
