"""Checkpoints: rows, dense arrays and training state in one directory that is complete or does not exist."""

from .catalog import CatalogEntry, SkippedCheckpoint, list_checkpoints
from .manifest import FileEntry, Manifest
from .reader import Checkpoint, RestoreReport, latest_checkpoint, open_checkpoint
from .retention import KeepBest, KeepEvery, KeepLast, RetentionPolicy, prune
from .writer import TrainingState, write_checkpoint

__all__ = [
    "CatalogEntry",
    "Checkpoint",
    "FileEntry",
    "KeepBest",
    "KeepEvery",
    "KeepLast",
    "Manifest",
    "RestoreReport",
    "RetentionPolicy",
    "SkippedCheckpoint",
    "TrainingState",
    "latest_checkpoint",
    "list_checkpoints",
    "open_checkpoint",
    "prune",
    "write_checkpoint",
]
