"""`embershard features`: change a feature map, and learn what its features hold and are worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import note, print_json, say, say_table

app = typer.Typer(help="Add, remove, compare, profile and rank features.", no_args_is_help=True, rich_markup_mode=None)

MapFile = Annotated[Path, typer.Argument(help="Feature map or run configuration.", metavar="CONFIG")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


@app.command("add")
def add(
    config: MapFile,
    fields: Annotated[list[str], typer.Argument(help="name=city kind=categorical id=text …", metavar="key=value...")],
    as_json: Json = False,
) -> None:
    """Append a feature and raise the map's version; old keys, rows and checkpoints stay valid."""
    from ..feature_map.feature_map_edit import add_to_file
    from .overrides import apply_overrides

    path, section = _place(config)
    changed = add_to_file(path, apply_overrides({}, fields), section=section)
    _say_change(path, changed.version, [feature.name for feature in changed.features], as_json)


@app.command("remove")
def remove(
    config: MapFile, name: Annotated[str, typer.Argument(help="Name of the feature.")], as_json: Json = False
) -> None:
    """Take a feature out and raise the map's version; its table is dropped at the next resume."""
    from ..feature_map.feature_map_edit import remove_from_file

    path, section = _place(config)
    changed = remove_from_file(path, name, section=section)
    _say_change(path, changed.version, [feature.name for feature in changed.features], as_json)


@app.command("diff")
def diff(
    old: Annotated[Path, typer.Argument(help="Feature map, run configuration or checkpoint.")],
    new: Annotated[Path, typer.Argument(help="The same.")],
    as_json: Json = False,
) -> None:
    """Say what differs between two feature maps, and whether rows and keys survive it."""
    from ..feature_map.feature_map_change import diff as difference
    from .feature_map_source import load_feature_map

    found = difference(load_feature_map(old), load_feature_map(new))
    if as_json:
        changed = [
            {"feature": c.feature, "field": c.field, "old": str(c.old), "new": str(c.new), "effect": c.effect}
            for c in found.changed
        ]
        print_json(
            {
                "added": found.added,
                "removed": found.removed,
                "changed": changed,
                "tables_added": found.tables_added,
                "tables_dropped": found.tables_dropped,
                "order_changed": found.order_changed,
            }
        )
        return
    lines = [f"+ {name}" for name in found.added] + [f"- {name}" for name in found.removed]
    lines += [f"~ {change}" for change in found.changed] + (["~ order of features"] if found.order_changed else [])
    for line in lines or ["no difference"]:
        say(line)


@app.command("profile")
def profile(
    config: Annotated[Path, typer.Argument(help="Run configuration.", metavar="CONFIG")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Changes to it.", metavar="[key=value]...")] = None,
    to: Annotated[Path | None, typer.Option("--to", help="Folder for profile.parquet and profile.png.")] = None,
    picture: Annotated[bool, typer.Option("--picture/--no-picture", help="Draw the picture.")] = True,
    importance: Annotated[
        Path | None,
        typer.Option("--importance", help="What `features importance --save` wrote: group and suggest by it."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Read the rows that train once: distinct values, nulls, entropy, label information, memory, suggestions."""
    from .feature_reports import profile_run

    found = profile_run(config, overrides or (), to, picture=picture, importance=importance)
    if as_json:
        print_json(found)
        return
    for name in ("features", "numbers", "suggestions"):
        rows = found[name]
        if rows:
            say_table(list(rows[0]), [list(row.values()) for row in rows], title=name)
            say()
    for group in found["groups"]:
        say(f"alike: {', '.join(group)}")
    note(f"saved in {found['folder']}")


@app.command("importance")
def importance(
    checkpoint: Annotated[Path, typer.Argument(help="Checkpoint, run folder or run configuration.")],
    data: Annotated[
        list[str] | None, typer.Argument(help="Files; else the evaluation rows.", metavar="[DATA]...")
    ] = None,
    rows: Annotated[int, typer.Option("--rows", min=100, help="At most so many rows are looked at.")] = 50_000,
    save: Annotated[
        Path | None, typer.Option("--save", help="Also write the ranking to a JSON file, for `features profile`.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Rank features by the AUC that is lost without them, beside the gradient signal of their rows."""
    from .feature_reports import rank_features
    from .importance_file import save_importance

    found = rank_features(checkpoint, data or [], rows)
    if save is not None:
        save_importance(save, found)
    if as_json:
        print_json(found)
        return
    say_table(list(found[0]), [list(row.values()) for row in found])
    if save is not None:
        note(f"saved in {save}")


def _place(config: Path) -> tuple[Path, tuple[str, ...]]:
    """The file that holds the map behind `config`, and the keys that lead to it there."""
    from ..feature_map.config_file import read_yaml

    section = read_yaml(config).get("features")
    if isinstance(section, str):
        return config.parent / section, ()
    return config, () if isinstance(section, list) else ("features",)


def _say_change(path: Path, version: int, names: list[str], as_json: bool) -> None:
    if as_json:
        print_json({"path": str(path), "version": version, "features": names})
    else:
        say(f"{path} is at version {version} now: {', '.join(names)}")
