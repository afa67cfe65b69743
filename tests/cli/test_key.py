"""Keys of values and values behind keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from embershard.cli.main import run
from embershard.embedding.checkpoint import TrainingState, write_checkpoint
from embershard.embedding.reference import ReferenceTableGroup
from embershard.feature_map import Categorical, Cross, FeatureMap, Numeric
from embershard.ps_server import LocalStore


@pytest.fixture
def features() -> FeatureMap:
    return FeatureMap(
        [
            Categorical("user", id="int64"),
            Categorical("big", id="uint64"),
            Categorical("city", id="text"),
            Cross("user_x_city", of=("user", "city")),
            Numeric("age"),
        ],
        label="click",
    )


@pytest.fixture
def path(features: FeatureMap, tmp_path: Path) -> Path:
    path = tmp_path / "features.yaml"
    features.save(path)
    return path


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert run(["key", *arguments, "--json"]) == 0, capsys.readouterr().err
    facts: dict[str, object] = json.loads(capsys.readouterr().out)
    return facts


@pytest.mark.parametrize(
    ("feature", "value"), [("user", "-1"), ("user", "9223372036854775807"), ("big", "18446744073709551615")]
)
def test_integer_key_goes_there_and_back(
    feature: str, value: str, features: FeatureMap, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = told(capsys, feature, value, str(path))
    assert facts["key"] == features.key(feature, int(value))
    for form in (str(facts["key"]), str(facts["hex"]), str(facts["int64"])):
        assert told(capsys, feature, form, str(path), "--inverse")["value"] == int(value)


def test_text_that_looks_like_a_list_is_text_and_a_cross_takes_a_list(
    features: FeatureMap, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(capsys, "city", "[1, x]", str(path))["key"] == features.key("city", "[1, x]")
    assert told(capsys, "user_x_city", "[1, x]", str(path))["key"] == features.key("user_x_city", (1, "x"))


def test_run_configuration_and_checkpoint_give_the_same_keys(
    features: FeatureMap, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = path.read_text()
    inline, by_name = tmp_path / "inline.yaml", tmp_path / "by_name.yaml"
    inline.write_text("features:\n" + "".join(f"  {line}\n" for line in text.splitlines()))
    by_name.write_text("features: features.yaml\n")
    store = LocalStore(tables=ReferenceTableGroup(tablet_bits=1))
    checkpoint = write_checkpoint(tmp_path / "checkpoints", store, TrainingState(1, feature_map=features.to_dict()))
    wanted = features.key("user", 5)
    for config in (path, inline, by_name, Path(checkpoint)):
        assert told(capsys, "user", "5", str(config))["key"] == wanted


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["usr", "5"], "unknown feature 'usr'; did you mean 'user'?"),
        (["user", "1e5"], "1e5"),
        (["age", "5"], "numeric feature 'age'"),
        (["city", "7", "--inverse"], "no arithmetic inverse"),
        (["user", "x7", "--inverse"], "expected a key in decimal or 0x"),
    ],
)
def test_what_has_no_key_or_value_is_one_clear_error(
    arguments: list[str], words: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["key", *arguments, str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err


def test_inspect_tells_a_feature_map(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [entry["feature"] for entry in facts["features"]] == ["user", "big", "city", "user_x_city", "age"]
    assert facts["tables"][2] == {"table": "city", "key_space": "city", "id": "text", "dim": None, "features": ["city"]}
    assert run(["inspect", str(path)]) == 0
    assert "user_x_city" in capsys.readouterr().out
