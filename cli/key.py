"""`embershard key`: the key of a value, and the value behind a key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import print_json, say
from .errors import UsageError

if TYPE_CHECKING:
    from ..feature_map import FeatureMap


def key(
    feature: Annotated[str, typer.Argument(help="Name of a feature.", metavar="FEATURE")],
    value: Annotated[str, typer.Argument(help="A value; for several columns a list: '[1, x]'.", metavar="VALUE")],
    config: Annotated[Path, typer.Argument(help="Feature map, run configuration or checkpoint.", metavar="CONFIG")],
    inverse: Annotated[bool, typer.Option("--inverse", help="VALUE is a key; print the id behind it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Print the 64-bit key of a value of a feature, or with --inverse the integer id behind a key."""
    from .feature_map_source import load_feature_map

    features = load_feature_map(config)
    facts = _value_facts(features, feature, value) if inverse else _key_facts(features, feature, value)
    if as_json:
        print_json(facts)
        return
    for name, fact in facts.items():
        say(f"{name}: {'none (the missing key)' if fact is None else fact}")


def _key_facts(features: FeatureMap, feature: str, text: str) -> dict[str, object]:
    from ..feature_map.config_file import parse_yaml
    from ..feature_map.feature_columns import columns_of

    value: object = text
    if len(columns_of(features.feature(feature), features.config)) != 1:
        parsed = parse_yaml(text, "VALUE")
        value = tuple(parsed) if isinstance(parsed, list) else parsed
    found = features.key(feature, value)
    return {"feature": feature, "value": text, **_forms(found)}


def _value_facts(features: FeatureMap, feature: str, text: str) -> dict[str, object]:
    try:
        found = int(text, 0)
    except ValueError:
        raise UsageError(f"expected a key in decimal or 0x… form, got {text!r}") from None
    if -(1 << 63) <= found < 0:
        found += 1 << 64
    return {"feature": feature, "value": features.value(feature, found), **_forms(found)}


def _forms(found: int) -> dict[str, object]:
    signed = found - (1 << 64) if found >> 63 else found
    return {"key": found, "hex": f"0x{found:016x}", "int64": signed}
