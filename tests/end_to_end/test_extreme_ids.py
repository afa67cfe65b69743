"""Ids at the edges of 24, 53, 63 and 64 bits go file → batch → row → checkpoint → export and come back exact."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embershard.cli.main import run
from embershard.embedding.embedding_reader import EmbeddingReader
from embershard.feature_map.yaml_file import write_yaml

SIGNED = [(1 << 24) + 1, (1 << 24), (1 << 53) + 1, (1 << 53), (1 << 63) - 1, -(1 << 63), -1, 0]
UNSIGNED = [(1 << 24) + 1, (1 << 53) + 1, (1 << 63) + 1, (1 << 63), (1 << 64) - 1, (1 << 63) - 1, 1, 0]
REPEATS = 6


def write_log(folder: Path, form: str) -> Path:
    """Each id stands in REPEATS rows; label 1 in every second of them."""
    rows = len(SIGNED) * REPEATS
    signed, unsigned = SIGNED * REPEATS, UNSIGNED * REPEATS
    label = [(row // len(SIGNED)) % 2 for row in range(rows)]
    path = folder / f"clicks.{form}"
    if form == "parquet":
        columns = {"label": pa.array(label, pa.int8()), "signed": pa.array(signed, pa.int64())}
        pq.write_table(pa.table({**columns, "unsigned": pa.array(unsigned, pa.uint64())}), path)
    else:
        lines = ["label,signed,unsigned", *(f"{a},{b},{c}" for a, b, c in zip(label, signed, unsigned, strict=True))]
        path.write_text("\n".join(lines) + "\n")
    return path


def run_file(folder: Path, log: Path) -> Path:
    path = folder / "job.yaml"
    features = [
        {"name": "signed", "kind": "categorical", "id": "int64"},
        {"name": "unsigned", "kind": "categorical", "id": "uint64"},
    ]
    data = {
        "data": {"path": str(log)},
        "features": {"label": "label", "features": features},
        "model": {"kind": "fm", "dim": 3},
        "train": {"batch_size": 7, "threads": 1},
        "output": {"folder": str(folder / "runs")},
    }
    write_yaml(path, data)
    return path


@pytest.mark.parametrize("form", ["parquet", "csv"])
@pytest.mark.parametrize("store", ["local", "cluster"])
def test_extreme_ids_come_back_exact(form: str, store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = run_file(tmp_path, write_log(tmp_path, form))
    words = ["store.kind=cluster", "store.shards=2"] if store == "cluster" else []
    assert run(["train", str(job), "--json", *words]) == 0, capsys.readouterr().err
    facts = json.loads(capsys.readouterr().out)
    assert facts["rows"] == len(SIGNED) + len(UNSIGNED)
    export = tmp_path / "export"
    assert run(["export", facts["checkpoint"], "--to", str(export), "--json"]) == 0
    for name, ids, kind in (("signed", SIGNED, pa.int64()), ("unsigned", UNSIGNED, pa.uint64())):
        table = pq.read_table(export / f"{name}.parquet")
        assert table.schema.field("id").type == kind
        assert sorted(table.column("id").to_pylist()) == sorted(ids)
        assert set(table.column("count").to_pylist()) == {REPEATS}
        by_id = dict(zip(table.column("id").to_pylist(), table.column("vector").to_pylist(), strict=True))
        found = EmbeddingReader(export).lookup(name, pa.array(ids, kind))
        np.testing.assert_array_equal(found, np.array([by_id[id_] for id_ in ids], np.float32))
    for value, id_ in zip(table.column("key").to_pylist(), table.column("id").to_pylist(), strict=True):
        assert run(["key", "unsigned", str(value), str(job), "--inverse", "--json"]) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["value"] == id_


def test_both_formats_train_the_same_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vectors = []
    for form in ("parquet", "csv"):
        folder = tmp_path / form
        folder.mkdir()
        assert run(["train", str(run_file(folder, write_log(folder, form))), "--json"]) == 0
        checkpoint = json.loads(capsys.readouterr().out)["checkpoint"]
        assert run(["export", checkpoint, "--to", str(folder / "export")]) == 0
        capsys.readouterr()
        vectors.append(pq.read_table(folder / "export" / "unsigned.parquet").to_pydict())
    assert vectors[0] == vectors[1]
