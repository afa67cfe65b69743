"""The file that `features importance --save` writes and `features profile --importance` reads: the ranking as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..datasets.whole_file import whole_file
from .console import strict_json
from .errors import UsageError


def save_importance(path: Path, ranked: Sequence[Mapping[str, object]]) -> None:
    """Write the ranking as JSON; the file is replaced at once or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as partial:
        partial.write_text(json.dumps(strict_json(ranked), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def load_importance(path: Path, features: Sequence[str]) -> dict[str, float]:
    """The AUC that is lost without each of `features`.

    Raises: FileNotFoundError; UsageError where the file is none of these, or says nothing of one of the features."""
    try:
        ranked = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{path}: expected what `features importance --save` writes, got {error}") from None
    found: dict[str, float] = {}
    for place, entry in enumerate(ranked if isinstance(ranked, list) else [ranked]):
        name, lost = (entry.get("feature"), entry.get("auc_loss")) if isinstance(entry, dict) else (None, None)
        is_number = isinstance(lost, int | float) and not isinstance(lost, bool)
        if not isinstance(name, str) or not is_number or lost is None or not math.isfinite(lost):
            raise UsageError(
                f"{path}: expected a feature and its auc_loss at $[{place}], got {json.dumps(entry)[:120]}"
            )
        found[name] = float(lost)
    missing = [name for name in features if name not in found]
    if missing:
        raise UsageError(
            f"{path}: expected the importance of every feature, got none of {missing}; rank them with a checkpoint "
            "that was trained with them"
        )
    return found
