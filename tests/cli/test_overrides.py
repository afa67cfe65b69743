"""`key=value` words over a configuration mapping."""

from __future__ import annotations

import pytest

from embershard.cli.overrides import apply_overrides
from embershard.feature_map.errors import ConfigError


def test_values_are_yaml_and_the_given_mapping_stays_as_it_is() -> None:
    data: dict[str, object] = {"train": {"epochs": 1}, "paths": ["a", "b"]}
    words = ["train.epochs=3", "train.lr=1e-3", "model.kind=lr", "paths.1=c", "on=true", "path=a=b", "list=[1, x]"]
    assert apply_overrides(data, words) == {
        "train": {"epochs": 3, "lr": 1e-3},
        "paths": ["a", "c"],
        "model": {"kind": "lr"},
        "on": True,
        "path": "a=b",
        "list": [1, "x"],
    }
    assert data == {"train": {"epochs": 1}, "paths": ["a", "b"]}


def test_later_words_win_and_empty_value_is_empty_text() -> None:
    assert apply_overrides({}, ["a.b=1", "a.b=2", "c="]) == {"a": {"b": 2}, "c": ""}


@pytest.mark.parametrize("word", ["train.epochs", "=3", ".a=1", "a..b=1"])
def test_word_without_path_or_value_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match=r"expected an override as path\.to\.key=value, got "):
        apply_overrides({}, [word])


def test_path_through_a_scalar_is_refused_with_its_place() -> None:
    with pytest.raises(ConfigError, match=r"'train\.epochs\.x=1': expected a mapping at \$\.train\.epochs, got 1"):
        apply_overrides({"train": {"epochs": 1}}, ["train.epochs.x=1"])


def test_list_index_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"expected an index below 2 at \$\.paths, got '2'"):
        apply_overrides({"paths": ["a", "b"]}, ["paths.2=c"])


def test_value_that_is_no_yaml_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"override 'a=\[1':1: not valid YAML"):
        apply_overrides({}, ["a=[1"])
