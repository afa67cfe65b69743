"""bench train at its quick size: it runs, and says what it measured. Its numbers prove nothing."""

from __future__ import annotations

import pytest
import torch

from embershard.benchmarks.train import Options, run


@pytest.mark.parametrize(("depth", "depths"), [(None, [0, 1]), (2, [2])])
def test_measures_each_depth_beside_the_ceiling(depth: int | None, depths: list[int]) -> None:
    threads = torch.get_num_threads()
    try:
        found = list(run(Options(quick=True, pipeline_depth=depth, torch_threads=1)))
    finally:
        torch.set_num_threads(threads)
    assert [measured.as_json()["pipeline_depth"] for measured in found] == depths
    for measured in found:
        values = measured.as_json()
        assert values["workload"] == "train"
        assert values["reference"] == "dense-only ceiling"
        assert values["rate"] > 0
        assert values["ratio"] == values["rate"] / values["reference_rate"]
        assert values["rows"] > 1_000
