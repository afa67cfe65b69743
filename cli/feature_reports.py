"""Passes over the click log that tell about features: what they hold, which are alike, what they are worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..datasets.click_log import ClickLog
from ..feature_map import FeatureBatch, FeatureMap
from ..feature_map.grouping import group_features
from ..feature_map.profile_picture import draw_profile
from .console import note
from .data_config import evaluation_log, other_log, train_log
from .errors import UsageError
from .feature_statistics import with_statistics
from .importance_file import load_importance
from .run_config import load_run_config

IMPORTANCE_BATCH = 8192
PASS_ROWS = 65_536


def records_of(log: ClickLog, features: FeatureMap) -> Iterator[pa.RecordBatch]:
    """All rows of a click log with the columns that the features read, in file order."""
    for unit in log.units(0):
        yield from log.records(unit, features.columns, PASS_ROWS)


def profile_run(
    config: Path,
    overrides: Sequence[str],
    to: Path | None,
    *,
    picture: bool = True,
    importance: Path | None = None,
) -> dict[str, Any]:
    """The profile and the grouping report of a run's training rows; profile.parquet (and .png) lie in `folder`.

    importance: what `features importance --save` wrote; groups and suggestions go by it, else by what a feature's value
    tells of the label.   Raises: UsageError where it does not know every feature; as reading the log does.
    Where matplotlib is missing the picture is left out with a note that says what to install."""
    settings = load_run_config(config, overrides)
    features = FeatureMap.of(settings.features)
    known = {} if importance is None else load_importance(importance, [one.name for one in features.features])
    log = train_log(settings.data, features.columns, run=0)
    features = with_statistics(features, log, PASS_ROWS)
    dim = getattr(settings.model, "dim", 1)
    found, report = group_features(features, records_of(log, features), importance=known or None, dim=dim)
    folder = to or Path("runs") / config.stem / "profile"
    folder.mkdir(parents=True, exist_ok=True)
    found.save(folder / "profile.parquet")
    if picture:
        try:
            draw_profile(found, folder / "profile.png")
        except ImportError as error:
            note(str(error))
    return {
        "rows": found.rows,
        "click_rate": found.click_rate,
        "folder": str(folder),
        "features": [
            {
                "feature": one.name,
                "distinct": round(one.distinct),
                "null share": one.null_share,
                "values a row": one.values_per_row,
                "entropy bits": one.entropy_bits,
                "label information": one.label_information,
                **_auc_loss(known, one.name),
                "top value": _top(one.top),
                "suggested dim": one.suggested_dim,
                "suggested min count": one.suggested_min_count,
                "bytes": one.bytes_at_full_size,
            }
            for one in found.categorical
        ],
        "numbers": [
            {
                "feature": one.name,
                "mean": one.mean,
                "std": one.std,
                "low": one.low,
                "high": one.high,
                "zero share": one.zero_share,
                "label AUC": one.label_auc,
                **_auc_loss(known, one.name),
                "warning": one.warning,
            }
            for one in found.numeric
        ],
        "groups": [list(group) for group in report.groups if len(group) > 1],
        "suggestions": [
            {
                "feature": one.feature,
                "action": one.action,
                "reason": one.reason,
                "bytes an example": one.bytes_per_example,
                "bytes of rows": one.bytes_of_rows,
            }
            for one in report.suggestions
        ],
    }


def _auc_loss(known: Mapping[str, float], feature: str) -> dict[str, float]:
    return {"AUC loss": known[feature]} if known else {}


def rank_features(source: Path, data: Sequence[str], rows: int) -> list[dict[str, object]]:
    """Features of a trained model, most important first, measured on at most `rows` rows.

    Raises: UsageError where neither `data` nor the configuration names rows."""
    # Both load torch, which a profile can do without.
    from ..models.feature_importance import feature_importance
    from .evaluation import open_trained

    with open_trained(source) as assembly:
        features = assembly.features
        log = other_log(assembly.config.data, data) if data else evaluation_log(assembly.config.data, features.columns)
        if log is None:
            raise UsageError(f"expected DATA, since {source} names no evaluation rows ($.data.evaluate)")
        batches: list[FeatureBatch] = []
        for batch in log.batches(features, min(IMPORTANCE_BATCH, rows)):
            batches.append(batch)
            if sum(len(one) for one in batches) >= rows:
                break
        ranked = feature_importance(assembly.model, assembly.embeddings, features, batches)
        return [
            {"feature": one.feature, "auc_loss": one.auc_loss, "gradient_signal": one.gradient_signal} for one in ranked
        ]


def _top(top: Sequence[Any]) -> str:
    if not top:
        return "-"
    first = top[0]
    return f"{first.value if first.value is not None else f'key {first.key}'} ({first.count:,} times)"
