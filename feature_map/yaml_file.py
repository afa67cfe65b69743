"""YAML files written: plain data out, replaced at once or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from ..datasets.whole_file import whole_file


def write_yaml(path: str | Path, data: dict[str, Any]) -> None:
    """Write `data` as block-style YAML 1.2 in its own order. Raises: OSError; an old file is then untouched."""
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.allow_unicode = True
    writer.width = 120
    with whole_file(path) as partial, partial.open("w", encoding="utf-8") as stream:
        writer.dump(data, stream)
