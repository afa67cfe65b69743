"""What docs/feature_map.md shows, runs."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from embershard.feature_map import FeatureMap, learn_statistics

PAGE = Path(__file__).parents[2] / "docs" / "feature_map.md"


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found.group(1)


def test_python_example_runs() -> None:
    exec(compile(block("python"), str(PAGE), "exec"), {})


def test_yaml_example_encodes(tmp_path: Path) -> None:
    pyarrow.csv.write_csv(pa.table({"shop": [7], "city": ["Oslo"]}), tmp_path / "shops.csv")
    text = block("yaml")
    (tmp_path / "features.yaml").write_text(text, encoding="utf-8")
    records = pa.table(
        {
            "click": [1, 0], "weight": [1.0, 2.0], "user": [5, -1], "at": [0, 86400], "friend": [5, None],
            "genres": ["a|b", "\\N"], "words": ["x:2 y", ""], "seen": [[1, 2], []], "age": [20, 60],
            "income": [10.0, 20.0], "shop": [7, 8], "price": [3.0, None],
        }
    )  # fmt: skip
    features = learn_statistics(FeatureMap.load(tmp_path / "features.yaml"), [records])
    batch = features.encode(records)
    assert batch.features == (
        "user", "friend", "genres", "words", "seen", "user_genre", "age", "income", "hour", "city", "bias"
    )  # fmt: skip
    assert batch.keys_of("friend")[0] == batch.keys_of("user")[0]
    assert batch.keys_of("user")[1] == features.key("user", None)
    assert [features.value("hour", int(k)) for k in batch.keys_of("hour")] == [1, 1]
    assert batch.keys_of("city")[0] == features.key("city", 7)
    assert batch.dense.shape == (2, 1)
