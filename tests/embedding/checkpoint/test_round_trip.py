"""What is saved comes back to the bit, into any store."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from embershard.embedding.checkpoint import TrainingState, latest_checkpoint, open_checkpoint, write_checkpoint
from embershard.embedding.errors import CheckpointMismatchError
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
