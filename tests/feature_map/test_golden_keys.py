"""10,000 golden keys: every path from a value to a key, in every language and process, gives them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

from embershard.datasets.click_log import ClickLog
from embershard.feature_map import Categorical, Cross, CrossPart, FeatureMap

GOLDEN = Path(__file__).parent / "golden" / "keys.jsonl"
DOCS = Path(__file__).parents[2] / "docs" / "keys.md"
ARROW = {"int64": pa.int64(), "uint64": pa.uint64(), "text": pa.string()}


def golden() -> Iterator[tuple[str, str, list[int | str | None], int]]:
    for line in GOLDEN.read_text(encoding="utf-8").splitlines():
        kind, types, space, shown, key = json.loads(line)
        yield kind, space, [int(v) if t == "i" else v for v, t in zip(shown, types, strict=True)], int(key, 16)


def columns() -> dict[tuple[str, str], tuple[list[int | str | None], list[int]]]:
    """(id, key space) → values, keys of the single-column rows."""
    found: dict[tuple[str, str], tuple[list[int | str | None], list[int]]] = {}
    for kind, space, values, key in golden():
        if kind != "cross":
            column, keys = found.setdefault((kind, space), ([], []))
            column.append(values[0])
            keys.append(key)
    return found


def feature(kind: str, space: str) -> Categorical:
    return Categorical("v", id=kind, key_space=space)


def test_file_has_ten_thousand_lines_of_all_kinds() -> None:
    kinds = Counter(kind for kind, *_ in golden())
    assert kinds.total() == 10_000
    assert sorted(kinds) == ["cross", "int64", "text", "uint64"]
    assert min(kinds.values()) > 500


def test_arrow_columns() -> None:
    for (kind, space), (values, keys) in columns().items():
        features = FeatureMap([feature(kind, space)])
        assert features.encode(pa.table({"v": pa.array(values, ARROW[kind])})).keys.tolist() == keys


def test_crosses() -> None:
    for parts in (2, 3):
        rows = [
            (space, values, key) for kind, space, values, key in golden() if kind == "cross" and len(values) == parts
        ]
        for space in {space for space, *_ in rows}:
            of = [CrossPart(column=f"c{i}", id="text" if i == 1 else "int64") for i in range(parts)]
            features = FeatureMap([Cross("x", of=of, key_space=space)])
            mine = [(values, key) for found, values, key in rows if found == space]
            table = pa.table({f"c{i}": [values[i] for values, _ in mine] for i in range(parts)})
            assert features.encode(table).keys.tolist() == [key for _, key in mine]


@pytest.mark.parametrize("format", ["parquet", "csv", "arrow", "jsonl"])
def test_b08_b12_files_of_every_format(format: str, tmp_path: Path) -> None:
    for (kind, space), (values, keys) in columns().items():
        table = pa.table({"v": pa.array(values, ARROW[kind]), "n": np.arange(len(values))})
        path = tmp_path / f"{kind}_{len(list(tmp_path.iterdir()))}.{format}"
        if format == "parquet":
            pyarrow.parquet.write_table(table, path)
        elif format == "csv":
            pyarrow.csv.write_csv(table, path)
        elif format == "arrow":
            pyarrow.feather.write_feather(table, path, compression="uncompressed")
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()), encoding="utf-8")
        batches = ClickLog(path).batches(FeatureMap([feature(kind, space)]), batch_size=1000)
        assert [key for batch in batches for key in batch.keys.tolist()] == keys


def test_pandas_and_polars() -> None:
    for (kind, space), (values, keys) in columns().items():
        features = FeatureMap([feature(kind, space)])
        dtype = {"int64": "Int64", "uint64": "UInt64", "text": "string"}[kind]
        frame = pd.DataFrame({"v": pd.array(values, dtype=dtype)})
        assert features.encode(pa.Table.from_pandas(frame)).keys.tolist() == keys
        polars_type = {"int64": pl.Int64, "uint64": pl.UInt64, "text": pl.String}[kind]
        assert (
            features.encode(pl.DataFrame({"v": pl.Series(values, dtype=polars_type)}).to_arrow()).keys.tolist() == keys
        )


def test_encode_one_and_key() -> None:
    for kind, space, values, key in list(golden())[::7]:
        if kind != "cross":
            features = FeatureMap([feature(kind, space)])
            assert features.encode_one({"v": values[0]}).keys.tolist() == [key]
            assert features.key("v", values[0]) == key
            if kind != "text":
                assert features.value("v", key) == values[0]


def test_b03_text_types_agree() -> None:
    texts = ["foo", "café", "cafe\u0301", "\U0001f680", "a\x00b", ""]
    features = FeatureMap([Categorical("v", id="text")])
    keys = features.encode(pa.table({"v": texts})).keys.tolist()
    assert len(set(keys)) == 6  # decomposed text is other text: nothing is normalised
    for kind in (pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view(), pa.binary_view()):
        raw = [t.encode() for t in texts] if "binary" in str(kind) else texts
        assert features.encode(pa.table({"v": pa.array(raw, kind)})).keys.tolist() == keys
    assert features.encode(pa.table({"v": pa.array(texts).dictionary_encode()})).keys.tolist() == keys
    fixed = pa.array([t.encode()[:3] for t in texts[:1]], pa.binary(3))
    assert features.encode(pa.table({"v": fixed})).keys.tolist() == keys[:1]


def test_one_and_eight_threads_agree() -> None:
    (values, keys) = columns()["text", "user"]
    features = FeatureMap([feature("text", "user")])
    table = pa.table({"v": pa.array(values, pa.string())})
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: features.encode(table).keys.tolist(), range(64)))
    assert all(result == keys for result in results)


@pytest.mark.process
def test_b04_processes_with_other_hash_seeds_agree() -> None:
    script = (
        "import sys, json, pyarrow as pa; from embershard.feature_map import FeatureMap, Categorical\n"
        "values = json.loads(sys.stdin.read())\n"
        "features = FeatureMap([Categorical('v', id='text', key_space='user')])\n"
        "print(json.dumps(features.encode(pa.table({'v': pa.array(values, pa.string())})).keys.tolist()))"
    )
    values, keys = columns()["text", "user"]
    for seed in ("0", "1", "random"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            input=json.dumps(values),
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(done.stdout) == keys


def program(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found.group(1)


PYTHON_CHECK = """
import json, sys
for line in open(sys.argv[1], encoding="utf-8"):
    kind, types, space, shown, expected = json.loads(line)
    values = [int(v) if t == "i" else v for v, t in zip(shown, types)]
    assert f"{key(space, *values):016x}" == expected, line
print("agrees")
"""
JAVASCRIPT_CHECK = """
for (const line of require("fs").readFileSync(process.argv[2], "utf-8").trim().split("\\n")) {
  const [kind, types, space, shown, expected] = JSON.parse(line);
  const values = shown.map((v, i) => (types[i] === "i" ? BigInt(v) : v));
  if (key(space, ...values).toString(16).padStart(16, "0") !== expected) throw new Error(line);
}
console.log("agrees");
"""


def pythons(version: str) -> Iterator[Path]:
    """Interpreters of a version that may be here: on PATH, and where pyenv keeps its own."""
    on_path = [Path(folder) / f"python{version}" for folder in os.get_exec_path()]
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for path in (*on_path, *sorted(kept.glob(f"{version}.*/bin/python{version}"))):
        if path.is_file():
            yield path


def working_python(version: str) -> Path:
    """One that really is of that version; a version manager's stand-in may be none."""
    for path in pythons(version):
        program = "import sys; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([path, "-c", program], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return path
    pytest.skip(f"no Python {version} here")


@pytest.mark.process
@pytest.mark.parametrize("version", ["this one", "3.10", "3.11", "3.12", "3.13", "3.14"])
def test_documented_python_program_agrees(version: str, tmp_path: Path) -> None:
    python = Path(sys.executable) if version == "this one" else working_python(version)
    path = tmp_path / "keys.py"
    path.write_text(program("python") + PYTHON_CHECK, encoding="utf-8")
    done = subprocess.run([python, path, GOLDEN], capture_output=True, text=True, check=False)
    assert done.stdout == "agrees\n", done.stderr


PACKAGE_CHECK = """
import json, sys
import pyarrow as pa
from embershard.feature_map import Categorical, FeatureMap
columns = {}
for line in open(sys.argv[1], encoding="utf-8"):
    kind, types, space, shown, expected = json.loads(line)
    if kind != "cross":
        values, keys = columns.setdefault((kind, space), ([], []))
        values.append(int(shown[0]) if types == "i" else shown[0])
        keys.append(int(expected, 16))
for (kind, space), (values, keys) in columns.items():
    features = FeatureMap([Categorical("v", id=kind, key_space=space)])
    type_ = {"int64": pa.int64(), "uint64": pa.uint64(), "text": pa.string()}[kind]
    assert features.encode(pa.table({"v": pa.array(values, type_)})).keys.tolist() == keys, (kind, space)
    for value, key in list(zip(values, keys))[::50]:
        assert features.encode_one({"v": value}).keys.tolist() == [key], value
print("%d.%d agrees" % sys.version_info[:2])
"""


@pytest.mark.process
@pytest.mark.parametrize("python", [sys.executable, *os.environ.get("EMBERSHARD_OTHER_PYTHONS", "").split()])
def test_package_built_for_this_and_other_pythons_agrees(python: str, tmp_path: Path) -> None:
    """EMBERSHARD_OTHER_PYTHONS: interpreters, parted by blanks, that have the package; the test names no other way to
    one, since each needs a build of its own."""
    done = subprocess.run([python, "-c", PACKAGE_CHECK, GOLDEN], capture_output=True, text=True, check=False)
    assert done.stdout.endswith(" agrees\n"), done.stderr


@pytest.mark.process
def test_documented_javascript_program_agrees(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node here")
    path = tmp_path / "keys.js"
    path.write_text(program("javascript") + JAVASCRIPT_CHECK, encoding="utf-8")
    done = subprocess.run([node, str(path), str(GOLDEN)], capture_output=True, text=True, check=False)
    assert done.stdout == "agrees\n", done.stderr
