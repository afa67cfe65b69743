"""What each shard gets of an exchange, and the shards' answers put together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..embedding.store import Exchange, Pull, Push, PushReport, Rows
from ..embedding.table_group import TableStats, UpdateReport
from .partition import RowLayout
from .shard import merge_updates
from .shard_link import ExchangeBytes
from .tablets import TabletMask
from .wire import NormSummary, decode_exchange_reply

Positions = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class ExchangePart:
    """What one shard gets of an exchange; positions None: all keys of the request."""

    shard: int
    push: Push | None
    tablets: TabletMask | None
    push_positions: Positions | None
    pull: Pull | None
    pull_positions: Positions | None


class GatheredExchange:
    """The answers of the shards, put together."""

    def __init__(
        self, push: Push | None, pull: Pull | None, layout: RowLayout | None, tablet_bits: int, *, whole: bool
    ) -> None:
        self._pull, self._layout, self._bits = pull, layout, tablet_bits
        self._has_push = push is not None
        self._reports: list[PushReport] = []
        self._values: npt.NDArray[np.float32] | None = None
        self._pushes = np.zeros(1 << tablet_bits, np.uint64)
        self.norms: dict[str, NormSummary] = {}
        self.wants_checkpoint = False

    def add(self, part: ExchangePart, reply: ExchangeBytes, tablets: TabletMask) -> None:
        """Take one shard's reply in. tablets: those it owned when it was asked."""
        shared_reply = None if reply.block is None else reply.block.reply
        answer = decode_exchange_reply(reply.data, part.pull, self._bits, shared_reply=shared_reply)
        if answer.exchange.report is not None:
            self._reports.append(answer.exchange.report)
            self.wants_checkpoint = self.wants_checkpoint or answer.wants_checkpoint
            self.norms.update(answer.norms)
        rows = answer.exchange.rows
        if rows is None or self._layout is None:
            return
        self._pushes[tablets] = rows.pushes[tablets]
        if part.pull_positions is None:
            check_values(rows.values, self._layout.size, "row values")
            # Rows in shared memory stay there only until the next exchange.
            is_shared = reply.block is not None and not rows.values.flags.owndata
            self._values = rows.values.copy() if is_shared else rows.values
            return
        check_values(rows.values, self._layout.count(part.pull_positions), "row values")
        if self._values is None:
            self._values = np.empty(self._layout.size, np.float32)
        self._layout.put(self._values, part.pull_positions, rows.values)

    def exchange(self) -> Exchange:
        """The whole answer."""
        rows = None
        if self._pull is not None:
            values = np.empty(0, np.float32) if self._values is None else self._values
            rows = Rows(self._pull.keys, values, self._pushes)
        return Exchange(_merge_reports(self._reports) if self._has_push else None, rows)


def _merge_reports(reports: list[PushReport]) -> PushReport:
    update = merge_updates([UpdateReport(report.tables, report.non_finite_keys) for report in reports])
    return PushReport(
        sum(report.applied for report in reports),
        sum(report.duplicate for report in reports),
        sum(report.fenced for report in reports),
        sum(report.stale for report in reports),
        update.tables,
        update.non_finite_keys,
    )


def merge_stats(shards: list[dict[str, TableStats]]) -> dict[str, TableStats]:
    """Statistics of all shards, table by table."""
    merged: dict[str, TableStats] = {}
    for stats in shards:
        for name, table in stats.items():
            known = merged.get(name)
            if known is None:
                merged[name] = table
                continue
            rows = known.rows + table.rows
            parts = {
                part: known.bytes_by_part.get(part, 0) + table.bytes_by_part.get(part, 0)
                for part in known.bytes_by_part | table.bytes_by_part
            }
            load = (known.load_factor * known.rows + table.load_factor * table.rows) / max(rows, 1)
            merged[name] = TableStats(rows, parts, load, known.rows_by_tablet + table.rows_by_tablet)
    return merged


def check_values(values: npt.NDArray[np.float32], expected: int, what: str) -> None:
    """Raises: ValueError unless there are as many values as the keys need."""
    if len(values) != expected:
        raise ValueError(f"expected {expected} {what} for the keys, got {len(values)}")
