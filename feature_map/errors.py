"""Errors of the feature map: one class per decision a caller can take."""

from __future__ import annotations


class ConfigError(ValueError):
    """A configuration is not as it must be; one line a problem: file, `$.path`, expected, got."""
