"""The value dictionary: every text behind a key is found again, in bounded memory, over workers and spills."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embershard.feature_map import Categorical, FeatureMap, FeatureMapError, Sequence, _native, value_dictionary
from embershard.feature_map.value_dictionary import ValueDictionary, values_table, write_values
from embershard.feature_map.value_files import expected_collisions, merge_values, read_values, values_of


def features() -> FeatureMap:
    return FeatureMap(
        [
            Categorical("city", id="text", keep_values=True, default="nowhere", null_values=("NA",)),
            Categorical("tags", id="text", is_list=True, keep_values=True),
            Sequence("seen", id="text", table="tags", keep_values=True, delimiter="|", max_length=2),
            Categorical("kv", id="text", delimiter=",", weight_delimiter=":", keep_values=True),
            Categorical("other", id="text"),
            Categorical("user"),
        ]
    )


def records() -> pa.Table:
    return pa.table(
        {
            "city": pa.array(["Oslo", None, "NA", "", "Oslo"]).dictionary_encode(),
            "tags": [["a", None], [], None, ["b", "a"], ["c"]],
            "seen": ["x|y|z", None, "", "a", "x"],
            "kv": ["k:1", "m:2,n", None, ":3", "k:0.5"],
            "other": ["p", "q", "r", "s", "t"],
            "user": [1, 2, 3, 4, 5],
        }
    )


def test_every_text_is_found_by_its_key(tmp_path: Path) -> None:
    dictionary = ValueDictionary(features(), tmp_path)
    batch = dictionary.encode(records().slice(0, 2))
    dictionary.encode(records().slice(2))
    assert batch.keys.tolist() == features().encode(records().slice(0, 2)).keys.tolist()
    dictionary.flush()
    merge_values(tmp_path.glob("values-*.parquet"), tmp_path / "values.parquet")
    city = read_values(tmp_path / "values.parquet", "city")
    assert sorted(city.column("value").to_pylist()) == ["", "Oslo", "nowhere"]
    for key, text in zip(city.column("key").to_pylist(), city.column("value").to_pylist(), strict=True):
        assert features().key("city", text) == key
    tags = read_values(tmp_path / "values.parquet", "tags")
    assert sorted(tags.column("value").to_pylist()) == ["a", "b", "c", "x", "y", "z"]
    assert tags.column("key").to_pylist() == sorted(tags.column("key").to_pylist())
    assert sorted(read_values(tmp_path / "values.parquet", "kv").column("value").to_pylist()) == ["k", "m", "n"]
    assert read_values(tmp_path / "values.parquet", "other").num_rows == 0
    keys = np.array([features().key("tags", ["y"]), 12345], np.uint64)
    assert values_of(tmp_path / "values.parquet", "tags", keys) == ["y", None]


def test_memory_is_bounded_and_two_workers_merge(tmp_path: Path) -> None:
    column = Categorical("v", id="text", keep_values=True)
    texts = [f"text number {i}" for i in range(20_000)]
    workers = [ValueDictionary(FeatureMap([column]), tmp_path, worker=w, memory_bytes=1 << 17) for w in ("a", "b")]
    for start in range(0, 20_000, 500):
        workers[(start // 500) % 2].encode(pa.table({"v": texts[start : start + 500]}))
        workers[0].encode(pa.table({"v": texts[:10]}))
    for worker in workers:
        assert worker.collisions == (0, ())
        worker.flush()
    spilled = sorted(tmp_path.glob("values-*.parquet"))
    assert len(spilled) > 4
    assert max(pq.read_metadata(path).num_rows for path in spilled) < 8_000
    for rows_at_once in (1_000, 1_000_000):
        (report,) = merge_values(spilled, tmp_path / "values.parquet", rows_at_once=rows_at_once)
        merged = read_values(tmp_path / "values.parquet", "v")
        assert sorted(merged.column("value").to_pylist()) == sorted(texts)
        assert (report.texts, report.seen) == (20_000, 0)
        assert report.expected == pytest.approx(20_000 * 19_999 / 2**65)


def test_collisions_are_seen_in_memory_and_between_files(tmp_path: Path) -> None:
    memory = _native.TextMemory()
    for key, text in ((7, b"one"), (9, b"two"), (7, b"other"), (7, b"one")):
        memory.add(key, text)
    assert memory.collision_count == 1
    assert memory.collisions() == [(7, b"one", b"other")]
    keys, offsets, data = memory.take()
    assert keys.tolist() == [7, 9]
    write_values(tmp_path / "values-a-000000.parquet", [values_table("t", keys, offsets, data)])
    memory.add(7, b"other")
    write_values(tmp_path / "values-b-000000.parquet", [values_table("t", *memory.take())])
    (report,) = merge_values(sorted(tmp_path.glob("*.parquet"), reverse=True), tmp_path / "values.parquet")
    assert (report.texts, report.seen) == (3, 1)
    assert report.examples[0].values == ("one", "other")
    assert read_values(tmp_path / "values.parquet", "t").column("value").to_pylist() == ["one", "two"]


def test_expected_collisions_is_the_birthday_number() -> None:
    assert expected_collisions(10**8) == pytest.approx(2.7e-4, rel=0.01)


def test_integer_ids_need_no_dictionary(tmp_path: Path) -> None:
    with pytest.raises(FeatureMapError, match="expected id text with keep_values, got int64"):
        ValueDictionary(FeatureMap([Categorical("v", keep_values=True)]), tmp_path)


def test_failed_spill_keeps_the_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dictionary = ValueDictionary(FeatureMap([Categorical("v", id="text", keep_values=True)]), tmp_path)
    dictionary.encode(pa.table({"v": ["a", "b"]}))

    def full_disk(path: Path, tables: list[pa.Table]) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(value_dictionary, "write_values", full_disk)
        with pytest.raises(OSError, match="no space"):
            dictionary.flush()
    dictionary.flush()
    (path,) = tmp_path.glob("*.parquet")
    assert sorted(pq.read_table(path).column("value").to_pylist()) == ["a", "b"]
