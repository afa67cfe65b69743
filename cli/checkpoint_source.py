"""The checkpoint behind a path: itself, or the best of a run or of a folder of checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import UsageError

if TYPE_CHECKING:
    from ..embedding.checkpoint import CatalogEntry


def checkpoint_in(path: Path) -> Path:
    """`path` itself, or the best complete checkpoint of the run or folder that it is.

    Best is the highest `auc` on record among those of the newest one's features, else the newest.
    Raises: UsageError where there is none."""
    from ..embedding.checkpoint import list_checkpoints

    root = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    if (path / "manifest.json").exists():
        return path
    if not any(root.glob("step-*")):
        if root != path:
            raise UsageError(f"expected a complete checkpoint in {root}, got none")
        return path
    complete, skipped = list_checkpoints(root)
    if not complete:
        reasons = "".join(f"\n  {entry.path}: {entry.reason}" for entry in skipped)
        raise UsageError(f"expected a complete checkpoint in {root}, got none{reasons}")
    alike = of_newest_features(complete)
    scored = [entry for entry in alike if _auc(entry.manifest.scalars) is not None]
    best = max(scored, key=lambda entry: _auc(entry.manifest.scalars) or 0.0) if scored else complete[-1]
    return Path(best.directory.path)


def of_newest_features(checkpoints: Sequence[CatalogEntry]) -> list[CatalogEntry]:
    """Those of the feature map that the newest one has, which is given last: metrics under others do not compare."""
    hashes = [entry.manifest.feature_map_hash for entry in checkpoints]
    return [entry for entry, found in zip(checkpoints, hashes, strict=True) if found == hashes[-1]]


def _auc(scalars: object) -> float | None:
    value = scalars.get("auc") if isinstance(scalars, dict) else None
    return value if isinstance(value, float) else None
