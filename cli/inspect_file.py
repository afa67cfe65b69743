"""`embershard inspect`: what a checkpoint, an export, a run or a feature map holds, without loading rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import format_value, print_json, say, say_table
from .errors import UsageError

if TYPE_CHECKING:
    from ..embedding.checkpoint import Manifest


def inspect(
    path: Annotated[Path, typer.Argument(help="A checkpoint, an export, a run folder or a feature map.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Say what a checkpoint, an export, a run folder or a feature map holds."""
    facts = _facts(path)
    if as_json:
        print_json(facts)
    else:
        _say(facts)


def _facts(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise UsageError(f"expected a checkpoint, an export, a run folder or a feature map, got no such path: {path}")
    if _is_export(path):
        return _export_facts(path)
    if path.is_dir():
        root = path / "checkpoints" if (path / "checkpoints").is_dir() else path
        if (path / "manifest.json").exists() or not any(root.glob("step-*")):
            return _checkpoint_facts(path)
        return _root_facts(root)
    return _feature_map_facts(path)


def _is_export(path: Path) -> bool:
    manifest = path / "manifest.json" if path.is_dir() else path.with_name(f"{path.name}.manifest.json")
    try:
        start = manifest.read_bytes()[:200]
    except OSError:
        return False
    return b"embershard-export" in start


def _export_facts(path: Path) -> dict[str, Any]:
    from ..embedding.export import read_export_manifest

    manifest = read_export_manifest(path)[1]
    return {
        "kind": "export",
        "path": str(path),
        "format": manifest.options.format,
        "vectors": manifest.options.vectors,
        "step": manifest.step,
        "checkpoint": manifest.checkpoint,
        "package_version": manifest.package_version,
        "feature_map_hash": manifest.feature_map_hash,
        "is_delta": manifest.since is not None,
        "rows": sum(table.rows for table in manifest.tables),
        "bytes": sum(file.bytes for table in manifest.tables for file in table.files),
        "tables": [
            {
                "table": table.name,
                "id": table.id,
                "dim": table.dim,
                "blocks": {block.name: block.dim for block in table.blocks},
                "rows": table.rows,
                "erased": table.erased,
                "bytes": sum(file.bytes for file in table.files),
            }
            for table in manifest.tables
        ],
    }


def _checkpoint_facts(path: Path) -> dict[str, Any]:
    from ..embedding.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(path, verify="sizes")
    try:
        return {"kind": "checkpoint", "path": str(path), **_manifest_facts(checkpoint.manifest)}
    finally:
        checkpoint.close()


def _manifest_facts(manifest: Manifest) -> dict[str, Any]:
    scalars = manifest.scalars if isinstance(manifest.scalars, dict) else {}
    return {
        "step": manifest.step,
        "package_version": manifest.package_version,
        "format_version": manifest.format_version,
        "base": manifest.base,
        "tablets": 1 << manifest.tablet_bits,
        "feature_map_hash": manifest.feature_map_hash,
        "cursor": manifest.cursor,
        "auc": scalars.get("auc"),
        "logloss": scalars.get("logloss"),
        "rows": sum(manifest.row_counts.values()),
        "bytes": sum(entry.bytes for entry in manifest.files),
        "tables": [
            {
                "table": table.name,
                "dim": table.dim,
                "dtype": table.dtype,
                "blocks": {block.name: f"{block.dim} x {block.optimizer.kind}" for block in table.blocks},
                "rows": manifest.row_counts.get(table.name, 0),
                "bytes": sum(entry.bytes for entry in manifest.of_kind("rows", table.name)),
            }
            for table in manifest.tables
        ],
    }


def _root_facts(root: Path) -> dict[str, Any]:
    from ..embedding.checkpoint import list_checkpoints

    complete, skipped = list_checkpoints(root)
    return {
        "kind": "checkpoints",
        "path": str(root),
        "checkpoints": [
            {
                "checkpoint": entry.name,
                "step": entry.manifest.step,
                "base": entry.manifest.base,
                "rows": sum(entry.manifest.row_counts.values()),
                "bytes": sum(file.bytes for file in entry.manifest.files),
            }
            for entry in complete
        ],
        "skipped": [{"path": entry.path, "reason": entry.reason} for entry in skipped],
    }


def _feature_map_facts(path: Path) -> dict[str, Any]:
    from ..feature_map.feature_columns import columns_of
    from ..feature_map.feature_config import Numeric
    from .feature_map_source import load_feature_map

    features = load_feature_map(path)
    return {
        "kind": "feature map",
        "path": str(path),
        "version": features.version,
        "hash": features.hash,
        "labels": list(features.labels),
        "dense_width": features.dense_width,
        "features": [
            {
                "feature": feature.name,
                "kind": feature.kind,
                "columns": list(columns_of(feature, features.config)),
                "pooling": None if isinstance(feature, Numeric) else feature.pooling,
                "table": None if isinstance(feature, Numeric) else feature.table,
            }
            for feature in features.features
        ],
        "tables": [
            {
                "table": table.name,
                "key_space": table.key_space,
                "id": table.id,
                "dim": table.dim,
                "features": list(table.features),
            }
            for table in features.tables
        ],
    }


def _say(facts: dict[str, Any]) -> None:
    lists = {name: value for name, value in facts.items() if _is_table(value)}
    for name, value in facts.items():
        if name not in lists and value is not None and value != []:
            say(f"{name.replace('_', ' ')}: {format_value(value)}")
    for value in lists.values():
        say()
        columns = list(value[0])
        say_table(columns, [[_cell(row.get(column)) for column in columns] for row in value])


def _is_table(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _cell(value: object) -> object:
    if isinstance(value, dict):
        return ", ".join(f"{name} {text}" for name, text in value.items())
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    return value
