"""The `store:` section: what reaches the store."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from embershard.cli.store_config import ClusterStoreConfig, LocalStoreConfig
from embershard.cli.store_opening import opened_store
from embershard.embedding.store import Push
from embershard.embedding.table_config import ColumnBlock, TableConfig
from embershard.embedding.table_group import TableKeys


@pytest.mark.process
@pytest.mark.parametrize("kind", ["local", "cluster"])
@pytest.mark.parametrize("guarded", [True, False])
def test_guard_holds_rows_out_in_the_worker(kind: str, guarded: bool) -> None:
    guard = {"guard": {"max_ratio": 10.0}} if guarded else {}
    config = LocalStoreConfig.model_validate(guard) if kind == "local" else ClusterStoreConfig.model_validate(guard)
    keys = TableKeys.of("user", [1, 2, 3])
    with opened_store(config) as store:
        store.ensure_tables([TableConfig(name="user", blocks=(ColumnBlock(dim=1),))])
        gradients = np.array([1.0, np.nan, 2.0], np.float32)
        report = store.exchange(Push(None, keys, gradients, np.ones(3, np.uint32), 1, 1, 0), None).report
    assert report is not None
    assert report.held_out == ({"user": 1} if guarded else {})
    assert report.tables["user"].non_finite == (0 if guarded else 1)
    assert report.tables["user"].applied == 2
    assert report.non_finite_keys == {"user": (2,)}


def test_guard_of_a_run_is_checked_at_the_edge() -> None:
    with pytest.raises(ValidationError, match=r"guard\.max_ratio"):
        LocalStoreConfig.model_validate({"guard": {"max_ratio": 0.5}})
