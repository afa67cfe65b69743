"""YAML files and the errors that name where in them something is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator

from embershard.feature_map.config_file import parse_yaml, read_yaml, validate
from embershard.feature_map.errors import ConfigError


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Sgd(Frozen):
    kind: Literal["sgd"] = "sgd"
    lr: float = Field(default=0.1, gt=0)


class Adam(Frozen):
    kind: Literal["adam"] = "adam"
    lr: float = 0.1
    beta1: float = 0.9


class Layer(Frozen):
    name: str
    optimizer: Annotated[Sgd | Adam, Field(discriminator="kind")] = Sgd()


class Range(Frozen):
    kind: Literal["range"] = "range"
    low: int
    high: int

    @model_validator(mode="after")
    def _check(self) -> Range:
        if self.low > self.high:
            raise ValueError(f"expected low <= high, got {self.low}, {self.high}")
        return self


class Holder(Frozen):
    parts: tuple[Annotated[Range | Sgd, Field(discriminator="kind")], ...] = Field(min_length=1)


class Run(Frozen):
    epochs: int = Field(default=1, ge=1)
    layers: tuple[Layer, ...] = ()
    by_name: dict[str, Layer] = {}
    note: str | None = None


def problem(data: object) -> str:
    with pytest.raises(ConfigError) as caught:
        validate(Run, data, "run.yaml")
    return str(caught.value)


def test_valid_data_becomes_the_model() -> None:
    run = validate(Run, {"epochs": 2, "layers": [{"name": "a", "optimizer": {"kind": "adam"}}]}, "run.yaml")
    assert run.epochs == 2
    assert run.layers[0].optimizer == Adam()


def test_unknown_key_is_named_with_the_nearest_known_one() -> None:
    assert problem({"epoch": 2}) == "run.yaml: $.epoch: unknown key; did you mean 'epochs'?"


def test_unknown_key_far_from_all_lists_what_there_is() -> None:
    assert problem({"zzz": 2}) == (
        "run.yaml: $.zzz: unknown key; expected one of ['by_name', 'epochs', 'layers', 'note']"
    )


def test_unknown_key_inside_a_tagged_union_in_a_list_is_located_without_the_tag() -> None:
    data = {"layers": [{"name": "a"}, {"name": "b", "optimizer": {"kind": "adam", "beta": 0.5}}]}
    assert problem(data) == "run.yaml: $.layers[1].optimizer.beta: unknown key; did you mean 'beta1'?"


def test_unknown_key_inside_a_mapping_of_models_is_located() -> None:
    assert problem({"by_name": {"x": {"nam": "a", "name": "b"}}}) == (
        "run.yaml: $.by_name.x.nam: unknown key; did you mean 'name'?"
    )


def test_wrong_type_and_range_say_expected_and_got() -> None:
    text = problem({"epochs": 0, "layers": [{"name": "a", "optimizer": {"kind": "sgd", "lr": "fast"}}], "note": 5})
    lines = text.splitlines()
    assert lines[0] == "run.yaml: $.epochs: expected greater than or equal to 1, got 0"
    assert lines[1].startswith("run.yaml: $.layers[0].optimizer.lr: expected number")
    assert lines[1].endswith("got 'fast'")
    assert lines[2] == "run.yaml: $.note: expected string, got 5"


def test_missing_value_is_named() -> None:
    assert problem({"layers": [{}]}) == "run.yaml: $.layers[0].name: expected a value, got nothing"


def test_unknown_kind_of_a_tagged_union_is_named() -> None:
    data = {"layers": [{"name": "a", "optimizer": {"kind": "adm"}}]}
    assert problem(data) == "run.yaml: $.layers[0].optimizer.kind: unknown kind 'adm'; did you mean 'adam'?"


def test_scalar_in_place_of_a_mapping_is_named() -> None:
    assert problem({"layers": [3]}) == "run.yaml: $.layers[0]: expected a mapping, got 3"


def test_at_most_ten_problems_are_listed() -> None:
    lines = problem({f"key{i:02}": 0 for i in range(14)}).splitlines()
    assert len(lines) == 11
    assert lines[-1] == "run.yaml: and 4 more"


def test_yaml_one_two_no_is_text_and_octal_looking_is_a_number() -> None:
    assert parse_yaml("country: no\nzip: 0o17\nbig: 9223372036854775809", "t") == {
        "country": "no",
        "zip": 15,
        "big": 9223372036854775809,
    }


def test_duplicate_key_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("a: 1\nb: 2\na: 3\n")
    with pytest.raises(ConfigError, match=r"run\.yaml:3: expected each key once, .*a"):
        read_yaml(path)


def test_syntax_error_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("a: 1\nb: }\n")
    with pytest.raises(ConfigError, match=r"run\.yaml:2: not valid YAML"):
        read_yaml(path)


@pytest.mark.parametrize("text", ["", "- 1\n", "5\n"])
def test_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"expected a mapping at \$"):
        read_yaml(path)


def test_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xef\xbb\xbfepochs: 3\n")
    assert read_yaml(path) == {"epochs": 3}


def test_other_encodings_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes("name: café\n".encode("latin-1"))
    with pytest.raises(ConfigError, match="expected UTF-8 text, got byte 0xe9"):
        read_yaml(path)


def test_a_rule_of_a_variant_is_named_by_its_place_not_by_its_tag() -> None:
    for data, message in (
        ({"parts": [{"kind": "range", "low": 2, "high": 1}]}, "$.parts[0]: expected low <= high, got 2, 1"),
        ({"parts": []}, "$.parts: expected at least 1 items, got 0"),
    ):
        with pytest.raises(ConfigError) as caught:
            validate(Holder, data, "run.yaml")
        assert str(caught.value) == f"run.yaml: {message}"


def test_a_key_that_stands_twice_is_named_without_its_values() -> None:
    with pytest.raises(ConfigError, match=r'^run:2: expected each key once, got key "data" twice$'):
        parse_yaml("data: {path: secret}\ndata: {path: other}", "run")


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a {b: [*a]}", "&a [1, [*a]]"])
def test_a_value_that_holds_itself_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="run: expected no mapping or list that holds itself"):
        parse_yaml(text, "run")


def test_an_alias_may_stand_several_times() -> None:
    assert parse_yaml("a: &a [1]\nb: [*a, *a]", "run") == {"a": [1], "b": [[1], [1]]}


def test_aliases_of_aliases_are_looked_at_once_each() -> None:
    """Sixty levels of two are 2^60 values to who follows each alias."""
    lines = ["a0: &a0 [1]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60))]
    value = parse_yaml("\n".join(lines), "run")
    assert isinstance(value, dict)
    assert len(value) == 60
