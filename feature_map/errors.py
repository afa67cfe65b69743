"""Errors of the feature map: one class per decision a caller can take."""

from __future__ import annotations


class ConfigError(ValueError):
    """A configuration is not as it must be; one line a problem: file, `$.path`, expected, got."""


class FeatureMapError(ValueError):
    """A feature map is contradictory, unfit for what is asked of it, or asked for a feature it does not have."""


class FeatureMapChangeError(FeatureMapError):
    """A feature map does not fit rows that were trained under another: keys or widths differ; all of them are named."""


class ColumnTypeError(TypeError):
    """A click-log column has a type that its feature does not take; the message names the column."""


class MissingColumnError(KeyError):
    """The records lack a column that the feature map requires; the message names it and the columns there are."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ValueEncodeError(ValueError):
    """A value cannot be read as its feature declares it; the message names column, row and value."""


class LabelError(ValueEncodeError):
    """A label is null, not finite or outside [0, 1]; the message names column, row and value."""
