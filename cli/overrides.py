"""`key=value` words of the command line, laid over the mapping of a configuration file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from ..feature_map.config_file import parse_yaml
from ..feature_map.errors import ConfigError


def apply_overrides(data: dict[str, object], overrides: Iterable[str]) -> dict[str, object]:
    """A copy of `data` with each `dotted.path=value` set; values are YAML, list items are named by index.

    A mapping on the way that is not there is made; whether its keys are known is for validation to say.
    Raises: ConfigError for a word without `=`, an empty path part, a value that is no YAML, a path through a scalar."""
    copy = _copy(data)
    for override in overrides:
        path, equals, text = override.partition("=")
        parts = path.split(".")
        if not equals or not all(parts):
            raise ConfigError(f"expected an override as path.to.key=value, got {override!r}")
        _set(copy, parts, parse_yaml(text, f"override {override!r}") if text else "", override)
    return copy


def _set(root: dict[str, object], parts: list[str], value: object, override: str) -> None:
    container: object = root
    where = "$"
    for part in parts[:-1]:
        container = _step(container, part, where, override)
        where = f"{where}.{part}"
    last = parts[-1]
    if isinstance(container, dict):
        container[last] = value
    else:
        items = cast("list[object]", container)
        items[_index(items, last, where, override)] = value


def _step(container: object, part: str, where: str, override: str) -> object:
    if isinstance(container, list):
        child = container[_index(container, part, where, override)]
    else:
        mapping = cast("dict[str, object]", container)
        if mapping.get(part) is None:
            mapping[part] = {}
        child = mapping[part]
    if not isinstance(child, dict | list):
        raise ConfigError(f"override {override!r}: expected a mapping at {where}.{part}, got {child!r}")
    return child


def _index(items: list[object], part: str, where: str, override: str) -> int:
    if not part.isdigit() or int(part) >= len(items):
        raise ConfigError(f"override {override!r}: expected an index below {len(items)} at {where}, got {part!r}")
    return int(part)


def _copy(value: dict[str, object]) -> dict[str, object]:
    return {key: _copy_value(child) for key, child in value.items()}


def _copy_value(value: object) -> object:
    if isinstance(value, dict):
        return _copy(value)
    if isinstance(value, list):
        return [_copy_value(item) for item in value]
    return value
