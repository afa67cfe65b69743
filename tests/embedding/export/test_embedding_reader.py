"""Serving from exports: raw values in, vectors out, with the deltas of later days."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from embershard.embedding.checkpoint import TrainingState, open_checkpoint, write_checkpoint
from embershard.embedding.embedding_reader import EmbeddingReader
from embershard.embedding.errors import CheckpointMismatchError, CorruptCheckpointError
from embershard.embedding.export import ExportOptions, export_tables
from embershard.embedding.reference import ReferenceTableGroup
from embershard.embedding.store import Pull, Push, PushToken
from embershard.embedding.table_config import ColumnBlock, MinCount, TableConfig
from embershard.embedding.table_group import TableKeys
from embershard.ps_server.local_store import LocalStore

from .conftest import INT64_IDS, TEXTS, UINT64_IDS, Trained

FORMATS = ("parquet", "arrow", "safetensors", "npy")


@pytest.mark.parametrize("format", FORMATS)
def test_lookup_equals_what_evaluation_reads_b62(tmp_path: Path, trained: Trained, format: str) -> None:
    """Seen and unseen values, of every id type; two loads of one export agree to the bit."""
    export_tables(trained.store, tmp_path / "out", None, ExportOptions(format=format), feature_map=trained.features)
    readers = [EmbeddingReader(tmp_path / "out") for _ in range(2)]
    cases = {
        "user": ("user", pa.array([*INT64_IDS, 123456789], pa.int64())),
        "ad": ("ad", pa.array([*UINT64_IDS, 99, 99], pa.uint64())),
        "history": ("ad", pa.array(UINT64_IDS[::-1], pa.uint64())),
        "word": ("word", pa.array([*TEXTS, "unseen"])),
    }
    for feature, (table, values) in cases.items():
        keys = trained.features.encode_values(feature, values)
        unique, inverse = np.unique(keys, return_inverse=True)
        rows = trained.store.exchange(None, Pull(TableKeys.of(table, unique), absent="unseen")).rows
        assert rows is not None
        expected = rows.values.reshape(len(unique), -1)[inverse]
        for reader in readers:
            assert reader.lookup(feature, values).tobytes() == expected.tobytes()
    assert np.abs(readers[0].lookup("word", TEXTS)).min(axis=1).all()
    assert readers[0].lookup("word", ["unseen"]).tolist() == [[0, 0, 0, 0]]
    crossed = readers[0].lookup("user_word", [(17, "größe"), (17, "other")])
    key = trained.features.key("user_word", (17, "größe"))
    assert crossed.tolist() == [trained.weights("user_word")[key].tolist(), [0, 0, 0, 0]]


def test_null_is_the_missing_value_of_the_feature(tmp_path: Path, trained: Trained) -> None:
    export_tables(trained.store, tmp_path / "out", feature_map=trained.features)
    reader = EmbeddingReader(tmp_path / "out")
    learned = trained.weights("user")[trained.features.key("user", None)]
    seen = trained.weights("user")[trained.features.key("user", 17)]
    assert reader.lookup("user", [None, 17]).tolist() == [learned.tolist(), seen.tolist()]
    assert reader.lookup("user_b", [None, 17]).tolist() == [[0, 0, 0, 0], seen.tolist()]
    assert reader.lookup("word", [None]).tolist() == [[0, 0, 0, 0]]


def test_python_numbers_are_ids_of_all_64_bits(tmp_path: Path, trained: Trained) -> None:
    export_tables(trained.store, tmp_path / "out", feature_map=trained.features)
    reader, array = EmbeddingReader(tmp_path / "out"), pa.array(UINT64_IDS, pa.uint64())
    for values in (UINT64_IDS, tuple(UINT64_IDS), iter(UINT64_IDS), array.to_numpy()):
        assert reader.lookup("ad", values).tolist() == reader.lookup("ad", array).tolist()
    with pytest.raises(TypeError, match="expected ids or texts of feature 'ad', got others"):
        reader.lookup("ad", [-1, 1 << 63])


@pytest.mark.parametrize("values", [[[17, 18]], pa.array([[17], [18]]), [17, "18"], [1 << 70], [{"id": 17}], 17, "17"])
def test_values_that_are_no_ids_are_refused_and_not_made_other_rows(
    tmp_path: Path, trained: Trained, values: object
) -> None:
    """A list of two ids gave two vectors for one value, beside the values that they belong to."""
    export_tables(trained.store, tmp_path / "out", ["user"], feature_map=trained.features)
    with pytest.raises(TypeError, match=r"^expected .* of feature 'user', got "):
        EmbeddingReader(tmp_path / "out").lookup("user", values)


@pytest.mark.parametrize("format", FORMATS)
def test_unseen_keys_read_the_unknown_row_of_their_tablet(tmp_path: Path, format: str) -> None:
    """As evaluation reads it, over a delta and a restored checkpoint as well."""
    table = TableConfig(name="ad", blocks=(ColumnBlock(dim=2),), admission=MinCount(count=2), unseen="unknown_row")
    store = LocalStore(tables=ReferenceTableGroup(2))
    store.ensure_tables([table])
    quarter = np.arange(4, dtype=np.uint64) << np.uint64(62)

    def push(batch: int, keys: np.ndarray, occurrences: int) -> None:
        gradients = np.random.default_rng(batch).standard_normal(2 * len(keys)).astype(np.float32)
        counts = np.full(len(keys), occurrences, np.uint32)
        token = PushToken(1, 1, batch)
        store.exchange(Push(token, TableKeys.of("ad", np.sort(keys)), gradients, counts, 1, 1, 0), None)

    def check(*exports: str) -> None:
        asked = np.concatenate([quarter + np.uint64(offset) for offset in (5, 9, 77)])
        rows = store.exchange(None, Pull(TableKeys.of("ad", asked), absent="unseen")).rows
        assert rows is not None
        reader = EmbeddingReader(*[tmp_path / name for name in exports])
        assert reader.tables == ("ad",)
        assert reader.lookup_keys("ad", asked).tobytes() == rows.values.tobytes()
        assert len(np.unique(rows.values.reshape(-1, 2), axis=0)) > 3

    options = ExportOptions(format=format)
    push(0, quarter[:3] + np.uint64(5), 3)
    push(1, quarter[:2] + np.uint64(9), 1)
    export_tables(store, tmp_path / "base", None, options)
    check("base")
    push(2, quarter[1:] + np.uint64(21), 1)
    export_tables(store, tmp_path / "delta", None, options, base=tmp_path / "base")
    check("base", "delta")
    unseen = EmbeddingReader(tmp_path / "base", tmp_path / "delta").manifest.table("ad")
    assert [row.tablet for row in unseen.unseen_rows] == [0, 1, 2, 3]
    vectors = np.array([row.vector for row in unseen.unseen_rows])
    mean = np.average(vectors, axis=0, weights=[row.count for row in unseen.unseen_rows])
    assert np.allclose(unseen.unseen, mean, atol=1e-7)
    with open_checkpoint(write_checkpoint(tmp_path / "checkpoints", store, TrainingState(step=1))) as checkpoint:
        fresh = LocalStore(tables=ReferenceTableGroup(2))
        assert set(checkpoint.restore(fresh, only={"ad"}).rows) == {"ad", "ad/unknown"}
        store = fresh
        check("base", "delta")


def test_a_word_that_verifies_nothing_is_refused(tmp_path: Path, trained: Trained) -> None:
    export_tables(trained.store, tmp_path / "out", ["user"])
    saved = write_checkpoint(tmp_path, trained.store, TrainingState(step=1))
    for open_it, path in ((EmbeddingReader, tmp_path / "out"), (open_checkpoint, saved)):
        with pytest.raises(ValueError, match=r"expected verify one of \['contents', 'sizes'\], got 'content'"):
            open_it(path, verify="content")


def test_what_is_not_there_is_named(tmp_path: Path, trained: Trained) -> None:
    export_tables(trained.store, tmp_path / "out", ["user"], feature_map=trained.features)
    reader = EmbeddingReader(tmp_path / "out")
    with pytest.raises(KeyError, match=r"expected one of tables \['user'\], got 'ad'"):
        reader.lookup("ad", [1])
    with pytest.raises(KeyError, match="numeric feature 'age'"):
        reader.lookup("age", [1])
    with pytest.raises(ValueError, match="usr"):
        reader.lookup("usr", [1])


@pytest.mark.parametrize("format", FORMATS)
def test_a_missing_or_damaged_file_is_an_error_not_defaults_b62(tmp_path: Path, trained: Trained, format: str) -> None:
    export_tables(trained.store, tmp_path / "out", ["ad"], ExportOptions(format=format), feature_map=trained.features)
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file() and path.name != "manifest.json"]
    for file in files:
        good = file.read_bytes()
        file.unlink()
        with pytest.raises(CorruptCheckpointError, match=file.name):
            EmbeddingReader(tmp_path / "out")
        file.write_bytes(good[:-1])
        with pytest.raises(CorruptCheckpointError, match=file.name):
            EmbeddingReader(tmp_path / "out")
        flipped = bytearray(good)
        flipped[len(good) // 2] ^= 1
        file.write_bytes(flipped)
        with pytest.raises(CorruptCheckpointError, match=file.name):
            EmbeddingReader(tmp_path / "out", verify="contents")
        file.write_bytes(good)
    with pytest.raises(CorruptCheckpointError, match="expected an export, got no manifest"):
        EmbeddingReader(tmp_path / "nothing")


@pytest.mark.parametrize("format", FORMATS)
def test_base_and_deltas_serve_what_a_full_export_serves_b60(tmp_path: Path, trained: Trained, format: str) -> None:
    """Keys 1..100; erase 1..50, update 60, insert 10 again: serving holds {10, 51..100}; then erase 60."""
    store, options = trained.store, ExportOptions(format=format)
    numbers = np.arange(1, 101, dtype=np.uint64) * np.uint64(0x0123456789ABCDEF)
    key = dict(zip(range(1, 101), numbers.tolist(), strict=True))
    store.erase(TableKeys.of("ad", np.array(sorted(trained.weights("ad")), np.uint64)))
    trained.push("ad", numbers)

    def export(name: str, base: str | None = None) -> None:
        place = None if base is None else tmp_path / base
        export_tables(store, tmp_path / name, ["ad"], options, feature_map=trained.features, base=place)

    export("base")
    store.erase(TableKeys.of("ad", numbers[:50]))
    trained.push("ad", np.array([key[60], key[10]], np.uint64))
    export("delta-1", base="base")
    export("full-1")
    reader = EmbeddingReader(tmp_path / "base", tmp_path / "delta-1")
    assert reader.contains("ad", numbers).nonzero()[0].tolist() == [9, *range(50, 100)]
    full = EmbeddingReader(tmp_path / "full-1")
    assert reader.lookup_keys("ad", numbers).tobytes() == full.lookup_keys("ad", numbers).tobytes()
    assert (reader.rows("ad"), full.rows("ad")) == (51, 51)
    assert reader.manifest.table("ad").rows == 2
    store.erase(TableKeys.of("ad", np.array([key[60]], np.uint64)))
    export("delta-2", base="delta-1")
    reader = EmbeddingReader(tmp_path / "base", tmp_path / "delta-1", tmp_path / "delta-2")
    assert not reader.contains("ad", [key[60]])[0]
    assert reader.lookup_keys("ad", [key[60]]).tolist() == [[0, 0, 0, 0]]
    merged = {}
    for keys, counts, vectors in reader.scan("ad"):
        merged.update(zip(keys.tolist(), zip(counts.tolist(), vectors.tolist(), strict=True), strict=True))
    assert {k: v[1] for k, v in merged.items()} == {k: v.tolist() for k, v in trained.weights("ad").items()}
    for wrong in (["delta-1"], ["base", "delta-2"], ["base", "full-1"], ["base", "delta-2", "delta-1"]):
        with pytest.raises(CheckpointMismatchError):
            EmbeddingReader(*[tmp_path / name for name in wrong])


def test_a_delta_erases_what_the_filter_leaves_out_now(tmp_path: Path, trained: Trained) -> None:
    """A row that was erased and came back with a low count is served no more, as in a full export."""
    options, store = ExportOptions(min_count=2), trained.store
    export_tables(store, tmp_path / "base", ["ad"], options, feature_map=trained.features)
    key = trained.features.key("ad", 0)
    store.erase(TableKeys.of("ad", np.array([key], np.uint64)))
    trained.push("ad", np.array([key], np.uint64), occurrences=1)
    report = export_tables(
        store, tmp_path / "delta", ["ad"], options, feature_map=trained.features, base=tmp_path / "base"
    )
    assert (report.rows, report.erased) == ({"ad": 0}, {"ad": 1})
    assert not EmbeddingReader(tmp_path / "base", tmp_path / "delta").contains("ad", [key])[0]
    for options in (ExportOptions(min_count=3), ExportOptions(min_count=2, blocks=("weights",))):
        with pytest.raises(CheckpointMismatchError, match="in base"):
            export_tables(store, tmp_path / "other", ["ad"], options, base=tmp_path / "base")
    with pytest.raises(ValueError, match="touched_since"):
        export_tables(store, tmp_path / "other", ["ad"], ExportOptions(touched_since=1), base=tmp_path / "base")


def test_serving_imports_no_torch(tmp_path: Path, trained: Trained) -> None:
    export_tables(
        trained.store, tmp_path / "out", ["user"], ExportOptions(format="arrow"), feature_map=trained.features
    )
    code = (
        "import sys\n"
        "from embershard.embedding.embedding_reader import EmbeddingReader\n"
        "print(EmbeddingReader(sys.argv[1]).lookup('user', [17]).tolist())\n"
        "assert 'torch' not in sys.modules and 'grpc' not in sys.modules\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "out")],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([trained.weights("user")[trained.features.key("user", 17)].tolist()])
