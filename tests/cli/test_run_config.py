"""The run file: what it takes, what it refuses, how it comes back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from embershard.cli.feature_map_source import load_feature_map
from embershard.cli.run_config import RunConfig, load_run_config
from embershard.feature_map import FeatureMap
from embershard.feature_map.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))

MINIMAL = """
data: {path: clicks.parquet}
features: {label: click, features: [{name: user, kind: categorical}]}
"""


def loaded(tmp_path: Path, text: str, *words: str) -> RunConfig:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return load_run_config(path, words)


def problem(tmp_path: Path, *words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, MINIMAL, *words)
    return str(caught.value).replace(str(tmp_path / "run.yaml"), "run.yaml")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_valid_and_under_forty_lines(path: Path) -> None:
    assert load_run_config(path).data.evaluate is not None
    assert len(path.read_text().splitlines()) < 40


def test_there_is_an_example_for_each_data_set_with_a_reference() -> None:
    names = {"adult", "avazu", "criteo", "frappe", "movielens", "movielens_small", "sparrow"}
    assert names <= {path.stem for path in EXAMPLES}


def test_a_configuration_comes_back_equal_from_its_plain_form(tmp_path: Path) -> None:
    words = ["model.kind=fm", "store.kind=cluster", "store.shards=3", "data.evaluate.share=0.1", "train.early_stop={}"]
    config = loaded(tmp_path, MINIMAL, *words)
    assert RunConfig.from_dict(config.to_dict(), "again") == config
    assert RunConfig.from_dict(config.to_dict(), "again").to_dict() == config.to_dict()


def test_features_may_be_a_file_beside_the_run_file(tmp_path: Path) -> None:
    (tmp_path / "features.yaml").write_text("label: click\nfeatures: [{name: user, kind: categorical}]\n")
    config = loaded(tmp_path, "data: {path: a.parquet}\nfeatures: features.yaml\n")
    assert config.features == loaded(tmp_path, MINIMAL).features


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("modle.kind=fm", "run.yaml: $.modle: unknown key; did you mean 'model'?"),
        ("model.kind=fmm", "run.yaml: $.model.kind: unknown kind 'fmm'; did you mean 'fm'?"),
        (
            "store.shards=2",
            "run.yaml: $.store.shards: unknown key; expected one of ['guard', 'kind', 'tab",
        ),
        ("store={kind: cluster, shrds: 2}", "run.yaml: $.store.shrds: unknown key; did you mean 'shards'?"),
        ("train.early_stop={}", "run.yaml: $.train.early_stop: expected rows to evaluate ($.data.evaluate), got none"),
        ("data.evaluate.shar=0.5", "run.yaml: $.data.evaluate.shar: unknown key; did you mean 'share'?"),
        ("data.kind=frape", "run.yaml: $.data.kind: unknown kind 'frape'; did you mean 'frappe'?"),
        ("features.features.0.id=int32", "run.yaml: $.features.features[0].id: expected 'int64', 'uint64' or 'text'"),
        (
            "optimizer.rows.kind=adagrd",
            "run.yaml: $.optimizer.rows.kind: unknown kind 'adagrd'; did you mean",
        ),
        ("output.keep=0", "run.yaml: $.output.keep: expected greater than or equal to 1, got 0"),
        ("model.hidden=64", "run.yaml: $.model.hidden: expected a list, got 64"),
        ("output.name=../x", "run.yaml: $.output.name: expected"),
    ],
)
def test_what_is_wrong_is_named_with_its_path(word: str, message: str, tmp_path: Path) -> None:
    assert problem(tmp_path, word).startswith(message)


def test_ready_made_data_takes_no_form_of_its_own(tmp_path: Path) -> None:
    assert "expected no format beside kind frappe" in problem(tmp_path, "data.kind=frappe", "data.format=csv")


@pytest.mark.parametrize("own_file", [True, False])
def test_lookups_find_their_files_beside_the_file_that_names_them(
    own_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "maps").mkdir()
    (tmp_path / "elsewhere").mkdir()
    shop = "{name: shop, kind: lookup, of: [user], file: shops.csv, keys: [user], result: shop}"
    features = f"{{label: click, features: [{{name: user, kind: categorical}}, {shop}]}}"
    folder = tmp_path / "maps" if own_file else tmp_path
    (folder / "shops.csv").write_text("user,shop\n1,10\n")
    (tmp_path / "maps" / "features.yaml").write_text(features)
    (tmp_path / "run.yaml").write_text(
        f"data: {{path: a.parquet}}\nfeatures: {'maps/features.yaml' if own_file else features}\nmodel: {{kind: lr}}\n"
    )
    monkeypatch.chdir(tmp_path)
    config = load_run_config(Path("run.yaml"))
    monkeypatch.chdir("elsewhere")
    expected = FeatureMap.of(config.features).key("shop", 1)
    assert load_feature_map(tmp_path / "run.yaml").key("shop", 1) == expected
    assert RunConfig.from_dict(config.to_dict(), "again") == config


def test_a_folder_in_place_of_a_run_file_is_refused_naming_the_file_in_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected a run file, got the folder .*[^;]$"):
        load_run_config(tmp_path)
    (tmp_path / "config.yaml").write_text("{}")
    with pytest.raises(ConfigError, match=re.escape(f"; its configuration is {tmp_path / 'config.yaml'}")):
        load_run_config(tmp_path)
