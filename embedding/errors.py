"""Errors of the row layer: one class per decision a caller can take."""

from __future__ import annotations


class DuplicateKeyError(ValueError):
    """A batched verb was given the same key twice for one table; nothing was read or changed."""


class UnknownTableError(KeyError):
    """The table is not there; the message names the tables that are."""


class TableConflictError(ValueError):
    """A table of that name exists with another configuration; the message names the field, expected and got."""


class CorruptCheckpointError(ValueError):
    """A checkpoint or export is incomplete or damaged; the message names the file and what is wrong."""


class CheckpointMismatchError(ValueError):
    """The checkpoint is sound but does not fit what it is restored into; the message names the table and field."""


class CheckpointWriteError(OSError):
    """A checkpoint or export could not be written (disk full, no permission); nothing of it is left."""
