"""Public click logs by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .click_log import UNIT_ROWS, ClickLog
from .errors import ClickLogError
from .interaction_sequences import amazon_interactions, sasrec_interactions, taobao_user_behavior
from .movielens import movielens_1m, movielens_100k, movielens_latest
from .public_logs import adult, alimama_dmr, avazu, criteo, din_sequences, frappe

_OPENERS: dict[str, Callable[..., ClickLog]] = {
    "adult": adult,
    "alimama_dmr": alimama_dmr,
    "amazon_interactions": amazon_interactions,
    "avazu": avazu,
    "criteo": criteo,
    "din_sequences": din_sequences,
    "frappe": frappe,
    "movielens_100k": movielens_100k,
    "movielens_1m": movielens_1m,
    "movielens_latest": movielens_latest,
    "sasrec_interactions": sasrec_interactions,
    "taobao_user_behavior": taobao_user_behavior,
}
READY_MADE = tuple(_OPENERS)


def open_ready_made(name: str, path: str | Path, *, unit_rows: int = UNIT_ROWS, run: int | None = None) -> ClickLog:
    """The click log `name` over its publisher's files at `path`: a folder for MovieLens, files or globs for others.

    Raises: ClickLogError naming the ones there are."""
    if name not in _OPENERS:
        raise ClickLogError(f"expected one of {', '.join(READY_MADE)}, got {name!r}")
    return _OPENERS[name](path, unit_rows=unit_rows, run=run)
