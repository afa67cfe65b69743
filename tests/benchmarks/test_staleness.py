"""bench staleness at its quick size: every setting is trained with the same seeds. Its numbers prove nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from embershard.benchmarks.staleness import Options, feature_map, run


def test_settings_stand_beside_the_first_one() -> None:
    threads = torch.get_num_threads()
    options = Options(quick=True, depths=(0, 2), wires=("float32", "bfloat16"), synchronous_steps=4, torch_threads=1)
    try:
        found = [measured.as_json() for measured in run(options)]
    finally:
        torch.set_num_threads(threads)
    assert [(one["pipeline_depth"], one["wire"]) for one in found] == [
        (0, "float32"),
        (2, "float32"),
        (0, "bfloat16"),
        (2, "bfloat16"),
    ]
    assert found[0]["auc_difference"] == 0
    assert found[0]["ratio"] == 1
    assert len({one["auc"] for one in found}) == 4  # each setting trained rows of its own
    assert {one["steps"] for one in found} == {22}
    assert {one["reference"] for one in found} == {"depth 0, float32"}


def test_a_file_of_ones_own_is_split_by_the_kind_of_its_columns(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    columns = {
        "label": random.integers(0, 2, 2_000),
        "I1": random.integers(0, 9, 2_000),
        "C1": random.integers(0, 50, 2_000),
        "cost": random.random(2_000),
    }
    table = pa.table(columns)
    features = feature_map(table.schema)
    assert [feature.name for feature in features.categorical] == ["C1"]
    assert [feature.name for feature in features.numeric] == ["I1", "cost"]
    pq.write_table(table, tmp_path / "clicks.parquet")
    clicks = tmp_path / "clicks.parquet"
    options = Options(clicks=clicks, seeds=(0, 1), depths=(0,), wires=("float32",), shards=0, batch_size=500)
    (measured,) = run(options)
    by_seed = [float(auc) for auc in str(measured.details["auc_by_seed"]).split()]
    assert measured.details["auc"] == pytest.approx(np.mean(by_seed), abs=1e-4)
    assert by_seed[0] != by_seed[1]
    assert measured.details["wire"] is None
