"""YAML files written: plain data out, replaced at once or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML


def write_yaml(path: str | Path, data: dict[str, Any]) -> None:
    """Write `data` as block-style YAML 1.2 in its own order. Raises: OSError; an old file is then untouched."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.allow_unicode = True
    writer.width = 120
    try:
        with partial.open("w", encoding="utf-8") as stream:
            writer.dump(data, stream)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
