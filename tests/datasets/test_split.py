"""Splits, negative sampling and derived columns: decided row by row, whatever the cutting."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embershard.datasets import (
    ClickLog,
    ClickLogError,
    ColumnSpec,
    DataFileError,
    Derive,
    Join,
    NegativeSampling,
    RandomPart,
    RecordStage,
    TimePart,
)

ROWS = 20_000
ROW, USER, LABEL = ColumnSpec("row", pa.int64()), ColumnSpec("user", pa.int64()), ColumnSpec("label")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    draw = np.random.default_rng(0)
    for number, rows in enumerate(np.array_split(np.arange(ROWS), 3)):
        table = pa.table(
            {
                "row": rows,
                "user": draw.integers(0, 500, rows.size),
                "label": (draw.random(rows.size) < 0.1).astype(np.int8),
            }
        )
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=1_000)
    return folder


def read(
    folder: Path, *stages: RecordStage, columns: tuple[ColumnSpec, ...] = (ROW,), unit_rows: int = 3_000,
    batch_size: int = 512, epoch: int = 0, shuffle: bool = False,
) -> pa.Table:  # fmt: skip
    log = ClickLog(folder, stages=stages, unit_rows=unit_rows, run=0)
    batches = [batch for unit in log.units(epoch) for batch in log.records(unit, columns, batch_size, shuffle=shuffle)]
    return pa.Table.from_batches(batches)


def rows(table: pa.Table) -> set[int]:
    values = table.column("row").to_pylist()
    assert len(set(values)) == len(values)
    return set(values)


def test_a_random_split_has_each_row_in_one_part_and_does_not_depend_on_how_the_log_is_cut(folder: Path) -> None:
    train, evaluate = (rows(read(folder, RandomPart(part, 0.2, seed=3))) for part in ("train", "evaluate"))
    assert train | evaluate == set(range(ROWS))
    assert not train & evaluate
    assert len(evaluate) == pytest.approx(0.2 * ROWS, rel=0.05)
    other = RandomPart("evaluate", 0.2, seed=3)
    assert rows(read(folder, other, unit_rows=777, batch_size=13, epoch=5, shuffle=True)) == evaluate
    assert rows(read(folder, RandomPart("evaluate", 0.2, seed=4))) != evaluate


@pytest.mark.parametrize("evaluate", [0.0, 1.0])
def test_a_share_of_nothing_or_everything(folder: Path, evaluate: float) -> None:
    assert len(rows_or_none(folder, RandomPart("evaluate", evaluate))) == evaluate * ROWS
    assert len(rows_or_none(folder, RandomPart("train", evaluate))) == ROWS - evaluate * ROWS


def rows_or_none(folder: Path, stage: RecordStage) -> set[int]:
    log = ClickLog(folder, stages=[stage])
    return {row for unit in log.units(0) for batch in log.records(unit, [ROW], 999) for row in batch["row"].to_pylist()}


def test_a_split_by_user_keeps_the_rows_of_a_user_together_in_every_type_of_the_column(folder: Path) -> None:
    parts = [read(folder, RandomPart(part, 0.3, by=USER), columns=(ROW, USER)) for part in ("train", "evaluate")]
    users = [set(table.column("user").to_pylist()) for table in parts]
    assert not users[0] & users[1]
    assert len(users[1]) == pytest.approx(150, rel=0.2)
    evaluated = users[1]
    for type_ in (pa.int32(), pa.uint64(), pa.dictionary(pa.int32(), pa.int64())):
        column = pa.array(np.arange(500)).cast(pa.int64())
        column = column.dictionary_encode() if pa.types.is_dictionary(type_) else column.cast(type_)
        log = ClickLog.from_table({"user": column}, stages=[RandomPart("evaluate", 0.3, by=USER)])
        (batch,) = log.records(log.units(0)[0], [USER], 500)
        assert set(batch.column("user").to_pylist()) & set(range(500)) >= evaluated
    names = pa.array(["ann", "bob", None, "ann"] * 50)
    for type_ in (pa.string(), pa.large_string(), pa.binary()):
        log = ClickLog.from_table({"user": names.cast(type_)}, stages=[RandomPart("evaluate", 0.5, by=USER)])
        kept = [batch.num_rows for batch in log.records(log.units(0)[0], [USER], 500)]
        assert kept in ([], [50], [100], [150], [200])


def test_a_split_by_a_float_is_refused_with_the_column(folder: Path) -> None:
    log = ClickLog.from_table({"user": [1.0]}, stages=[RandomPart("train", 0.5, by=USER)])
    with pytest.raises(DataFileError, match=r"expected whole numbers or text to split by, got double.*column 'user'"):
        list(log.records(log.units(0)[0], [USER], 1))


def test_a_split_in_time_has_earlier_rows_in_training() -> None:
    times = pa.array([5, 1, None, 9, 7])
    for cut, evaluated in ((7, [3, 4]), (0, [0, 1, 3, 4]), (10, [])):
        both = []
        for part in ("train", "evaluate"):
            stage = TimePart(part, ColumnSpec("time", pa.int64()), cut)
            log = ClickLog.from_table({"row": range(5), "time": times}, stages=[stage])
            both.append([row for batch in log.records(log.units(0)[0], [ROW], 5) for row in batch["row"].to_pylist()])
        assert both == [[row for row in range(5) if row not in evaluated], evaluated]


@pytest.mark.parametrize("cut", [1000, 1000.5])
def test_a_number_cuts_text_as_a_number(tmp_path: Path, cut: float) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text("time,id\n900,0\n1100,1\n99,2\n10000,3\n,4\n")

    def part(name: Any) -> list[int]:
        log = ClickLog(path, stages=[TimePart(name, ColumnSpec("time"), cut)], run=0)
        records = (batch for unit in log.units(0) for batch in log.records(unit, [ColumnSpec("id", pa.int64())], 10))
        return [id for batch in records for id in batch.column("id").to_pylist()]

    assert part("evaluate") == [1, 3]
    assert part("train") == [0, 2, 4]
    path.write_text("time,id\nsoon,0\n")
    with pytest.raises(DataFileError, match=r"expected a time that compares with 1000.*column 'time'"):
        part("train")


def test_negative_sampling_keeps_every_click_and_weights_correct_for_what_is_left_out(folder: Path) -> None:
    whole = read(folder, columns=(ROW, LABEL))
    clicks = set(whole.filter(pa.compute.equal(whole["label"], 1)).column("row").to_pylist())
    columns = (ROW, LABEL, ColumnSpec("sampling_weight", pa.float32()))
    kept = read(folder, NegativeSampling(0.1, seed=1), columns=columns)
    assert clicks <= rows(kept)
    negatives = kept.filter(pa.compute.equal(kept["label"], 0))
    assert negatives.num_rows == pytest.approx(0.1 * (ROWS - len(clicks)), rel=0.1)
    assert set(negatives.column("sampling_weight").to_pylist()) == {10.0}
    total = pa.compute.sum(kept.column("sampling_weight")).as_py()
    assert total == pytest.approx(ROWS, rel=0.05)
    again = read(folder, NegativeSampling(0.1, seed=1), columns=columns, unit_rows=500, batch_size=7)
    assert rows(again) == rows(kept)
    other_epoch = read(folder, NegativeSampling(0.1, seed=1), columns=columns, epoch=1)
    assert clicks <= rows(other_epoch) != rows(kept)
    assert rows(read(folder, NegativeSampling(1.0))) == set(range(ROWS))


def test_negative_sampling_multiplies_a_weight_the_log_has() -> None:
    stage = NegativeSampling(0.5, weight="w", multiply=True)
    log = ClickLog.from_table({"label": [1, 0] * 50, "w": [3.0] * 100}, stages=[stage])
    (batch,) = log.records(log.units(0)[0], [LABEL, ColumnSpec("w")], 100)
    assert set(zip(*batch.to_pydict().values(), strict=True)) == {(1, 3.0), (0, 6.0)}
    for keep in (0.0, 1.5):
        with pytest.raises(ClickLogError, match="expected keep in"):
            NegativeSampling(keep)


@pytest.mark.parametrize("shuffle", [False, True])
def test_resume_inside_a_filtered_unit_is_exact(folder: Path, shuffle: bool) -> None:
    log = ClickLog(folder, stages=[NegativeSampling(0.3), RandomPart("train", 0.2)], unit_rows=3_000, run=0)
    unit = log.units(2)[1]
    whole = list(log.records(unit, [ROW], 100, shuffle=shuffle, seed=1))
    assert len(whole) > 5
    for first in range(len(whole) + 2):
        assert list(log.records(unit, [ROW], 100, shuffle=shuffle, seed=1, first_batch=first)) == whole[first:]


def double(records: pa.RecordBatch) -> dict[str, pa.Array]:
    return {"double": pa.compute.multiply(records.column("row"), 2)}


def test_derived_and_joined_columns_pickle_and_feed_each_other(folder: Path) -> None:
    names = pa.table({"user": range(400), "name": [f"u{i}" for i in range(400)]})
    log = ClickLog(
        folder, stages=[Derive((ROW,), ("double",), double), Join(names, "user", USER)], unit_rows=3_000, run=0
    )
    copy = pickle.loads(pickle.dumps(log))
    assert copy.units(3) == log.units(3)
    assert set(log.column_names() or ()) == {"row", "user", "label", "double", "name"}
    (batch, *_) = copy.records(copy.units(0)[0], [ColumnSpec("name"), ColumnSpec("double"), USER, ROW], 1_000)
    for row in batch.to_pylist():
        assert row["double"] == 2 * row["row"]
        assert row["name"] == (f"u{row['user']}" if row["user"] < 400 else None)


def test_a_joined_table_with_a_key_twice_is_refused() -> None:
    with pytest.raises(ClickLogError, match="expected distinct keys in column 'user'"):
        Join(pa.table({"user": [1, 1], "x": [1, 2]}), "user", USER)


def test_a_derived_column_that_cannot_be_made_names_the_file(folder: Path) -> None:
    def fails(_: pa.RecordBatch) -> dict[str, pa.Array]:
        raise ValueError("no such value")

    log = ClickLog(folder, stages=[Derive((ROW,), ("x",), fails)])
    with pytest.raises(DataFileError, match=r"no such value.*0\.parquet"):
        list(log.records(log.units(0)[0], [ColumnSpec("x")], 10))


@pytest.mark.parametrize("stage", [RandomPart("train", 0.4, seed=2), NegativeSampling(0.4)])
def test_which_rows_are_kept_does_not_depend_on_the_chunks_they_are_read_in(stage: RecordStage) -> None:
    rows, label = pa.array(range(1_000)), pa.array([0.0] * 1_000)
    kept = []
    for size in (1_000, 64, 7):
        columns = {
            name: pa.chunked_array([column.slice(start, size) for start in range(0, 1_000, size)])
            for name, column in (("row", rows), ("label", label))
        }
        log = ClickLog.from_table(pa.table(columns), stages=[stage], run=0)
        kept.append([row for batch in log.records(log.units(0)[0], [ROW], 100) for row in batch["row"].to_pylist()])
    assert kept[0] == kept[1] == kept[2]
    assert 300 < len(kept[0]) < 700
