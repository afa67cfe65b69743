"""Which checkpoints stay: policy objects, and the pruning that carries them out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from pyarrow import fs as pafs

from .catalog import CatalogEntry, list_checkpoints
from .manifest import MANIFEST_NAME
from .storage import Directory


class RetentionPolicy(Protocol):
    """Names the checkpoints it wants kept."""

    def keep(self, checkpoints: Sequence[CatalogEntry]) -> Iterable[str]:
        """Names to keep, out of complete checkpoints given oldest first."""


@dataclass(frozen=True)
class KeepLast:
    """The newest `count` checkpoints stay."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"expected count >= 1, got {self.count}")

    def keep(self, checkpoints: Sequence[CatalogEntry]) -> Iterable[str]:
        """Names of the newest `count`."""
        return [entry.name for entry in checkpoints[-self.count :]]


@dataclass(frozen=True)
class KeepEvery:
    """Checkpoints whose step is a multiple of `steps` stay for ever."""

    steps: int

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"expected steps >= 1, got {self.steps}")

    def keep(self, checkpoints: Sequence[CatalogEntry]) -> Iterable[str]:
        """Names of those whose step is a multiple of `steps`."""
        return [entry.name for entry in checkpoints if entry.manifest.step % self.steps == 0]


@dataclass(frozen=True)
class KeepBest:
    """The `count` checkpoints with the best number under `scalars[metric]` stay; those without one do not count."""

    metric: str
    order: Literal["highest", "lowest"] = "highest"
    count: int = 1

    def keep(self, checkpoints: Sequence[CatalogEntry]) -> Iterable[str]:
        """Names of the best; of equal ones the older."""
        scored = [
            (float(value), entry.name)
            for entry in checkpoints
            if isinstance(entry.manifest.scalars, dict)
            and isinstance(value := entry.manifest.scalars.get(self.metric), (int, float))
        ]
        scored.sort(key=lambda pair: pair[0], reverse=self.order == "highest")
        return [name for _, name in scored[: self.count]]


def prune(
    root: str | Path, policies: Sequence[RetentionPolicy], *, filesystem: pafs.FileSystem | None = None
) -> tuple[str, ...]:
    """Names of the checkpoints deleted under `root`: those that no policy wants.

    The newest complete checkpoint and the bases of kept deltas always stay; with no complete one nothing is deleted.
    A manifest goes first, so that a half-deleted checkpoint is none.
    """
    directory = Directory.of(root, filesystem)
    complete, _ = list_checkpoints(directory)
    if not complete:
        return ()
    by_name = {entry.name: entry for entry in complete}
    kept = {complete[-1].name}
    for policy in policies:
        kept.update(policy.keep(complete))
    for name in list(kept):
        base = by_name[name].manifest.base
        while base is not None and base not in kept:
            kept.add(base)
            base = by_name[base].manifest.base if base in by_name else None
    deleted = [entry.name for entry in complete if entry.name not in kept]
    for name in deleted:
        directory.child(name).delete_file(MANIFEST_NAME)
        directory.child(name).delete()
    return tuple(deleted)
