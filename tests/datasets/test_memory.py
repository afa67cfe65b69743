"""Memory stays bounded, whatever the size of the log."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embershard.datasets import BatchId, ClickLog, ColumnSpec


class Counts:
    columns = (ColumnSpec("label"), ColumnSpec("id"))

    def encode(self, records: pa.RecordBatch, id: BatchId | None = None) -> int:
        return records.num_rows


@pytest.mark.slow
def test_200_million_rows_are_read_in_less_than_500_mb(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    table = pa.table(
        {"label": draw.integers(0, 2, 1_000_000).astype(np.int8), "id": draw.integers(0, 1 << 40, 1_000_000)}
    )
    path = tmp_path / "clicks.parquet"
    pq.write_table(table, path)  # one row group of a million rows
    log = ClickLog([path] * 200)
    process = psutil.Process()
    before = peak = process.memory_info().rss
    rows = 0
    for count in log.batches(Counts(), 65_536):
        rows += count
        peak = max(peak, process.memory_info().rss)
    assert rows == 200_000_000
    assert peak - before < 500 << 20


def test_a_large_row_group_is_never_decoded_whole(tmp_path: Path) -> None:
    rows, width = 1_200_000, 8
    table = pa.table({f"c{i}": np.arange(rows) * 7919 + i for i in range(width)})
    path = tmp_path / "clicks.parquet"
    pq.write_table(table, path, row_group_size=rows, use_dictionary=False)
    size = table.nbytes
    del table
    columns = [ColumnSpec(f"c{i}") for i in range(width)]
    log = ClickLog(path, unit_rows=20_000)
    before = peak = pa.total_allocated_bytes()
    for unit in log.units(0, shuffle=True):
        for _ in log.records(unit, columns, 1_000, shuffle=True):
            peak = max(peak, pa.total_allocated_bytes())
    assert 0 < peak - before < size / 3
