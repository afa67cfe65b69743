"""Snapshots of a base and a delta put together: base + deltas = full, to the bit."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from ..table_group import TableRows, TabletSnapshot
from .tablet_file import row_clicks

_ROW_FIELDS = ("keys", "weights", "state", "count", "touched_at", "version")


def merge_snapshots(base: TabletSnapshot, delta: TabletSnapshot) -> TabletSnapshot:
    """The whole tablet as it was when `delta` was taken: erased keys leave, changed rows replace, new rows join.

    base:  a whole tablet.   delta: the same tablet since base's version; its counters and applied memory are whole.
    """
    tables = {
        name: merge_rows(base.tables[name], rows, delta.erased_since) if name in base.tables else rows
        for name, rows in delta.tables.items()
    }
    return dataclasses.replace(delta, tables=tables, since_version=None)


def merge_rows(base: TableRows, delta: TableRows, erased_since: int = 0) -> TableRows:
    """Rows of one table in one tablet after `delta`, ascending by key; keys erased before `erased_since` are let go."""
    kept = ~(np.isin(base.keys, delta.keys) | np.isin(base.keys, delta.erased_keys))
    keys = np.concatenate([base.keys[kept], delta.keys])
    order = np.argsort(keys, kind="stable")
    merged = {name: np.concatenate([getattr(base, name)[kept], getattr(delta, name)])[order] for name in _ROW_FIELDS}
    erased_keys, erased_versions = _merge_erased(base, delta, erased_since)
    # The delta knows best whether the table keeps clicks, unless it has no rows to tell.
    has_clicks = len((delta if len(delta.keys) else base).clicks) > 0
    return TableRows(
        **merged,
        admission_keys=delta.admission_keys,
        admission_counts=delta.admission_counts,
        erased_keys=erased_keys,
        erased_versions=erased_versions,
        clicks=np.concatenate([row_clicks(base)[kept], row_clicks(delta)])[order] if has_clicks else base.clicks[:0],
    )


def changed_since(snapshot: TabletSnapshot, since_version: int) -> TabletSnapshot:
    """Of a whole tablet, the rows with version > `since_version` and the keys erased since; counters stay whole."""

    def cut(rows: TableRows) -> TableRows:
        changed = rows.version > since_version
        gone = rows.erased_versions > since_version
        return TableRows(
            **_select(rows, changed),
            admission_keys=rows.admission_keys,
            admission_counts=rows.admission_counts,
            erased_keys=rows.erased_keys[gone],
            erased_versions=rows.erased_versions[gone],
        )

    tables = {name: cut(rows) for name, rows in snapshot.tables.items()}
    return dataclasses.replace(snapshot, tables=tables, since_version=since_version)


def _select(rows: TableRows, mask: npt.NDArray[np.bool_]) -> dict[str, npt.NDArray[Any]]:
    selected = {name: getattr(rows, name)[mask] for name in _ROW_FIELDS}
    return {**selected, "clicks": rows.clicks[mask] if len(rows.clicks) else rows.clicks}


def _merge_erased(
    base: TableRows, delta: TableRows, erased_since: int
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
    """Erased keys after `delta`: a key that has a row again is no longer erased, the later version counts."""
    old = ~(np.isin(base.erased_keys, delta.erased_keys) | np.isin(base.erased_keys, delta.keys))
    old &= base.erased_versions >= erased_since
    keys = np.concatenate([base.erased_keys[old], delta.erased_keys])
    versions = np.concatenate([base.erased_versions[old], delta.erased_versions])
    order = np.argsort(keys, kind="stable")
    return keys[order], versions[order]
