"""Work units: slices of the click log with ids that are never reused."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Rows [start, stop) of one file, in file order; `stop` None reads to the end of the file."""

    path: str
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """A slice of the click log in one epoch of one run.

    id:     uint64, a mix of (run, epoch, index); never reused, so a push token made from it names one batch for ever.
    index:  position of the slice in the click log, the same in every epoch.
    slices: what it reads, in order.
    """

    id: int
    epoch: int
    index: int
    slices: tuple[FileSlice, ...]


@dataclass(frozen=True, slots=True)
class BatchId:
    """Batch `index` of work unit `unit`, or of one reader's share where several read it: always the same examples."""

    unit: int
    index: int


def describe_unit(unit: WorkUnit) -> str:
    """The rows a work unit reads, in words for an error message; rows are counted from 1."""
    parts = [
        f"rows {part.start + 1} to {'the last' if part.stop is None else part.stop} of file {part.path!r}"
        for part in unit.slices[:3]
    ]
    more = len(unit.slices) - len(parts)
    return ", ".join(parts) + (f" and {more} more" if more else "")
