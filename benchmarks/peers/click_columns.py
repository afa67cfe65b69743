"""The benchmark click log as the arrays a peer wants: ids, dense floats, labels. NumPy and pyarrow only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

DENSE_COLUMNS = tuple(f"I{index}" for index in range(1, 14))
ID_COLUMNS = tuple(f"C{index}" for index in range(1, 27))


@dataclass(frozen=True)
class ClickColumns:
    """ids (n, 26) int64 raw values, dense (n, 13) float32 log1p, label (n,) float32."""

    ids: Any
    dense: Any
    label: Any

    def numbered(self) -> tuple[Any, int]:
        """(n, 26) int64 ids numbered from 0 over all columns, and how many: what a static table needs, untimed."""
        columns, start = [], 0
        for column in range(self.ids.shape[1]):
            distinct, number = np.unique(self.ids[:, column], return_inverse=True)
            columns.append(number.reshape(-1) + start)
            start += len(distinct)
        return np.stack(columns, 1).astype(np.int64), start


def read_clicks(path: Path) -> ClickColumns:
    """The whole file, read into memory."""
    table = pq.read_table(path)
    ids = np.stack([table[name].to_numpy().astype(np.int64) for name in ID_COLUMNS], 1)
    dense = np.log1p(np.stack([table[name].to_numpy() for name in DENSE_COLUMNS], 1)).astype(np.float32)
    return ClickColumns(ids, dense, table["label"].to_numpy().astype(np.float32))
