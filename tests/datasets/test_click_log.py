"""ClickLog: every row once, batches that are always the same, and exact resume."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from embershard.datasets import BatchId, ClickLog, ClickLogError, ColumnSpec, RandomPart, ReadPosition

ROWS = 2_500


class RowIds:
    """Encoder whose batch is the ids of its rows and the batch's name."""

    columns = (ColumnSpec("row", pa.int64()),)

    def encode(self, records: pa.RecordBatch, id: BatchId | None = None) -> tuple[BatchId | None, list[int]]:
        return id, records.column("row").to_pylist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three Parquet files whose rows are numbered through: row groups smaller, equal and larger than a unit."""
    folder = tmp_path_factory.mktemp("clicks")
    first = 0
    for name, rows, group in (("a", 700, 700), ("b", 30, 7), ("c", ROWS - 730, 100)):
        table = pa.table({"row": np.arange(first, first + rows), "noise": np.zeros(rows)})
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=group)
        first += rows
    return folder


def log_of(folder: Path, **options: int) -> ClickLog:
    return ClickLog(folder / "*.parquet", unit_rows=100, run=options.pop("run", 1), **options)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_every_row_comes_once_and_batches_are_full_inside_a_unit(folder: Path, shuffle: bool, prefetch: int) -> None:
    batches = list(log_of(folder).batches(RowIds(), 32, shuffle=shuffle, prefetch=prefetch))
    assert sorted(row for _, rows in batches for row in rows) == list(range(ROWS))
    by_unit: dict[int, list[int]] = {}
    for name, rows in batches:
        assert name is not None
        assert name.index == len(by_unit.setdefault(name.unit, []))
        by_unit[name.unit].append(len(rows))
    for sizes in by_unit.values():
        assert set(sizes[:-1]) <= {32}
        assert 1 <= sizes[-1] <= 32
    in_order = [row for _, rows in batches for row in rows] == list(range(ROWS))
    assert in_order is not shuffle


class EvenRows:
    """A stage of one's own, without words for itself."""

    inputs, outputs, kept_share = (ColumnSpec("row", pa.int64()),), (), 0.5

    def apply(self, records: pa.RecordBatch, origin: object) -> pa.RecordBatch:
        return records.filter(pa.array(np.asarray(records.column("row")) % 2 == 0))


def test_a_fingerprint_is_the_same_in_each_process_and_tells_units_and_stages(folder: Path) -> None:
    kept = [EvenRows(), EvenRows()]  # at two addresses
    first, again = (log_of(folder).with_stages(stage).fingerprint() for stage in kept)
    assert first == again
    others = [log_of(folder), log_of(folder).with_stages(RandomPart("train", 0.1)), ClickLog(folder, unit_rows=90)]
    assert len({first, *(log.fingerprint() for log in others)}) == 4


def test_same_seed_gives_the_same_batches_and_another_seed_or_epoch_others(folder: Path) -> None:
    def rows(**options: int) -> list[list[int]]:
        log = log_of(folder, run=options.pop("run", 1))
        return [rows for _, rows in log.batches(RowIds(), 32, shuffle=True, **options)]

    base = rows(epoch=0, seed=5)
    assert base == rows(epoch=0, seed=5, run=99)
    assert base != rows(epoch=0, seed=6)
    assert base != rows(epoch=1, seed=5)


def test_each_iteration_of_one_object_is_an_epoch_of_its_own_with_new_unit_ids(folder: Path) -> None:
    log = log_of(folder)
    first = {name.unit for name, _ in log.batches(RowIds(), 32) if name}
    second = {name.unit for name, _ in log.batches(RowIds(), 32) if name}
    assert first == {unit.id for unit in log.units(0)}
    assert second == {unit.id for unit in log.units(1)}
    assert not first & second


@pytest.mark.parametrize("shuffle", [False, True])
def test_resume_at_every_position_goes_on_with_the_next_batch(folder: Path, shuffle: bool) -> None:
    stream = log_of(folder).batches(RowIds(), 32, epoch=3, seed=2, shuffle=shuffle, prefetch=0)
    batches, positions = [], []
    for batch in stream:
        batches.append(batch)
        positions.append(stream.position)
    for done, position in enumerate(positions, 1):
        rest = log_of(folder).batches(RowIds(), 32, seed=2, shuffle=shuffle, prefetch=0, start=position)
        assert list(rest) == batches[done:]


@pytest.mark.parametrize("shard", [(0, 1), (1, 3)])
def test_the_position_after_any_batch_goes_on_with_the_next_one(folder: Path, shard: tuple[int, int]) -> None:
    """As for a loop that trains behind the reading."""
    stream = log_of(folder).batches(RowIds(), 32, epoch=3, seed=2, shuffle=True, shard=shard)
    batches = list(stream)
    assert len(batches) > 2
    for done, batch in enumerate(batches, 1):
        start = stream.after(batch[0])
        rest = log_of(folder).batches(RowIds(), 32, seed=2, shuffle=True, start=start, shard=shard)
        assert list(rest) == batches[done:]
    for other in (None, BatchId(1, 0)):
        with pytest.raises(ClickLogError, match="expected the id of a batch of epoch 3 of this stream, got"):
            stream.after(other)


def test_position_counts_delivered_batches_not_those_read_ahead(folder: Path) -> None:
    stream = log_of(folder).batches(RowIds(), 32, prefetch=8)
    batches: Iterator[object] = iter(stream)
    next(batches)
    assert stream.position == ReadPosition(0, 0, 1)


def test_stopping_early_ends_the_reading_thread(folder: Path) -> None:
    before = threading.active_count()
    for _ in log_of(folder).batches(RowIds(), 8, prefetch=1):
        break
    assert threading.active_count() == before


def test_an_error_of_the_encoder_reaches_the_consumer_after_the_batches_before_it(folder: Path) -> None:
    class FailsOnThird(RowIds):
        def encode(self, records: pa.RecordBatch, id: BatchId | None = None) -> tuple[BatchId | None, list[int]]:
            if id is not None and id.index == 2:
                raise RuntimeError("third batch")
            return super().encode(records, id)

    before = threading.active_count()
    batches = iter(log_of(folder).batches(FailsOnThird(), 32, prefetch=4))
    assert [next(batches)[1], next(batches)[1]] == [list(range(32)), list(range(32, 64))]
    with pytest.raises(RuntimeError, match="third batch"):
        next(batches)
    assert threading.active_count() == before


def test_an_error_of_the_encoder_says_which_rows_it_was_given(folder: Path) -> None:
    class Fails(RowIds):
        def encode(self, records: pa.RecordBatch, id: BatchId | None = None) -> tuple[BatchId | None, list[int]]:
            raise ValueError("expected a label in [0, 1], got 7")

    log = log_of(folder)
    stream = log.batches(Fails(), 32, epoch=0, units=log.units(0)[3:], start=ReadPosition(0, 0, 2))
    with pytest.raises(ValueError, match="got 7") as error:
        next(iter(stream))
    path = str(folder / "a.parquet")
    assert error.value.__notes__ == [
        f"in batch 2 of rows 301 to 400 of file {path!r}",
        f"the first such row there is row 301 of file {path!r}",
    ]


@pytest.mark.parametrize("name", ["b.parquet", "b.csv", "b.csv.gz"])
def test_a_refused_value_is_found_in_its_file_though_rows_are_split_and_shuffled(tmp_path: Path, name: str) -> None:
    class Labels:
        columns = (ColumnSpec("label", pa.int64()),)

        def encode(self, records: pa.RecordBatch, id: BatchId | None = None) -> int:
            if pc.max(records.column("label")).as_py() == 7:
                raise ValueError("expected a label in [0, 1], got 7")
            return records.num_rows

    good, bad = [0, 1] * 500, [0, 1] * 500
    bad[711] = bad[900] = 7
    pq.write_table(pa.table({"label": good}), tmp_path / "a.parquet")
    if name == "b.parquet":
        pq.write_table(pa.table({"label": bad}), tmp_path / name)
    else:
        text = "label\n" + "".join(f"{label}\n" for label in bad)
        (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    log = ClickLog([tmp_path / "a.parquet", tmp_path / name], unit_rows=400, run=0)
    for stages in ((), (RandomPart("train", 0.5, seed=2),)):
        with pytest.raises(ValueError, match="got 7") as error:
            list(log.with_stages(*stages).batches(Labels(), 64, shuffle=True, seed=1))
        notes = " ".join(error.value.__notes__)
        assert f"of file {str(tmp_path / name)!r}, shuffled" in notes
        found = [row for row in (712, 901) if f"the first such row there is row {row} of file" in notes]
        assert len(found) == (0 if name.endswith("gz") else 1)  # a file of unknown length is not read again


def test_what_is_no_table_and_no_record_batch_is_refused_in_words() -> None:
    for table in ({"a": [1, 2], "b": [1]}, pd.DataFrame({"a": [1, "x"]}, dtype=object)):
        with pytest.raises(ClickLogError, match="expected columns of one length and one type each"):
            ClickLog.from_table(table)
    with pytest.raises(ClickLogError, match="expected record batches or tables from the source, got int"):
        list(ClickLog.from_batches(iter([5])).batches(RowIds(), 8))  # type: ignore[list-item]
