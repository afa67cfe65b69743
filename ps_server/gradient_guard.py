"""Gradient guard: what is not fit to be pushed is kept back in the worker, counted and reported."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from ..embedding.store import Push, PushReport
from ..embedding.table_group import TableKeys, split_rows
from .refused_rows import describe_keys, describe_token, worker_name
from .wire import NormSummary

TREND_LENGTH = 5
NAMED_KEYS = 16
_log = logging.getLogger(__name__)


class GuardOptions(BaseModel):
    """Rows with a gradient that is not finite are held out always.

    max_ratio:  a table's gradient norm in one push may be this many times the running mean over all workers.
    action:     beyond it, `hold_out` the table's rows of that push, or `clip` them down to the limit.
    min_pushes: pushes of a table before its mean is trusted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_ratio: float = Field(default=100.0, gt=1)
    action: Literal["hold_out", "clip"] = "hold_out"
    min_pushes: int = Field(default=50, ge=1)


@dataclass(frozen=True, slots=True)
class GuardedPush:
    """A push that may go. norms: root mean square of each table's gradient rows; the rest: see `PushReport`."""

    push: Push
    norms: dict[str, float]
    held_out: dict[str, int] = field(default_factory=dict)
    held_out_non_finite: dict[str, int] = field(default_factory=dict)
    clipped: tuple[str, ...] = ()
    non_finite_keys: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def add_to(self, report: PushReport) -> PushReport:
        """The shard's report with what was kept back in the worker."""
        keys = {**report.non_finite_keys, **self.non_finite_keys}
        return replace(
            report,
            held_out=self.held_out,
            held_out_non_finite=self.held_out_non_finite,
            clipped=self.clipped,
            non_finite_keys=keys,
        )


class GradientGuard:
    """Looks at each push of one worker before it leaves.

    Thread safety: one caller at a time (the store's lane). Cost: one pass over the gradients.
    """

    def __init__(self, options: GuardOptions) -> None:
        self._options = options
        self._known: dict[str, NormSummary] = {}
        self._trend: dict[str, deque[float]] = {}
        self._worker = worker_name()

    def learn(self, norms: Mapping[str, NormSummary]) -> None:
        """Running norms as a shard knows them, over all workers; of several shards the one with most pushes counts."""
        for table, norm in norms.items():
            if table not in self._known or norm.pushes >= self._known[table].pushes:
                self._known[table] = norm

    def inspect(self, push: Push, widths: Mapping[str, int]) -> GuardedPush:
        """The push without what must not go. `widths`: weights a row of each table."""
        dims = [widths[table] for table in push.keys.tables]
        tables = split_rows(push.keys, push.gradients, dims)
        keep: list[npt.NDArray[np.bool_] | None] = [None] * len(tables)
        scales: dict[int, float] = {}
        norms: dict[str, float] = {}
        held_out: dict[str, int] = {}
        non_finite: dict[str, int] = {}
        refused: dict[str, tuple[int, ...]] = {}
        for index, (table, rows) in enumerate(zip(push.keys.tables, tables, strict=True)):
            if rows.size == 0:
                continue
            flat = rows.reshape(-1)
            with np.errstate(over="ignore", invalid="ignore"):
                square = float(np.dot(flat, flat))
            if not math.isfinite(square):
                finite: npt.NDArray[np.bool_] = np.asarray(np.isfinite(rows).all(axis=1))
                if not finite.all():
                    keep[index] = finite
                    held_out[table] = non_finite[table] = int(len(rows) - finite.sum())
                    refused[table] = tuple(push.keys.keys_of(index)[~finite][:NAMED_KEYS].tolist())
                    named = describe_keys(refused[table], held_out[table])
                    self._report(table, push, f"{held_out[table]} rows are not finite; held out: keys {named}")
                kept = rows[finite].astype(np.float64)
                square, count = float(np.sum(kept * kept)), int(finite.sum())
            else:
                count = len(rows)
            if count == 0:
                continue
            norm = math.sqrt(square / count)
            limit = self._limit(table)
            self._trend.setdefault(table, deque(maxlen=TREND_LENGTH)).append(norm)
            if norm <= limit:
                norms[table] = norm
            elif self._options.action == "clip":
                scales[index] = limit / norm
                self._report(table, push, f"{self._beyond(table, norm)}; clipped to {limit:.3g}")
            else:
                keep[index] = np.zeros(len(rows), np.bool_)
                held_out[table] = len(rows)
                self._report(table, push, f"{self._beyond(table, norm)}; {len(rows)} rows held out")
        clipped = tuple(push.keys.tables[index] for index in scales)
        if not held_out and not clipped:
            return GuardedPush(push, norms)
        return GuardedPush(_reduced(push, tables, keep, scales), norms, held_out, non_finite, clipped, refused)

    def _limit(self, table: str) -> float:
        known = self._known.get(table)
        if known is None or known.pushes < self._options.min_pushes or known.mean <= 0:
            return math.inf
        return self._options.max_ratio * known.mean

    def _beyond(self, table: str, norm: float) -> str:
        known = self._known[table]
        trend = ", ".join(f"{value:.3g}" for value in self._trend[table])
        return (
            f"gradient norm {norm:.3g} is {norm / known.mean:.0f} times the mean {known.mean:.3g} of "
            f"{known.pushes} pushes (this worker's last: {trend})"
        )

    def _report(self, table: str, push: Push, what: str) -> None:
        _log.warning(
            "gradient guard: worker %s, table %r, %s: %s", self._worker, table, describe_token(push.token), what
        )


def _reduced(
    push: Push,
    tables: list[npt.NDArray[np.float32]],
    keep: list[npt.NDArray[np.bool_] | None],
    scales: Mapping[int, float],
) -> Push:
    masks = [np.ones(len(rows), np.bool_) if mask is None else mask for mask, rows in zip(keep, tables, strict=True)]
    scaled = [rows * np.float32(scales[index]) if index in scales else rows for index, rows in enumerate(tables)]
    gradients = [rows[mask].ravel() for rows, mask in zip(scaled, masks, strict=True)]
    splits = np.zeros(len(masks) + 1, np.int64)
    np.cumsum([int(mask.sum()) for mask in masks], out=splits[1:])
    whole = np.concatenate(masks) if masks else np.empty(0, np.bool_)
    return replace(
        push,
        keys=TableKeys(push.keys.tables, push.keys.keys[whole], splits),
        gradients=np.concatenate(gradients) if gradients else push.gradients,
        occurrences=push.occurrences[whole],
        clicks=None if push.clicks is None else push.clicks[whole],
        prepared=None,
    )
