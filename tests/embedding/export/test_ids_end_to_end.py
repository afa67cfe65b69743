"""Raw ids go file → batch → row → checkpoint → export → reader and come back exact, from Parquet and CSV."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from embershard.datasets import ClickLog
from embershard.embedding.checkpoint import TrainingState, open_checkpoint, write_checkpoint
from embershard.embedding.embedding_reader import EmbeddingReader
from embershard.embedding.export import ExportOptions, export_tables
from embershard.embedding.store import Push, PushToken
from embershard.embedding.table_config import ColumnBlock, TableConfig
from embershard.embedding.table_group import TableKeys
from embershard.feature_map import Categorical, FeatureMap
from embershard.ps_server.local_store import LocalStore

INT64 = [(1 << 24) + 1, (1 << 53) + 1, (1 << 63) - 1, -1, 0, -(1 << 63), None, 4873214862074861313]
UINT64 = [(1 << 24) + 1, (1 << 53) + 1, (1 << 63) - 1, (1 << 63) + 1, (1 << 64) - 1, 0, None, 1]


@pytest.mark.parametrize("export_format", ["parquet", "arrow", "safetensors", "npy"])
@pytest.mark.parametrize("log_format", ["parquet", "csv"])
def test_ids_survive_from_file_to_serving_b08_b09(tmp_path: Path, log_format: str, export_format: str) -> None:
    log = pa.table({"user": pa.array(INT64, pa.int64()), "ad": pa.array(UINT64, pa.uint64()), "click": [0, 1] * 4})
    file = tmp_path / f"clicks.{log_format}"
    if log_format == "parquet":
        pq.write_table(log, file)
    else:
        pa_csv.write_csv(log, file)
    features = FeatureMap([Categorical("user", id="int64"), Categorical("ad", id="uint64")], label="click", dim=3)
    store = LocalStore(4)
    store.ensure_tables([TableConfig(name=name, blocks=(ColumnBlock(dim=3),)) for name in ("user", "ad")])
    for batch in ClickLog(str(file)).batches(features, batch_size=3):
        assert batch.id is not None
        parts = {name: np.unique(batch.keys_of(name), return_counts=True) for name in ("user", "ad")}
        keys = TableKeys.concat({name: unique for name, (unique, _) in parts.items()})
        occurrences = np.concatenate([counts for _, counts in parts.values()]).astype(np.uint32)
        token = PushToken(batch.id.unit, 1, batch.id.index)
        gradients = np.ones(3 * len(keys.keys), np.float32)
        store.exchange(Push(token, keys, gradients, occurrences, examples=batch.size, step=1, now=0), None)
    state = TrainingState(step=1, feature_map=features.to_dict())
    path = write_checkpoint(tmp_path / "checkpoints", store, state)
    resumed = LocalStore(4)
    with open_checkpoint(path) as checkpoint:
        checkpoint.restore(resumed)
        export_tables(checkpoint, tmp_path / "out", None, ExportOptions(format=export_format))
    export_tables(resumed, tmp_path / "again", None, ExportOptions(format="parquet"), feature_map=features)
    for name, ids in (("user", INT64), ("ad", UINT64)):
        exported = pq.read_table(tmp_path / "again" / f"{name}.parquet")
        assert sorted(exported["id"].to_pylist(), key=str) == sorted(ids, key=str)
        assert exported["count"].to_pylist() == [1] * len(ids)
        assert exported.schema.field("id").type == log.schema.field(name).type
        reader = EmbeddingReader(tmp_path / "out", verify="contents")
        columns = reader.ids(name)
        assert sorted(columns.to_pylist(), key=str) == sorted(ids, key=str)
        vectors = reader.lookup(name, pa.array(ids, log.schema.field(name).type))
        by_id = dict(zip(exported["id"].to_pylist(), exported["vector"].to_pylist(), strict=True))
        assert vectors.tolist() == [by_id[id_] for id_ in ids]
        assert np.unique(vectors, axis=0).shape == (len(ids), 3)
