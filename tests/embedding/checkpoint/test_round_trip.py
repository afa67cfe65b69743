"""What is saved comes back to the bit, into any store."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from embershard.embedding.checkpoint import TrainingState, latest_checkpoint, open_checkpoint, write_checkpoint
from embershard.embedding.errors import CheckpointMismatchError, UnknownTableError
from embershard.embedding.table_config import Adagrad, ColumnBlock, Sgd, TableConfig

from .conftest import SnapshotStore, assert_same_store


def test_restored_store_is_bit_equal_b37(tmp_path: Path, full_store: SnapshotStore, configs) -> None:
    path = write_checkpoint(tmp_path, full_store, TrainingState(step=12000))
    assert path == str(tmp_path / "step-000012000")
    fresh = SnapshotStore(configs)
    with open_checkpoint(path) as checkpoint:
        report = checkpoint.restore(fresh)
    assert_same_store(fresh, full_store)
    assert report.rows == {"user": 505, "ad/slot.1": 1007, "ad_slot_1": 1507, "item": 2007, "empty": 0}
    assert report.rows == checkpoint.manifest.row_counts
    assert (report.left_out, report.emptied, report.changed) == ((), (), ())


def test_training_state_comes_back_exactly(tmp_path: Path, full_store: SnapshotStore) -> None:
    dense = {
        "model/scalar": np.array(2.5, np.float64),
        "model/weight": np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2],
        "model/half": np.array([1.5, -0.0], np.float16),
        "model/bfloat16-bits": np.array([0x3FC0, 0x8000], np.uint16),
        "optimizer/step": np.array([1 << 62], np.int64),
        "optimizer/mask": np.array([True, False]),
        "rng": np.arange(256, dtype=np.uint8),
        "none": np.empty((0, 3), np.float32),
    }
    scalars = {"lr": 0.1, "unit": (1 << 64) - 1, "nested": {"betas": [0.9, 0.999], "amsgrad": False, "none": None}}
    state = TrainingState(
        step=7,
        generation=3,
        feature_map={"features": ["user", "größe"]},
        config={"model": {"class": "deepfm"}},
        cursor={"epoch": 1, "units": [[(1 << 63) + 5, 2]]},
        scalars=scalars,
        dense=dense,
        log_positions={"shard-0": 1 << 40},
    )
    with open_checkpoint(write_checkpoint(tmp_path, full_store, state)) as checkpoint:
        manifest, arrays = checkpoint.manifest, checkpoint.dense()
    assert (manifest.step, manifest.generation, manifest.sequence) == (7, 3, 1)
    assert manifest.scalars == scalars
    assert (manifest.cursor, manifest.config, manifest.feature_map) == (state.cursor, state.config, state.feature_map)
    assert manifest.log_positions == {"shard-0": 1 << 40}
    assert set(arrays) == set(dense)
    for name, array in dense.items():
        assert (arrays[name].dtype, arrays[name].shape) == (array.dtype, array.shape), name
        assert arrays[name].tobytes() == array.tobytes(), name


def test_equal_stores_give_equal_bytes_b25(tmp_path: Path, full_store: SnapshotStore, configs) -> None:
    state = TrainingState(step=1, feature_map={"b": 1, "a": 2}, dense={"x": np.ones(3, np.float32)})
    first = Path(write_checkpoint(tmp_path / "a", full_store, state))
    with open_checkpoint(first) as checkpoint:
        other = SnapshotStore(configs)
        checkpoint.restore(other)
    for tablet in range(1 << full_store.tablet_bits):
        other.cut(tablet), full_store.cut(tablet)
    state = TrainingState(step=1, feature_map={"a": 2, "b": 1}, dense={"x": np.ones(3, np.float32)})
    left = Path(write_checkpoint(tmp_path / "b", full_store, state))
    right = Path(write_checkpoint(tmp_path / "c", other, state))
    files = sorted(path.relative_to(left) for path in left.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(right) for path in right.rglob("*") if path.is_file())
    for name in files:
        assert (left / name).read_bytes() == (right / name).read_bytes(), name
    hashes = [json.loads((path / "manifest.json").read_text())["feature_map_hash"] for path in (first, left)]
    assert hashes[0] == hashes[1]


def test_tables_whose_names_differ_in_signs_only_do_not_share_a_file(tmp_path: Path, full_store: SnapshotStore) -> None:
    path = Path(write_checkpoint(tmp_path, full_store, TrainingState(step=1)))
    names = [file.name for file in (path / "rows").iterdir()]
    assert len(names) == len({name.lower() for name in names}) == 5
    assert all(path in (file.parent.parent, file.parent) for file in path.rglob("*") if file.is_file())


def test_only_some_tables_are_restored_and_the_report_says_so_b42(tmp_path, full_store, configs) -> None:
    path = write_checkpoint(tmp_path, full_store, TrainingState(step=1))
    later = TableConfig(name="added_later", blocks=(ColumnBlock(dim=2),))
    user = TableConfig(name="user", blocks=(ColumnBlock(dim=8, optimizer=Adagrad(lr=0.5)),), seed=3)
    store = SnapshotStore((later, user))
    store.put("added_later", np.arange(1, 50, dtype=np.uint64) << np.uint64(57), seed=1)
    with open_checkpoint(path) as checkpoint:
        report = checkpoint.restore(store, only={"user", "item"})
    assert report.rows == {"item": 2007, "user": 505}
    assert report.left_out == ("ad/slot.1", "ad_slot_1", "empty")
    assert report.emptied == ("added_later",)
    assert report.changed == ("user: blocks[0].optimizer.lr 0.02 -> 0.5", "user: seed 0 -> 3")
    assert sum(len(tablet.tables["added_later"].keys) for tablet in store.tablets) == 0
    assert sum(len(tablet.tables["user"].keys) for tablet in store.tablets) == 505
    assert [table.name for table in store.tables()] == ["added_later", "user", "item"]
    with open_checkpoint(path) as checkpoint, pytest.raises(UnknownTableError, match=r"got \['itm', 'zz'\]"):
        checkpoint.restore(store, only=["zz", "user", "itm"])
    assert sum(len(tablet.tables["item"].keys) for tablet in store.tablets) == 2007


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blocks": (ColumnBlock(dim=16, optimizer=Adagrad()),)}, r"expected dim 8 .*, got 16 \(table 'user'\)"),
        ({"dtype": "float16"}, r"expected dtype float32 .*, got float16 \(table 'user'\)"),
        ({"key_space": "uid"}, r"expected key_space user .*, got uid \(table 'user'\)"),
        (
            {"blocks": (ColumnBlock(dim=8, optimizer=Sgd()),)},
            r"expected blocks\[0\].optimizer state {'accumulator': 8} .*, got {} \(table 'user'\)",
        ),
        ({"blocks": (ColumnBlock(name="w", dim=8, optimizer=Adagrad()),)}, r"expected blocks \['weights'\]"),
    ],
)
def test_another_layout_is_refused_by_name_and_nothing_is_changed(
    tmp_path: Path, full_store: SnapshotStore, change, message: str
) -> None:
    path = write_checkpoint(tmp_path, full_store, TrainingState(step=1))
    fields = {"name": "user", "blocks": (ColumnBlock(dim=8, optimizer=Adagrad()),), **change}
    store = SnapshotStore([TableConfig(**fields)])
    before = list(store.tablets)
    with open_checkpoint(path) as checkpoint, pytest.raises(CheckpointMismatchError, match=message):
        checkpoint.restore(store)
    assert store.tablets == before
    assert [table.name for table in store.tables()] == ["user"]


def test_another_cut_of_the_key_space_is_refused(tmp_path: Path, full_store: SnapshotStore, configs) -> None:
    path = write_checkpoint(tmp_path, full_store, TrainingState(step=1))
    with open_checkpoint(path) as checkpoint, pytest.raises(CheckpointMismatchError, match="4 tablet bits, got 5"):
        checkpoint.restore(SnapshotStore(configs, tablet_bits=5))


def test_a_store_of_one_tablet_round_trips(tmp_path: Path, configs) -> None:
    store = SnapshotStore(configs, tablet_bits=0)
    store.put("user", np.array([0, 5, (1 << 64) - 1], np.uint64), seed=1)
    fresh = SnapshotStore(configs, tablet_bits=0)
    with open_checkpoint(write_checkpoint(tmp_path, store, TrainingState(step=1))) as checkpoint:
        checkpoint.restore(fresh)
    assert_same_store(fresh, store)


def test_a_table_larger_than_a_file_is_cut_into_files(tmp_path: Path, configs, monkeypatch) -> None:
    monkeypatch.setattr("embershard.embedding.checkpoint.tablet_file_writer.FILE_BYTES", 40_000)
    monkeypatch.setattr("embershard.embedding.checkpoint.tablet_file_writer.BATCH_BYTES", 9_000)
    store = SnapshotStore(configs)
    store.put("user", np.random.default_rng(1).integers(0, 1 << 64, 5000, np.uint64), seed=1)
    path = write_checkpoint(tmp_path, store, TrainingState(step=1))
    fresh = SnapshotStore(configs)
    with open_checkpoint(path) as checkpoint:
        entries = checkpoint.manifest.of_kind("rows", "user")
        checkpoint.restore(fresh)
        assert_same_store(fresh, store)
        alone = checkpoint.snapshot(11).tables["user"]
    assert len(entries) > 3
    assert sum(entry.rows for entry in entries) == 5000
    assert [entry.first_tablet for entry in entries[1:]] == [entry.last_tablet + 1 for entry in entries[:-1]]
    assert alone.keys.tobytes() == store.tablets[11].tables["user"].keys.tobytes()


def test_state_that_json_cannot_carry_is_refused_before_anything_counts(tmp_path: Path, full_store) -> None:
    with pytest.raises(ValueError, match=r"expected a finite number, got nan \(scalars.metrics\[1\].auc\)"):
        write_checkpoint(tmp_path, full_store, TrainingState(step=1, scalars={"metrics": [{}, {"auc": float("nan")}]}))
    with pytest.raises(TypeError, match=r"expected text as key, got 5 \(cursor\)"):
        write_checkpoint(tmp_path, full_store, TrainingState(step=1, cursor={5: 1}))
    with pytest.raises(TypeError, match=r"got float32 \(config.lr\)"):
        write_checkpoint(tmp_path, full_store, TrainingState(step=1, config={"lr": np.float32(1)}))
    assert list(tmp_path.iterdir()) == []
    assert latest_checkpoint(tmp_path)[0] is None
