"""Says which gradient rows were refused: table, keys, push token, worker."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Mapping

from ..embedding.store import PushReport, PushToken

_log = logging.getLogger(__name__)


def worker_name() -> str:
    """This process, as messages name it: host:pid."""
    return f"{platform.node()}:{os.getpid()}"


def describe_token(token: PushToken | None) -> str:
    """The push that a token names, in words."""
    if token is None:
        return "push of no work unit"
    return f"push (unit {token.unit:#x}, lease {token.lease:#x}, batch {token.batch})"


def describe_keys(keys: tuple[int, ...], count: int) -> str:
    """`count` keys, of which the first are named."""
    return ", ".join(map(str, keys)) + (f" and {count - len(keys)} more" if count > len(keys) else "")


def log_refused_rows(report: PushReport, token: PushToken | None, held_out: Mapping[str, int]) -> None:
    """One warning a table with rows that the tables refused; what a guard held out of the push it has said itself."""
    for table, keys in report.non_finite_keys.items():
        update = report.tables.get(table)
        if update is not None and update.non_finite and not held_out.get(table):
            _log.warning(
                "worker %s, table %r, %s: %d rows refused, their gradients are not finite: keys %s",
                worker_name(),
                table,
                describe_token(token),
                update.non_finite,
                describe_keys(keys, update.non_finite),
            )
