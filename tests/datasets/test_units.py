"""Where the log is cut, who reads what, and in which order."""

from __future__ import annotations

import gzip
import random
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embershard.datasets import BatchId, ClickLog, ClickLogError, ColumnSpec, DataFileError, ReadPosition
from embershard.datasets.row_order import mix, mix64, mix64_array, permutation, unit_id
from embershard.datasets.sharding import shares
from embershard.datasets.table_reader import TableReader
from embershard.datasets.unit_plan import cut_units, unit_order


@dataclass
class FakeFile:
    path: str
    sizes: tuple[int, ...] | None
    kind: str = "a"

    def pieces(self) -> tuple[int, ...] | None:
        return self.sizes

    def layout(self) -> str:
        return self.kind


class RowIds:
    columns = (ColumnSpec("row", pa.int64()),)

    def encode(self, records: pa.RecordBatch, id: BatchId | None = None) -> tuple[BatchId | None, list[int]]:
        return id, records.column("row").to_pylist()


files = st.lists(
    st.tuples(st.none() | st.lists(st.integers(0, 300), max_size=6).map(tuple), st.sampled_from("ab")), max_size=6
)


@settings(deadline=None)
@given(files, st.integers(1, 150))
def test_units_hold_every_row_once_and_no_unit_mixes_layouts_or_grows(
    shapes: list[tuple[tuple[int, ...] | None, str]], unit_rows: int
) -> None:
    readers = {f"f{number}": FakeFile(f"f{number}", *shape) for number, shape in enumerate(shapes)}
    units = cut_units(readers.values(), unit_rows)  # type: ignore[arg-type]
    seen: Counter[tuple[str, int]] = Counter()
    for unit in units:
        assert len({readers[part.path].kind for part in unit.slices}) == 1
        if unit.rows is None:
            assert [part.stop for part in unit.slices] == [None]
            seen[unit.slices[0].path, -1] += 1
            continue
        assert 0 < unit.rows < 2 * unit_rows
        assert unit.rows == sum((part.stop or 0) - part.start for part in unit.slices)
        seen.update((part.path, row) for part in unit.slices for row in range(part.start, part.stop or 0))
    expected = {
        (path, row)
        for path, reader in readers.items()
        for row in ([-1] if reader.sizes is None else range(sum(reader.sizes)))
    }
    assert set(seen) == expected
    assert set(seen.values()) <= {1}


def test_small_pieces_are_joined_across_files_and_large_ones_cut() -> None:
    readers = [FakeFile("a", (40, 40)), FakeFile("b", (30,)), FakeFile("c", (1_000,)), FakeFile("d", (50,), "other")]
    units = cut_units(readers, 100)  # type: ignore[arg-type]
    assert [unit.rows for unit in units] == [110, *[100] * 10, 50]
    assert [(part.path, part.start, part.stop) for part in units[0].slices] == [("a", 0, 80), ("b", 0, 30)]


def test_a_shuffled_epoch_keeps_the_slices_of_a_row_group_in_order_and_together() -> None:
    units = cut_units([FakeFile("a", (500, 500, 500, 500, 500))], 100)  # type: ignore[arg-type]
    order = unit_order(units, shuffle=True, seed=1, epoch=2)
    assert sorted(order) == list(range(25))
    groups = [order[start : start + 5] for start in range(0, 25, 5)]
    assert all(list(group) == list(range(group[0], group[0] + 5)) for group in groups)
    assert order != unit_order(units, shuffle=True, seed=1, epoch=3)
    assert order == unit_order(units, shuffle=True, seed=1, epoch=2)


# --- orders are pure functions ----------------------------------------------------------------------------------------


def test_mix64_is_murmurs_finaliser_on_integers_and_arrays() -> None:
    # Pairs of the published fmix64: a change here moves every shuffle, split and unit id of every run.
    assert [mix64(value) for value in (0, 1, 2**64 - 1)] == [0, 0xB456BCFC34C2CB2C, 0x64B5720B4B825F21]
    values = np.array([0, 1, 2, 2**63, 2**64 - 1], np.uint64)
    assert mix64_array(values).tolist() == [mix64(int(value)) for value in values]


def test_a_permutation_orders_by_hash_and_is_pinned() -> None:
    state = mix(7, 1)
    assert permutation(state, 1_000).tolist() == sorted(range(1_000), key=lambda row: mix64(row ^ state))
    assert permutation(state, 8).tolist() == [5, 6, 0, 2, 3, 1, 7, 4]


def test_unit_ids_do_not_repeat_over_runs_epochs_and_units() -> None:
    ids = {unit_id(run, epoch, index) for run in range(20) for epoch in range(20) for index in range(500)}
    assert len(ids) == 200_000
    assert all(0 <= id_ < 1 << 64 for id_ in ids)


# --- sharing out ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("unit_rows", [64, 4_096])
def test_b74_each_row_is_read_once_over_ranks_and_workers(
    tmp_path: Path, files: int, ranks: int, workers: int, unit_rows: int
) -> None:
    for number, rows in enumerate(np.array_split(np.arange(1_003), files)):
        pq.write_table(pa.table({"row": rows}), tmp_path / f"{number}.parquet", row_group_size=10)
    seen: Counter[int] = Counter()
    names: Counter[BatchId | None] = Counter()
    reads = []
    for shard in range(ranks * workers):
        log = ClickLog(tmp_path, unit_rows=unit_rows, run=9)
        batches = list(log.batches(RowIds(), 32, shard=(shard, ranks * workers), shuffle=True, epoch=4, prefetch=0))
        reads.append(sum(len(rows) for _, rows in batches))
        seen.update(row for _, rows in batches for row in rows)
        names.update(name for name, _ in batches)
    assert seen == Counter(range(1_003))
    assert set(names.values()) == {1}
    # Nobody idles: no two readers differ by more than a unit, or where there are few units by two batches.
    assert max(reads) - min(reads) <= (128 if unit_rows == 64 else 64)


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(1, 15), st.integers(1, 20))
def test_shares_cover_each_batch_once(units: int, shards: int, batches: int) -> None:
    seen = Counter(
        (share.unit, index)
        for shard in range(shards)
        for share in shares(range(units), shard, shards)  # type: ignore[arg-type]
        for index in range(batches)
        if index % share.parts == share.part
    )
    assert seen == Counter((unit, index) for unit in range(units) for index in range(batches))


def test_a_shard_there_is_not_is_an_error() -> None:
    for shard, shards in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ClickLogError, match="expected a shard in"):
            shares([], shard, shards)


# --- resume and time order --------------------------------------------------------------------------------------------


def test_a_stream_killed_at_ten_random_points_gives_every_row_once(tmp_path: Path) -> None:
    for number in range(3):
        rows = np.arange(number * 5_000, number * 5_000 + 5_000)
        pq.write_table(pa.table({"row": rows}), tmp_path / f"{number}.parquet", row_group_size=1_700)
    (tmp_path / "3.csv").write_text("row\n" + "".join(f"{row}\n" for row in range(15_000, 20_000)))
    draw = random.Random(3)
    seen: list[int] = []
    names: list[BatchId | None] = []
    position: ReadPosition | None = ReadPosition(6)
    for stops in [*(draw.randint(1, 40) for _ in range(10)), None]:
        log = ClickLog(tmp_path, unit_rows=1_000, run=5)
        stream = log.batches(RowIds(), 64, seed=8, shuffle=True, start=position)
        for count, (name, rows) in enumerate(stream, 1):
            seen += rows
            names.append(name)
            if count == stops:
                break
        position = stream.position
    assert Counter(seen) == Counter(range(20_000))
    assert len(set(names)) == len(names)
    straight = ClickLog(tmp_path, unit_rows=1_000, run=5).batches(RowIds(), 64, seed=8, shuffle=True, epoch=6)
    assert [row for _, rows in straight for row in rows] == seen


def test_a_position_of_another_epoch_is_refused(tmp_path: Path) -> None:
    log = ClickLog.from_table({"row": [1]})
    with pytest.raises(ClickLogError, match="expected a start in epoch 2, got one in epoch 1"):
        log.batches(RowIds(), 1, epoch=2, start=ReadPosition(1))


def test_rows_come_in_time_order_over_files_that_are_not(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    for number, first in enumerate((3_000, 0, 1_500)):
        times = first + draw.permutation(1_000)
        table = pa.table({"row": times, "time": pa.array(times * 1_000, pa.timestamp("ms"))})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=1_000)
    log = ClickLog(tmp_path, time_column="time", unit_rows=1_000)
    rows = [row for _, rows in log.batches(RowIds(), 64) for row in rows]
    assert rows == [*range(1_000), *range(1_500, 2_500), *range(3_000, 4_000)]
    whole = list(log.batches(RowIds(), 64, epoch=0, prefetch=0))
    assert list(log.batches(RowIds(), 64, start=ReadPosition(0, 1, 3), prefetch=0)) == whole[16 + 3 :]
    with pytest.raises(ClickLogError, match="shuffle=False"):
        log.batches(RowIds(), 64, shuffle=True)


def test_a_time_column_of_text_is_refused_with_its_name() -> None:
    log = ClickLog.from_table({"row": [1], "time": ["noon"]}, time_column="time")
    with pytest.raises(DataFileError, match=r"expected whole numbers, dates or timestamps, got string.*column 'time'"):
        log.units(0)


def test_selected_units_are_read_in_the_order_given(tmp_path: Path) -> None:
    log = ClickLog.from_table({"row": range(500)}, unit_rows=100, run=0)
    units = log.units(7)
    stream = log.batches(RowIds(), 60, epoch=7, units=[units[3], units[1]])
    assert [(name, rows[0]) for name, rows in stream if name] == [
        (BatchId(units[3].id, 0), 300), (BatchId(units[3].id, 1), 360),
        (BatchId(units[1].id, 0), 100), (BatchId(units[1].id, 1), 160),
    ]  # fmt: skip


def test_dropping_the_remainder_leaves_out_the_last_batch_of_each_unit() -> None:
    log = ClickLog.from_table({"row": range(250)}, unit_rows=100)
    sizes = [len(rows) for _, rows in log.batches(RowIds(), 40, drop_remainder=True)]
    assert sizes == [40, 40, 40, 40, 40]


def test_a_file_of_unknown_length_is_shuffled_in_windows_and_resumed_at_any_batch(tmp_path: Path) -> None:
    path = tmp_path / "log.csv.gz"
    path.write_bytes(gzip.compress(("row\n" + "".join(f"{row}\n" for row in range(1_050))).encode()))
    log = ClickLog(path, unit_rows=100, run=0)
    assert log.rows() is None
    (unit,) = log.units(0)
    whole = list(log.records(unit, RowIds.columns, 30, shuffle=True, seed=4))
    rows = [row for batch in whole for row in batch.column("row").to_pylist()]
    assert [sorted(rows[start : start + 100]) for start in range(0, 1_050, 100)] == [
        list(range(start, min(start + 100, 1_050))) for start in range(0, 1_050, 100)
    ]
    assert [row % 100 for row in rows[:100]] != [row % 100 for row in rows[100:200]]
    for first in range(len(whole) + 1):
        assert list(log.records(unit, RowIds.columns, 30, shuffle=True, seed=4, first_batch=first)) == whole[first:]


def test_the_rows_of_a_unit_are_permuted_anew_in_each_epoch_and_seed() -> None:
    log = ClickLog.from_table({"row": range(100)}, run=0)

    def rows(epoch: int, seed: int) -> list[int]:
        (batch,) = log.records(log.units(epoch)[0], RowIds.columns, 100, shuffle=True, seed=seed)
        return list(batch.column("row").to_pylist())

    orders = [rows(epoch, seed) for epoch in range(2) for seed in range(2)]
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4


def test_nulls_come_before_all_times_even_those_before_1970() -> None:
    times = pa.array([5, None, -7, 3, None], pa.timestamp("s"))
    log = ClickLog.from_table({"row": range(5), "time": times}, time_column="time")
    assert [row for _, rows in log.batches(RowIds(), 2) for row in rows] == [1, 4, 2, 3, 0]
    dates = pa.array([20_000, 3, None], pa.date32())
    log = ClickLog.from_table({"row": range(3), "time": dates}, time_column="time")
    assert [row for _, rows in log.batches(RowIds(), 2) for row in rows] == [2, 1, 0]


def test_files_are_looked_at_side_by_side_and_the_first_error_is_raised() -> None:
    together = threading.Barrier(3, timeout=20)

    class Remote(TableReader):
        def pieces(self) -> tuple[int, ...]:
            if not self.seen:
                self.seen = True
                together.wait()
            return super().pieces()

        seen = False

    table = pa.table({"row": [1, 2]})
    assert ClickLog.over(*(Remote(table, path=f"{number}") for number in range(3))).rows() == 6

    class Broken(TableReader):
        def pieces(self) -> tuple[int, ...]:
            raise DataFileError("expected a file", path=self.path)

    with pytest.raises(DataFileError, match="'bad 1'"):
        ClickLog.over(TableReader(table, path="good"), *(Broken(table, path=f"bad {n}") for n in (1, 2))).units(0)
