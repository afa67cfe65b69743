"""Files of an export that were written anew by something else, with sizes and sums in the manifest to match."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embershard.embedding.checkpoint.manifest import json_hash
from embershard.embedding.embedding_reader import EmbeddingReader
from embershard.embedding.errors import CorruptCheckpointError
from embershard.embedding.export import ExportOptions, export_tables

from .conftest import TEXTS, Trained

KEYS = pa.array([1, 2, 3, 4], pa.uint64())
VECTORS = pa.array([[1.0, 2, 3, 4]] * 4, pa.list_(pa.field("item", pa.float32(), nullable=False), 4))
UNEVEN = pa.array([[1.0], [2.0, 3, 4, 5, 6], [7.0] * 4, [8.0] * 6], pa.list_(pa.float32()))
FITTING = {"key": KEYS, "count": pa.array([1] * 4, pa.uint32()), "vector": VECTORS}


def trained_on_four_rows(trained: Trained) -> Trained:
    """No ids: the table of crosses; four rows of four values."""
    trained.push("user_word", np.arange(1, 4, dtype=np.uint64))
    return trained


def sign(out: Path) -> None:
    """Make the manifest fit the sizes and sums of the files that are there now."""
    body = json.loads((out / "manifest.json").read_bytes())
    body.pop("sha256")
    for table in body["tables"]:
        for file in table["files"]:
            data = (out / file["path"]).read_bytes()
            file.update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    (out / "manifest.json").write_text(json.dumps({**body, "sha256": json_hash(body)}))


def rewrite(out: Path, format: str, columns: dict[str, pa.Array]) -> None:
    """Columns in place of the file of the table of crosses."""
    table = pa.table(columns)
    path = out / f"user_word.{format}"
    if format == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    sign(out)


MISFITTING = {
    "lists of other lengths": ({"vector": UNEVEN}, r"list<element: float> in place of|list<item: float> in place of"),
    "wider numbers": ({"vector": VECTORS.cast(pa.list_(pa.float64(), 4))}, "'vector'"),
    "narrower vectors": ({"vector": pa.array([[1.0, 2]] * 4, pa.list_(pa.float32(), 2))}, r"\[2\] in place of"),
    "no vector": ({"vector": pa.array([[1.0] * 4, None, [1.0] * 4, None], VECTORS.type)}, "2 nulls in column 'vector'"),
    "numbers that may be null": ({"vector": VECTORS.cast(pa.list_(pa.float32(), 4))}, r"float>\[4\] in place of"),
    "signed keys": ({"key": KEYS.cast(pa.int64())}, "int64 in place of uint64 in column 'key'"),
    "no key": ({"key": pa.array([1, 2, None, 4], pa.uint64())}, "1 nulls in column 'key'"),
    "wider counts": ({"count": pa.array([1] * 4, pa.int64())}, "int64 in place of uint32 in column 'count'"),
    "no count": ({"count": pa.array([1, None, 1, 1], pa.uint32())}, "1 nulls in column 'count'"),
    "no column": ({"count": None}, "count"),
    "other number of rows": ({name: column.slice(1) for name, column in FITTING.items()}, "expected 4 rows .* got 3"),
}


@pytest.mark.parametrize("format", ["arrow", "parquet"])
@pytest.mark.parametrize("case", MISFITTING)
def test_columns_that_do_not_fit_are_an_error_not_other_rows(
    tmp_path: Path, trained: Trained, format: str, case: str
) -> None:
    out = tmp_path / "out"
    export_tables(trained_on_four_rows(trained).store, out, ["user_word"], ExportOptions(format=format))
    rewrite(out, format, FITTING)
    assert EmbeddingReader(out).lookup_keys("user_word", [3]).tolist() == [[1, 2, 3, 4]]
    changed, message = MISFITTING[case]
    rewrite(out, format, {name: column for name, column in {**FITTING, **changed}.items() if column is not None})
    with pytest.raises(CorruptCheckpointError, match=rf"{message}.*user_word\.{format}.* in {out}"):
        EmbeddingReader(out)


def test_a_null_among_the_numbers_is_an_error_not_zero(tmp_path: Path, trained: Trained) -> None:
    """Arrow writes it although the type has no nulls; Parquet refuses to."""
    out = tmp_path / "out"
    export_tables(trained_on_four_rows(trained).store, out, ["user_word"], ExportOptions(format="arrow"))
    rewrite(out, "arrow", {**FITTING, "vector": pa.array([[1.0, None, 3, 4]] * 4, VECTORS.type)})
    with pytest.raises(CorruptCheckpointError, match="no number in 4 places of column 'vector'"):
        EmbeddingReader(out)


@pytest.mark.parametrize("format", ["arrow", "parquet"])
@pytest.mark.parametrize("keys", [[1, 3, 2, 4], [1, 2, 2, 4]])
def test_keys_out_of_order_are_found_where_contents_are_verified(
    tmp_path: Path, trained: Trained, format: str, keys: list[int]
) -> None:
    out = tmp_path / "out"
    export_tables(trained_on_four_rows(trained).store, out, ["user_word"], ExportOptions(format=format))
    rewrite(out, format, {**FITTING, "key": pa.array(keys, pa.uint64())})
    with pytest.raises(CorruptCheckpointError, match=rf"ascending order.*user_word\.{format}"):
        EmbeddingReader(out, verify="contents")
    rewrite(out, format, FITTING)
    EmbeddingReader(out, verify="contents")


def test_record_batches_out_of_order_are_found_where_contents_are_verified(tmp_path: Path, trained: Trained) -> None:
    out = tmp_path / "out"
    export_tables(trained_on_four_rows(trained).store, out, ["user_word"], ExportOptions(format="arrow"))
    batches = pa.table(FITTING).to_batches(max_chunksize=2)
    for order, fits in (((0, 1), True), ((1, 0), False)):
        with pa.ipc.new_file(out / "user_word.arrow", batches[0].schema) as writer:
            for index in order:
                writer.write_batch(batches[index])
            writer.write_batch(batches[0].slice(0, 0))
        sign(out)
        if fits:
            assert EmbeddingReader(out, verify="contents").rows("user_word") == 4
        else:
            with pytest.raises(CorruptCheckpointError, match="ascending order"):
                EmbeddingReader(out, verify="contents")


def resaved(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    def save(out: Path) -> None:
        path = out / "word" / f"{name}.npy"
        np.save(path, change(np.load(path)))

    return save


BAD_ARRAYS = {
    r"float64\[6, 4\] in place of float32": resaved("vector", lambda array: array.astype(np.float64)),
    r"float32\[4, 6\] in place of": resaved("vector", lambda array: array.reshape(4, 6).copy()),
    "Fortran order": resaved("vector", np.asfortranarray),
    r"uint32\[5\] in place of uint32\[6\]": resaved("count", lambda array: array[:5]),
    "int64.* in place of uint64.* in array 'key'": resaved("key", lambda array: array.view(np.int64)),
    r"int64\[6\] in place of int64\[7\] in array 'id_offsets'": resaved("id_offsets", lambda array: array[:6]),
    "offset": resaved("id_offsets", lambda array: array + 1000),
}


@pytest.mark.parametrize("message", BAD_ARRAYS)
def test_arrays_that_do_not_fit_are_an_error_not_other_rows(tmp_path: Path, trained: Trained, message: str) -> None:
    out = tmp_path / "out"
    features, options = trained.features, ExportOptions(format="npy")
    export_tables(
        trained.store, out, ["word"], options, feature_map=features, dictionaries={"word": trained.dictionary()}
    )
    BAD_ARRAYS[message](out)
    sign(out)
    with pytest.raises(CorruptCheckpointError, match=message):
        EmbeddingReader(out)


def test_texts_out_of_order_are_an_error_when_they_are_read(tmp_path: Path, trained: Trained) -> None:
    """Opening looks at the first and the last offset; what lies between is looked at when ids are read."""
    out = tmp_path / "out"
    features, options = trained.features, ExportOptions(format="npy")
    export_tables(
        trained.store, out, ["word"], options, feature_map=features, dictionaries={"word": trained.dictionary()}
    )
    assert sorted(EmbeddingReader(out).ids("word").to_pylist()) == sorted(TEXTS)
    path = out / "word" / "id_offsets.npy"
    offsets = np.load(path)
    offsets[2] = 1 << 40
    np.save(path, offsets)
    sign(out)
    with pytest.raises(CorruptCheckpointError, match=rf"expected ids, got.*id_offsets\.npy.* in {out}"):
        EmbeddingReader(out).ids("word")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header: header["vector"].update(shape=[24]), r"in array 'vector'"),
        (lambda header: header["vector"].update(shape=[6, 8]), r"96 bytes for F32\[6, 8\] in tensor 'vector'"),
        (lambda header: header["vector"].update(dtype="F8"), "F8"),
        (lambda header: header["vector"].update(data_offsets=[-4, 92]), "data_offsets"),
        (lambda header: header["vector"].update(data_offsets=[1 << 40, (1 << 40) + 96]), "expected safetensors files"),
        (lambda header: header.update(vector=[1]), "vector"),
        (lambda header: header.pop("key"), "key"),
    ],
)
def test_a_safetensors_header_that_does_not_fit_is_an_error(
    tmp_path: Path, trained: Trained, change: Callable[[dict], None], message: str
) -> None:
    out = tmp_path / "out"
    export_tables(trained.store, out, ["word"], ExportOptions(format="safetensors"))
    path = out / "word.safetensors"
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] = {"made": "anew"}
    for index, changed in enumerate((lambda header: None, change)):
        changed(header)
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
        sign(out)
        if index == 0:
            assert EmbeddingReader(out).rows("word") == len(TEXTS)
    with pytest.raises(CorruptCheckpointError, match=message):
        EmbeddingReader(out)
