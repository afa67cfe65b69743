"""Where two configurations differ, field by field."""

from __future__ import annotations

from collections.abc import Iterator


def differences(old: object, new: object, path: str = "") -> Iterator[tuple[str, object, object]]:
    """Path, old and new value of each difference between plain values, as `model_dump` gives them.

    A field that one side lacks is None there; lists of different lengths differ whole."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *(key for key in new if key not in old)]:
            yield from differences(old.get(name), new.get(name), f"{path}.{name}" if path else str(name))
    elif isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)) and len(old) == len(new):
        for index, (left, right) in enumerate(zip(old, new, strict=True)):
            yield from differences(left, right, f"{path}[{index}]")
    elif old != new:
        yield path, old, new
