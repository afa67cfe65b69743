"""Configuration files: YAML in, checked pydantic models out, errors that name the path."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from .errors import ConfigError

M = TypeVar("M", bound=BaseModel)

MAX_PROBLEMS = 10
_SHOULD = re.compile(r"^\w+ should (have )?")


def parse_yaml(text: str, source: str) -> object:
    """The value that YAML 1.2 `text` stands for, in plain dicts, lists, str, int, float, bool and None.

    Raises: ConfigError naming `source` and line for a syntax error and for a key that stands twice in one mapping.
    """
    loader = YAML(typ="safe", pure=True)
    loader.allow_duplicate_keys = False
    try:
        value = cast(object, loader.load(text))
        if _is_in_itself(value, set(), set()):
            raise ConfigError(f"{source}: expected no mapping or list that holds itself (an alias to its own anchor)")
        return value
    except DuplicateKeyError as error:
        raise ConfigError(f"{_where(source, error)}: expected each key once, got {_twice(error)}") from None
    except MarkedYAMLError as error:
        raise ConfigError(f"{_where(source, error)}: not valid YAML: {_first_line(error.problem)}") from None
    except (YAMLError, ValueError) as error:
        raise ConfigError(f"{source}: not valid YAML: {_first_line(str(error))}") from None


def read_yaml(path: str | Path) -> dict[str, object]:
    """The mapping a YAML file holds.

    Raises: FileNotFoundError; ConfigError where the file is no UTF-8 YAML mapping with distinct text keys."""
    source = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: expected UTF-8 text, got byte {error.object[error.start]:#04x}") from None
    data = parse_yaml(text, source)
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: expected a mapping at $, got {_kind(data)}")
    return cast("dict[str, object]", data)


def validate(model: type[M], data: object, source: str) -> M:
    """`model` made from `data`, parsed from `source`.

    Raises: ConfigError with one line a problem: `source: $.train.epochs: expected …, got …`, with the nearest known
    name beside an unknown one."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        details = _without_echoes(error.errors(include_url=False))
        problems = list(dict.fromkeys(_problem(model, data, detail) for detail in details))
    lines = [f"{source}: {problem}" for problem in problems[:MAX_PROBLEMS]]
    if len(problems) > MAX_PROBLEMS:
        lines.append(f"{source}: and {len(problems) - MAX_PROBLEMS} more")
    raise ConfigError("\n".join(lines))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean 'epochs'?` for a near miss, else `expected one of [...]`."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.65)
    return f"did you mean {near[0]!r}?" if near else f"expected one of {names}"


def _without_echoes(details: list[ErrorDetails]) -> list[ErrorDetails]:
    """The problems without lists called too short only because pydantic does not count their refused items."""
    places = [detail["loc"] for detail in details]
    return [
        detail
        for detail in details
        if detail["type"] != "too_short"
        or not any(len(place) > len(detail["loc"]) and place[: len(detail["loc"])] == detail["loc"] for place in places)
    ]


def _twice(error: DuplicateKeyError) -> str:
    """`key "data" twice`, without the values, which may be long."""
    found = re.match(r'found duplicate key ("[^"]*")', error.problem or "")
    return f"key {found[1]} twice" if found else _first_line(error.problem)


def _is_in_itself(value: object, holders: set[int], seen: set[int]) -> bool:
    """holders: of the value.   seen: what was looked at; an alias that stands often is walked through once."""
    if not isinstance(value, dict | list):
        return False
    if id(value) in seen:
        return id(value) in holders
    seen.add(id(value))
    children = value.values() if isinstance(value, dict) else value
    return any(_is_in_itself(child, {*holders, id(value)}, seen) for child in children)


def _where(source: str, error: MarkedYAMLError) -> str:
    mark = error.problem_mark
    return source if mark is None else f"{source}:{mark.line + 1}"


def _first_line(text: str | None) -> str:
    return (text or "got something else").strip().splitlines()[0]


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."


def _problem(model: type[BaseModel], data: object, detail: ErrorDetails) -> str:
    path, models = _locate(model, data, detail["loc"])
    kind, got = detail["type"], _kind(detail["input"])
    if kind == "extra_forbidden":
        known = {name for candidate in models for name in _known_names(candidate)}
        return f"{path}: unknown key; {did_you_mean(str(detail['loc'][-1]), known)}"
    if kind == "missing":
        return f"{path}: expected a value, got nothing"
    if kind == "union_tag_invalid":
        context = detail["ctx"]
        tag = str(context["tag"])
        expected = [part.strip(" '") for part in str(context["expected_tags"]).split(",")]
        return f"{path}.kind: unknown kind {tag!r}; {did_you_mean(tag, expected)}"
    if kind == "union_tag_not_found":
        return f"{path}: expected a mapping with a `kind`, got {'none in it' if got == 'a mapping' else got}"
    message = detail["msg"]
    if kind == "value_error":
        return f"{path}: {message.removeprefix('Value error, ')}"
    if kind in ("model_type", "model_attributes_type"):
        return f"{path}: expected a mapping, got {got}"
    if kind in ("too_short", "too_long"):
        context = detail["ctx"]
        side, count = ("least", "min_length") if kind == "too_short" else ("most", "max_length")
        return f"{path}: expected at {side} {context[count]} items, got {context['actual_length']}"
    if kind == "string_pattern_mismatch":
        return f"{path}: expected text that matches {detail['ctx']['pattern']}, got {got}"
    if kind == "invalid_key":
        return f"{path}: expected text as a key, got {detail['loc'][-1]!r}"
    if kind in ("tuple_type", "list_type"):
        return f"{path}: expected a list, got {got}"
    expected_text = message.removeprefix("Input should be ").removeprefix("a valid ")
    return f"{path}: expected {_SHOULD.sub('', expected_text)}, got {got}"


def _locate(model: type[BaseModel], data: object, loc: Sequence[int | str]) -> tuple[str, list[type[BaseModel]]]:
    """Path as the file has it, and the models that could stand at its last but one part.

    Pydantic's location also holds union tags; whatever is no key of the data (but the last part) is one of them."""
    path, value = "$", data
    models: list[type[BaseModel]] = [model]
    pending: list[object] = []
    for position, part in enumerate(loc):
        is_last = position == len(loc) - 1
        is_field = isinstance(part, str) and any(part in _known_names(candidate) for candidate in models)
        is_chosen = isinstance(value, Mapping) and part not in value and value.get("kind") == part
        is_tag = any(_has_tag(candidate, part) for candidate in models) and (is_chosen or not is_field)
        if isinstance(value, Mapping) and (part in value or (is_last and isinstance(part, str) and not is_tag)):
            pending = [_annotation(candidate, str(part)) for candidate in models]
            if not is_last:
                models = [found for annotation in pending for found in _models_in(annotation)] or models
            path, value = f"{path}.{part}", value.get(part)
        elif isinstance(value, list | tuple) and isinstance(part, int) and part < len(value):
            path, value = f"{path}[{part}]", value[part]
        else:
            tagged = [candidate for candidate in models if _has_tag(candidate, part)]
            models = tagged or models
    return path, models


def _known_names(model: type[BaseModel]) -> Iterator[str]:
    for name, info in model.model_fields.items():
        yield info.alias or name


def _annotation(model: type[BaseModel], name: str) -> object:
    for field_name, info in model.model_fields.items():
        if name in (field_name, info.alias):
            return info.annotation
    return None


def _models_in(annotation: object) -> list[type[BaseModel]]:
    """Pydantic models an annotation mentions, through Annotated, unions, tuples, lists and mappings."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    origin = get_origin(annotation)
    if origin is None:
        return []
    arguments: Sequence[Any] = get_args(annotation)
    if origin is Annotated:
        arguments = arguments[:1]
    elif origin not in (Union, types.UnionType, tuple, list, dict) and not isinstance(origin, type):
        return []
    return [found for argument in arguments for found in _models_in(argument)]


def _has_tag(model: type[BaseModel], tag: int | str) -> bool:
    info = model.model_fields.get("kind")
    return info is not None and info.default == tag
