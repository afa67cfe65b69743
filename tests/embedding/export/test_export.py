"""Exports in every format: ids exact, vectors right, replaced whole or not at all."""

from __future__ import annotations

import json
import resource
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs as pafs
from safetensors.numpy import load_file

from embershard.embedding.checkpoint import TrainingState, open_checkpoint, write_checkpoint
from embershard.embedding.embedding_reader import EmbeddingReader
from embershard.embedding.errors import CheckpointMismatchError, CheckpointWriteError, UnknownTableError
from embershard.embedding.export import ExportOptions, export_tables, read_export_manifest
from embershard.embedding.export.vectors import quantise
from embershard.embedding.store import Pull, Push
from embershard.embedding.table_config import ColumnBlock, Score, TableConfig
from embershard.embedding.table_group import TableKeys
from embershard.feature_map import Categorical, FeatureMap
from embershard.feature_map.value_dictionary import VALUE_SCHEMA, write_values

from .conftest import INT64_IDS, TEXTS, UINT64_IDS, Trained

FORMATS = ("parquet", "arrow", "safetensors", "npy")


def read_plain(path: Path, table: str, format: str) -> dict[str, list]:
    """A table's columns, read with other people's readers only."""
    if format == "parquet":
        return pq.read_table(path / f"{table}.parquet").to_pydict()
    if format == "arrow":
        return pa.ipc.open_file(path / f"{table}.arrow").read_all().to_pydict()
    if format == "safetensors":
        arrays = load_file(path / f"{table}.safetensors")
    else:
        arrays = {file.stem: np.load(file) for file in (path / table).iterdir()}
    return {name: array.tolist() for name, array in arrays.items()}


@pytest.mark.parametrize("format", FORMATS)
def test_integer_ids_come_back_exact_through_a_checkpoint(tmp_path: Path, trained: Trained, format: str) -> None:
    """Beyond 2^24 and 2^53, both signs, both ends of int64 and uint64."""
    state = TrainingState(step=5, feature_map=trained.features.to_dict())
    path = write_checkpoint(tmp_path / "checkpoints", trained.store, state)
    with open_checkpoint(path) as checkpoint:
        report = export_tables(checkpoint, tmp_path / "out", ["user", "ad"], ExportOptions(format=format))
    assert report.rows == {"user": 209, "ad": 6}
    assert report.erased == {"user": 0, "ad": 0}
    users = read_plain(tmp_path / "out", "user", format)
    missing_key = trained.features.key("user", None)
    by_id = {
        (None if key == missing_key else id_): (key, count, vector)
        for key, id_, count, vector in zip(users["key"], users["id"], users["count"], users["vector"], strict=True)
    }
    weights = trained.weights("user")
    assert users["key"] == sorted(weights)
    for id_ in INT64_IDS:
        key, count, vector = by_id[id_]
        assert key == trained.features.key("user", id_)
        assert count == 3
        assert vector == weights[key].tolist()
    assert by_id[None][0] == missing_key
    if format in ("parquet", "arrow"):
        assert users["id"].count(None) == 1
    ads = read_plain(tmp_path / "out", "ad", format)
    assert sorted(ads["id"]) == sorted(UINT64_IDS)
    manifest = read_export_manifest(tmp_path / "out")[1]
    assert (manifest.step, manifest.checkpoint) == (5, path)
    assert manifest.feature_map_hash == trained.features.hash
    assert manifest.table("user").missing_key == missing_key
    assert [(block.name, block.dim) for block in manifest.table("user").blocks] == [("linear", 1), ("factors", 3)]
    assert manifest.table("ad").key_space == "ad-v1"
    assert manifest.table("ad").unseen == (0.0,) * 4


@pytest.mark.parametrize("format", FORMATS)
def test_texts_come_back_where_a_dictionary_was_kept(tmp_path: Path, trained: Trained, format: str) -> None:
    trained.push("word", trained.features.encode_values("word", pa.array(["not in the dictionary"])))
    export_tables(
        trained.store,
        tmp_path / "out",
        ["word", "user_word"],
        ExportOptions(format=format),
        feature_map=trained.features,
        dictionaries={"word": trained.dictionary()},
    )
    words = read_plain(tmp_path / "out", "word", format)
    if "id_bytes" in words:
        data, offsets = bytes(words["id_bytes"]), words["id_offsets"]
        words["id"] = [data[a:b].decode() for a, b in pairwise(offsets)]
    by_key = dict(zip(words["key"], words["id"], strict=True))
    for text in TEXTS:
        assert by_key[trained.features.key("word", text)] == text
    assert by_key[trained.features.key("word", "not in the dictionary")] in (None, "")
    assert "id" not in read_plain(tmp_path / "out", "user_word", format)
    manifest = read_export_manifest(tmp_path / "out")[1]
    assert [(table.name, table.id) for table in manifest.tables] == [("word", "text"), ("user_word", None)]


def test_texts_come_from_a_file_of_the_value_dictionary(tmp_path: Path, trained: Trained) -> None:
    file = tmp_path / "values.parquet"
    texts = trained.dictionary().sort_by("key")
    write_values(
        file,
        [
            pa.table([pa.repeat("word", len(texts)), texts["key"], texts["value"]], VALUE_SCHEMA.names).cast(
                VALUE_SCHEMA
            )
        ],
    )
    export_tables(trained.store, tmp_path / "out", None, feature_map=trained.features, dictionaries=file)
    assert sorted(read_plain(tmp_path / "out", "word", "parquet")["id"]) == sorted(TEXTS)
    assert [table.id for table in read_export_manifest(tmp_path / "out")[1].tables] == ["int64", "uint64", "text", None]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("vectors", ["float32", "float16", "int8"])
def test_number_types(tmp_path: Path, trained: Trained, format: str, vectors: str) -> None:
    options = ExportOptions(format=format, vectors=vectors)
    export_tables(trained.store, tmp_path / "out", ["ad"], options, feature_map=trained.features)
    plain = read_plain(tmp_path / "out", "ad", format)
    weights = trained.weights("ad")
    reader = EmbeddingReader(tmp_path / "out", verify="contents")
    for position, key in enumerate(plain["key"]):
        stored = np.array(plain["vector"][position], np.float32)
        if vectors == "int8":
            assert np.abs(stored).max() == 127
            stored = stored * np.float32(plain["scale"][position])
        allowed = {"float32": 0, "float16": 2**-11 * 4, "int8": np.abs(weights[key]).max() / 253}[vectors]
        assert np.abs(stored - weights[key]).max() <= allowed
        assert reader.lookup_keys("ad", [key])[0].tolist() == stored.tolist()


def test_vectors_beyond_float16_are_refused_not_made_infinite(tmp_path: Path, trained: Trained) -> None:
    trained.store.assign(TableKeys.of("ad", np.array([5], np.uint64)), np.full(4, 1e5, np.float32))
    with pytest.raises(OverflowError, match=r"within float16 \(65504\), got 100000.0"):
        export_tables(trained.store, tmp_path / "out", ["ad"], ExportOptions(vectors="float16"))
    assert not (tmp_path / "out").exists()
    export_tables(trained.store, tmp_path / "out", ["ad"], ExportOptions(vectors="int8"))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_vectors_that_are_not_finite_have_no_int8(value: float) -> None:
    vectors = np.array([[1, value], [0, 0]], np.float32)
    with pytest.raises(OverflowError, match="expected finite values for int8"):
        quantise(vectors, "int8")
    assert quantise(vectors, "float16")[0].tobytes() == vectors.astype(np.float16).tobytes()


def test_zero_vectors_survive_int8(tmp_path: Path, trained: Trained) -> None:
    trained.store.assign(TableKeys.of("ad", np.array([5], np.uint64)), np.zeros(4, np.float32))
    export_tables(trained.store, tmp_path / "out", ["ad"], ExportOptions(vectors="int8"))
    assert EmbeddingReader(tmp_path / "out").lookup_keys("ad", [5]).tolist() == [[0, 0, 0, 0]]


def test_filters_by_count_and_time(tmp_path: Path, trained: Trained) -> None:
    trained.push("ad", np.array([1, 2], np.uint64), now=500)
    trained.push("ad", np.array([2], np.uint64), now=600)

    def exported(**options: int) -> int:
        return export_tables(trained.store, tmp_path / "out", ["ad"], ExportOptions(**options)).rows["ad"]

    assert exported() == 8
    assert exported(min_count=2) == 7
    assert exported(min_count=3) == 0
    assert exported(touched_since=500) == 2
    assert exported(touched_since=501) == 1
    assert read_export_manifest(tmp_path / "out")[1].options.touched_since == 501


@pytest.mark.parametrize("format", FORMATS)
def test_clicks_are_a_column_where_the_table_keeps_them(tmp_path: Path, trained: Trained, format: str) -> None:
    score = Score(min_score=1.0, half_life_seconds=60, click_weight=1.0)
    trained.store.ensure_tables([TableConfig(name="clicked", blocks=(ColumnBlock(dim=2),), eviction=(score,))])
    keys, counts = np.array([3, 7, 1 << 63], np.uint64), np.array([4, 1, 9], np.uint32)
    push = Push(None, TableKeys.of("clicked", keys), np.ones(6, np.float32), counts, 1, 1, 0)
    trained.store.exchange(replace(push, clicks=np.array([2, 1, 5], np.uint32)), None)
    report = export_tables(
        trained.store, tmp_path / "out", ["clicked", "ad"], ExportOptions(format=format, min_count=2)
    )
    assert report.rows["clicked"] == 2
    columns = read_plain(tmp_path / "out", "clicked", format)
    assert (columns["key"], columns["count"], columns["clicks"]) == ([3, 1 << 63], [4, 9], [2, 5])
    assert "clicks" not in read_plain(tmp_path / "out", "ad", format)
    rows = EmbeddingReader(tmp_path / "out", verify="contents").lookup_keys("clicked", [3])
    assert rows.tolist() == trained.store.exchange(None, Pull(TableKeys.of("clicked", [3]))).rows.values[None].tolist()


def test_one_block_of_a_table(tmp_path: Path, trained: Trained) -> None:
    options = ExportOptions(blocks=("factors",), format="npy")
    export_tables(trained.store, tmp_path / "out", ["user"], options)
    arrays = read_plain(tmp_path / "out", "user", "npy")
    weights = trained.weights("user")
    assert arrays["vector"] == [weights[key][1:].tolist() for key in arrays["key"]]
    with pytest.raises(ValueError, match=r"out of \['linear', 'factors'\], got \['bias'\]"):
        export_tables(trained.store, tmp_path / "other", ["user"], ExportOptions(blocks=("bias",)))
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("format", ["parquet", "arrow", "safetensors"])
def test_one_table_as_one_file(tmp_path: Path, trained: Trained, format: str) -> None:
    file = tmp_path / f"users.v1.{format}"
    report = export_tables(trained.store, file, ["user"], ExportOptions(format=format), feature_map=trained.features)
    assert report.path == str(file)
    assert sorted(path.name for path in tmp_path.iterdir()) == [file.name, f"{file.name}.manifest.json"]
    reader = EmbeddingReader(file)
    assert reader.lookup("user", [17]).tolist() == [trained.weights("user")[trained.features.key("user", 17)].tolist()]
    with pytest.raises(ValueError, match="expected one table for the file"):
        export_tables(trained.store, file, None, ExportOptions(format=format))
    other = {"parquet": "arrow", "arrow": "safetensors", "safetensors": "parquet"}[format]
    with pytest.raises(ValueError, match=f"expected a name ending in .{other}"):
        export_tables(trained.store, file, ["user"], ExportOptions(format=other))


def test_a_new_export_takes_the_place_of_the_old_one_only_when_complete(tmp_path: Path, trained: Trained) -> None:
    export_tables(trained.store, tmp_path / "out", ["user"], feature_map=trained.features)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        with pytest.raises(CheckpointWriteError, match="could not export to"):
            export_tables(trained.store, tmp_path / "out", ["user", "ad"], feature_map=trained.features)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    export_tables(trained.store, tmp_path / "out", ["ad"], feature_map=trained.features)
    assert EmbeddingReader(tmp_path / "out").tables == ("ad",)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_directory_of_other_files_is_not_replaced(tmp_path: Path, trained: Trained) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("…")
    with pytest.raises(FileExistsError, match="expected an export or an empty directory"):
        export_tables(trained.store, tmp_path / "home", ["user"])
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["thesis.tex"]


def test_what_is_no_export_is_not_replaced_by_one(tmp_path: Path, trained: Trained) -> None:
    """A checkpoint has a manifest.json too, and an export may have got other files beside its own."""
    checkpoint = Path(write_checkpoint(tmp_path, trained.store, TrainingState(step=1)))
    before = {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()}
    export_tables(trained.store, tmp_path / "out", ["user"], feature_map=trained.features)
    (tmp_path / "out" / "notes.txt").write_text("mine")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "manifest.json").write_text("{")
    (tmp_path / "file").write_text("mine")
    for taken in (checkpoint, tmp_path / "out", tmp_path / "broken", tmp_path / "file"):
        with pytest.raises(FileExistsError, match=r"^expected an export or an empty directory, got other files in .*"):
            export_tables(trained.store, taken, ["user"], feature_map=trained.features)
    assert {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()} == before
    assert (tmp_path / "out" / "notes.txt").read_text() == (tmp_path / "file").read_text() == "mine"
    clicks = tmp_path / "clicks.parquet"
    clicks.write_text("a click log")
    with pytest.raises(FileExistsError, match=rf"^expected an export or no file, got another file: {clicks}$"):
        export_tables(trained.store, clicks, ["user"], feature_map=trained.features)
    assert clicks.read_text() == "a click log"
    beside = tmp_path / "user.parquet.manifest.json"
    beside.write_text("another program's")
    with pytest.raises(FileExistsError, match=rf"^expected an export or no file, got another file: {beside}$"):
        export_tables(trained.store, tmp_path / "user.parquet", ["user"], feature_map=trained.features)
    assert beside.read_text() == "another program's"
    assert not (tmp_path / "user.parquet").exists()
    beside.unlink()
    for _ in range(2):
        export_tables(trained.store, tmp_path / "user.parquet", ["user"], feature_map=trained.features)


def test_a_delta_beside_a_foreign_file_of_its_erased_keys_name(tmp_path: Path, trained: Trained) -> None:
    """`u.erased.arrow` is written by deltas alone; one's own is replaced, and goes with the delta."""
    full, file, erased = tmp_path / "full", tmp_path / "u.arrow", tmp_path / "u.erased.arrow"
    options = ExportOptions(format="arrow")
    export_tables(trained.store, full, ["user"], options)
    trained.store.erase(TableKeys.of("user", np.sort(trained.features.encode_values("user", pa.array([17, 1])))))
    erased.write_text("mine")
    export_tables(trained.store, file, ["user"], options)
    with pytest.raises(FileExistsError, match=rf"^expected an export or no file, got another file: {erased}$"):
        export_tables(trained.store, file, ["user"], options, base=full)
    assert erased.read_text() == "mine"
    assert EmbeddingReader(file).manifest.since is None
    erased.unlink()
    for _ in range(2):
        assert export_tables(trained.store, file, ["user"], options, base=full).erased == {"user": 2}
    assert erased.exists()
    export_tables(trained.store, file, ["user"], options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "u.arrow", "u.arrow.manifest.json"]
    EmbeddingReader(file)


@pytest.mark.parametrize("name", ["full", "u.arrow"])
def test_a_delta_does_not_replace_its_own_base(tmp_path: Path, trained: Trained, name: str) -> None:
    options = ExportOptions(format="arrow")
    export_tables(trained.store, tmp_path / name, ["user"], options)
    with pytest.raises(ValueError, match=rf"expected a delta beside its base, got both at {tmp_path / name}"):
        export_tables(trained.store, tmp_path / name, ["user"], options, base=f"{tmp_path}/./{name}")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="expected a delta beside its base"):
        export_tables(trained.store, tmp_path / "link" / name, ["user"], options, base=tmp_path / name)
    assert EmbeddingReader(tmp_path / name).rows("user") > 0


def test_a_feature_map_of_another_key_space_is_refused(tmp_path: Path, trained: Trained) -> None:
    """Its ids would be those of other keys."""
    other = FeatureMap([Categorical("user", id="int64", key_space="user-v2")])
    with pytest.raises(CheckpointMismatchError, match=r"key space 'user' for table 'user', got 'user-v2'"):
        export_tables(trained.store, tmp_path / "out", ["user"], feature_map=other)
    assert not (tmp_path / "out").exists()


def test_unknown_table_is_named_with_those_there_are(tmp_path: Path, trained: Trained) -> None:
    with pytest.raises(UnknownTableError, match=r"\['ad', 'user', 'user_word', 'word'\], got 'usr'"):
        export_tables(trained.store, tmp_path / "out", ["usr"])


def test_equal_rows_give_equal_files(tmp_path: Path, trained: Trained) -> None:
    path = write_checkpoint(tmp_path, trained.store, TrainingState(step=1, feature_map=trained.features.to_dict()))
    with open_checkpoint(path) as checkpoint:
        export_tables(checkpoint, tmp_path / "a", ["user"], ExportOptions(format="arrow"))
    options = ExportOptions(format="arrow")
    export_tables(trained.store, tmp_path / "b", ["user"], options, feature_map=trained.features)
    assert (tmp_path / "a" / "user.arrow").read_bytes() == (tmp_path / "b" / "user.arrow").read_bytes()


def test_without_a_feature_map_there_are_keys_and_no_ids(tmp_path: Path, trained: Trained) -> None:
    export_tables(trained.store, tmp_path / "out", ["user"])
    assert "id" not in read_plain(tmp_path / "out", "user", "parquet")
    with pytest.raises(KeyError, match="use lookup_keys"):
        EmbeddingReader(tmp_path / "out").lookup("user", [17])


@pytest.mark.parametrize("format", FORMATS)
def test_other_filesystems(tmp_path: Path, trained: Trained, format: str) -> None:
    filesystem = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    options = ExportOptions(format=format)
    for _ in range(2):
        export_tables(trained.store, "exports/out", None, options, feature_map=trained.features, filesystem=filesystem)
    reader = EmbeddingReader("exports/out", filesystem=filesystem, verify="contents")
    key = trained.features.key("user", 17)
    assert reader.lookup("user", [17]).tolist() == [trained.weights("user")[key].tolist()]


def test_a_newer_format_is_named(tmp_path: Path, trained: Trained) -> None:
    export_tables(trained.store, tmp_path / "out", ["user"])
    manifest = tmp_path / "out" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format_version": 7}))
    with pytest.raises(CheckpointMismatchError, match="format version <= 1, got 7"):
        EmbeddingReader(tmp_path / "out")


@pytest.mark.parametrize("format", FORMATS)
def test_many_small_batches_and_an_empty_table(tmp_path: Path, trained: Trained, format: str, monkeypatch) -> None:
    monkeypatch.setattr("embershard.embedding.export.arrow_writer.BATCH_BYTES", 200)
    trained.store.ensure_tables([TableConfig(name="nothing", blocks=(ColumnBlock(dim=2),))])
    export_tables(trained.store, tmp_path / "out", None, ExportOptions(format=format), feature_map=trained.features)
    reader = EmbeddingReader(tmp_path / "out", verify="contents")
    weights = trained.weights("user")
    keys = np.array(sorted(weights), np.uint64)[::-1]
    assert reader.lookup_keys("user", keys).tobytes() == np.stack([weights[key] for key in keys.tolist()]).tobytes()
    assert reader.rows("nothing") == 0
    assert reader.lookup_keys("nothing", [1]).tolist() == [[0, 0]]
