"""Edits of a feature map file in place: its comments, order and layout stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from ..datasets.whole_file import whole_file
from .config_file import read_yaml
from .errors import ConfigError
from .feature_map import FeatureMap
from .feature_map_change import add_feature, remove_feature


def add_to_file(path: str | Path, feature: Mapping[str, Any], *, section: Sequence[str] = ()) -> FeatureMap:
    """Append a feature to the map in a YAML file and raise its version; gives the new map.

    feature: its fields, as the file has them.   section: keys that lead to the map inside the file.
    Raises: ConfigError, FeatureMapError; the file is then untouched."""
    fields = dict(feature)

    def edit(data: dict[str, Any], old: FeatureMap) -> FeatureMap:
        parsed = FeatureMap.from_dict({"features": [fields]} if "of" not in fields else {**data, "features": [
            *data["features"], fields]}, str(path)).features[-1]  # fmt: skip
        new = add_feature(old, parsed)
        if "required" in type(parsed).model_fields:
            fields.setdefault("required", False)
        data["features"].append(fields)
        return new

    return _edit(Path(path), section, edit)


def remove_from_file(path: str | Path, name: str, *, section: Sequence[str] = ()) -> FeatureMap:
    """Take a feature out of the map in a YAML file and raise its version; gives the new map.

    Raises: ConfigError, FeatureMapError; the file is then untouched."""

    def edit(data: dict[str, Any], old: FeatureMap) -> FeatureMap:
        new = remove_feature(old, name)
        del data["features"][[feature["name"] for feature in data["features"]].index(name)]
        return new

    return _edit(Path(path), section, edit)


def _edit(path: Path, section: Sequence[str], edit: Callable[[dict[str, Any], FeatureMap], FeatureMap]) -> FeatureMap:
    old = FeatureMap.from_dict(_section(read_yaml(path), section, path), str(path))
    round_trip = YAML(typ="rt")
    round_trip.preserve_quotes = True
    round_trip.width = 120
    round_trip.indent(mapping=2, sequence=4, offset=2)
    document = round_trip.load(path.read_text(encoding="utf-8-sig"))
    data = _section(document, section, path)
    new = edit(data, old)
    data["version"] = new.version
    text = StringIO()
    round_trip.dump(document, text)
    with whole_file(path) as partial:
        partial.write_text(text.getvalue(), encoding="utf-8")
        written = FeatureMap.from_dict(_section(read_yaml(partial), section, path), str(path))
        if written != new:
            raise ConfigError(f"{path}: expected an edit that reads back as {new!r}, got {written!r}")
    return new


def _section(data: Any, section: Sequence[str], path: Path) -> Any:
    for depth, key in enumerate(section):
        if not isinstance(data, dict) or key not in data:
            raise ConfigError(f"{path}: expected a mapping at $.{'.'.join(section[: depth + 1])}, got nothing")
        data = data[key]
    return data
