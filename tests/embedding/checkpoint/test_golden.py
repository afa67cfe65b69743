"""Checkpoints of every format version stay readable, and say what they said."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from embershard.embedding.checkpoint import latest_checkpoint
from embershard.embedding.table_group import AppliedMemory
from embershard.ps_server.local_store import LocalStore

from .golden_checkpoint import KEYS, TABLES, trained_store, training_state

GOLDEN = Path(__file__).parent / "golden"


def test_format_1_restores_what_was_trained() -> None:
    checkpoint, skipped = latest_checkpoint(GOLDEN / "format-1")
    assert skipped == ()
    assert checkpoint is not None
    state, manifest = training_state(), checkpoint.manifest
    assert (manifest.format_version, manifest.sequence, manifest.tables) == (1, 1, TABLES)
    for field in ("step", "generation", "feature_map", "config", "cursor", "scalars", "log_positions"):
        assert getattr(manifest, field) == getattr(state, field)
    assert {name: array.tolist() for name, array in checkpoint.dense().items()} == {
        name: array.tolist() for name, array in state.dense.items()
    }
    store = LocalStore(2)
    report = checkpoint.restore(store)
    assert report.rows == {"user": 4, "shop/area": 3}
    expected = trained_store()
    for tablet in range(4):
        left, right = store.snapshot(tablet), expected.snapshot(tablet)
        for name, rows in right.tables.items():
            for column in ("keys", "weights", "state", "count", "touched_at", "version", "erased_keys"):
                assert getattr(left.tables[name], column).tobytes() == getattr(rows, column).tobytes()
        assert of_unit(left.applied, 9) == of_unit(right.applied, 9)
    assert store.snapshot(0).tables["user"].erased_keys.tolist() == KEYS[1:2].tolist()
    checkpoint.close()


def of_unit(memory: AppliedMemory, unit: int) -> list[int]:
    return memory.batch[memory.unit == np.uint64(unit)].tolist()
