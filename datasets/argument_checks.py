"""Checks of what callers give, for messages that say what was expected."""

from __future__ import annotations

import operator
from typing import SupportsIndex


def whole_number(value: SupportsIndex, name: str) -> int:
    """The value as an int. Raises: TypeError for one that is not whole, as text or a float."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"expected a whole number as {name}, got {value!r}") from None
