"""AUC and log loss over a whole pass: exact, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Metrics:
    """How well a pass was predicted.

    auc: NaN where it is not defined; `note` then says why.   logloss: mean negative log likelihood, in nats.
    examples: how many were seen.
    """

    auc: float
    logloss: float
    examples: int
    note: str | None = None


def measure(logits: Floats, labels: Floats, weights: Floats | None = None) -> Metrics:
    """Metrics of (n,) logits against (n,) labels in [0, 1], weighted by (n,) example weights."""
    if len(logits) == 0:
        return Metrics(float("nan"), float("nan"), 0, "no examples")
    if weights is not None and not weights.any():
        return Metrics(float("nan"), float("nan"), len(logits), "all examples weigh 0")
    area, note = auc(logits, labels, weights)
    return Metrics(area, logloss(logits, labels, weights), len(logits), note)


def auc(scores: Floats, labels: Floats, weights: Floats | None = None) -> tuple[float, str | None]:
    """Area under the ROC curve, and why it is NaN if it is.

    The chance that a positive scores above a negative, ties counting half (Hanley 1982); a label between 0 and 1 is
    that much of a positive and the rest of a negative. Cost: one sort."""
    if not np.isfinite(scores).all():
        return float("nan"), f"{int((~np.isfinite(scores)).sum())} scores are not finite"
    order = np.argsort(scores, kind="stable")
    positive = labels[order].astype(np.float64)
    negative = 1.0 - positive
    if weights is not None:
        positive, negative = positive * weights[order], negative * weights[order]
    positives, negatives = positive.sum(), negative.sum()
    if positives <= 0 or negatives <= 0:
        return float("nan"), f"all labels are {1 if negatives <= 0 else 0}: AUC needs both classes"
    starts = np.flatnonzero(np.concatenate([[True], np.diff(scores[order]) != 0]))
    positive_at, negative_at = np.add.reduceat(positive, starts), np.add.reduceat(negative, starts)
    below = np.cumsum(negative_at) - negative_at
    return float((positive_at * (below + 0.5 * negative_at)).sum() / (positives * negatives)), None


def logloss(logits: Floats, labels: Floats, weights: Floats | None = None) -> float:
    """Mean negative log likelihood in nats, from logits: log(1 + e^x) − label·x, without overflow."""
    x = logits.astype(np.float64)
    losses = np.logaddexp(0.0, x) - labels * x
    return float(np.average(losses, weights=weights))
