"""Base + deltas = full, to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from embershard.embedding.checkpoint import KeepLast, TrainingState, open_checkpoint, prune, write_checkpoint
from embershard.embedding.errors import CheckpointMismatchError, CorruptCheckpointError
from embershard.embedding.table_group import AppliedMemory

from .conftest import SnapshotStore, assert_same_store, assert_same_tablet


def key_at(numbers: range) -> np.ndarray:
    """Keys spread over all tablets."""
    return np.array(numbers, np.uint64) * np.uint64(0x0123456789ABCDEF)


@pytest.fixture
def chain(tmp_path: Path, configs) -> tuple[SnapshotStore, list[str]]:
    """A store and its checkpoints: full, delta, delta; rows change, leave and come back in between."""
    store = SnapshotStore(configs)
    store.put("user", key_at(range(100)), seed=1)
    store.put("item", key_at(range(50)), seed=1)
    paths = [write_checkpoint(tmp_path, store, TrainingState(step=10))]
    store.erase("user", key_at(range(50)))
    store.put("user", key_at(range(60, 61)), seed=2)
    store.put("user", key_at(range(10, 11)), seed=3)
    store.count_candidates("item", np.sort(key_at(range(900, 910))), np.arange(10))
    store.remember(2, AppliedMemory(np.array([9], np.uint64), np.array([1], np.uint64), np.array([4], np.int64)))
    paths.append(write_checkpoint(tmp_path, store, TrainingState(step=20), base=paths[-1]))
    store.erase("user", key_at(range(10, 11)))
    store.put("user", key_at(range(2, 3)), seed=4)
    store.put("ad_slot_1", key_at(range(5)), seed=4)
    store.count_candidates("item", np.sort(key_at(range(905, 906))), np.arange(1))
    paths.append(write_checkpoint(tmp_path, store, TrainingState(step=30), base=paths[-1]))
    return store, paths


def test_base_and_deltas_restore_the_full_state_b60(chain, configs) -> None:
    store, paths = chain
    fresh = SnapshotStore(configs)
    with open_checkpoint(paths[-1]) as checkpoint:
        report = checkpoint.restore(fresh)
        assert checkpoint.manifest.base == "step-000000020"
    assert_same_store(fresh, store)
    assert report.rows["user"] == 100 - 50 + 1


def test_deltas_hold_only_what_changed(chain) -> None:
    _, paths = chain
    counts = []
    for path in paths:
        with open_checkpoint(path) as checkpoint:
            counts.append(checkpoint.manifest.row_counts["user"])
            erased = checkpoint.manifest.of_kind("erased", "user")
    assert counts == [100, 2, 1]
    assert sum(entry.rows for entry in erased) == 1


def test_a_chain_written_out_again_is_the_full_checkpoint(chain, tmp_path: Path) -> None:
    store, paths = chain
    with open_checkpoint(paths[-1]) as checkpoint:
        compact = write_checkpoint(tmp_path / "compact", checkpoint, TrainingState(step=30))
    with open_checkpoint(compact) as checkpoint:
        assert checkpoint.manifest.base is None
        for tablet, expected in enumerate(store.tablets):
            assert_same_tablet(checkpoint.snapshot(tablet), expected)
    # The store goes on from it: a delta to the compacted one is accepted.
    write_checkpoint(tmp_path / "compact", store, TrainingState(step=40), base=compact)


def test_changes_since_a_version_are_the_delta(chain) -> None:
    _, paths = chain
    with open_checkpoint(paths[1]) as middle, open_checkpoint(paths[2]) as last:
        for tablet in range(1 << last.tablet_bits):
            since = middle.changes_since(tablet)
            rows = last.snapshot(tablet, since).tables["user"]
            assert (rows.version > since).all()
            assert (rows.erased_versions > since).all()


def test_a_store_taken_back_cannot_write_a_delta_to_what_it_never_was(chain, tmp_path: Path, configs) -> None:
    _, paths = chain
    rolled_back = SnapshotStore(configs)
    with open_checkpoint(paths[0]) as checkpoint:
        checkpoint.restore(rolled_back)
    with pytest.raises(CheckpointMismatchError, match="does not go on from there"):
        write_checkpoint(tmp_path, rolled_back, TrainingState(step=31), base=paths[2])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000010", "step-000000020", "step-000000030"]


def test_a_base_with_other_tables_is_refused(chain, tmp_path: Path, configs) -> None:
    _, paths = chain
    with pytest.raises(CheckpointMismatchError, match=r"gone \['empty'\]"):
        write_checkpoint(tmp_path, SnapshotStore(configs[:-1]), TrainingState(step=31), base=paths[2])


def test_a_delta_whose_base_is_gone_or_replaced_is_no_checkpoint(chain, tmp_path: Path) -> None:
    store, paths = chain
    (Path(paths[1])).rename(tmp_path / "away")
    with pytest.raises(CorruptCheckpointError, match="step-000000020"):
        open_checkpoint(paths[2])
    write_checkpoint(tmp_path, store, TrainingState(step=20))
    with pytest.raises(CorruptCheckpointError, match="expected base step-000000020 with sha256"):
        open_checkpoint(paths[2])


def test_pruning_keeps_the_chain_of_a_kept_delta(chain, tmp_path: Path) -> None:
    store, paths = chain
    assert prune(tmp_path, [KeepLast(1)]) == ()
    write_checkpoint(tmp_path, store, TrainingState(step=40))
    assert prune(tmp_path, [KeepLast(1)]) == tuple(Path(path).name for path in paths)


def test_a_tablet_that_forgot_what_it_erased_is_whole_in_a_delta(tmp_path: Path, configs) -> None:
    store = SnapshotStore(configs)
    store.put("user", key_at(range(100)), seed=1)
    base = write_checkpoint(tmp_path, store, TrainingState(step=1))
    store.erase("user", key_at(range(0, 100, 2)))
    store.forget_erased(3)
    store.erase("user", key_at(range(1, 20, 2)))
    delta = write_checkpoint(tmp_path, store, TrainingState(step=2), base=base)
    store.put("user", key_at(range(98, 99)), seed=2)
    last = write_checkpoint(tmp_path, store, TrainingState(step=3), base=delta)
    with open_checkpoint(last) as checkpoint:
        for tablet, expected in enumerate(store.tablets):
            assert_same_tablet(checkpoint.snapshot(tablet), expected)
        assert checkpoint.snapshot(3, since_version=1).since_version is None
        assert checkpoint.snapshot(4, since_version=1).since_version == 1
