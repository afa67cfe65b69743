"""KeptBack: gradient rows that would have harmed a table, counted over a training run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..embedding.store import PushReport


@dataclass(frozen=True, slots=True)
class KeptBack:
    """Counts by table.

    held_out:   rows that the gradient guard kept back in the worker.
    non_finite: rows whose gradient was not finite: held out by the guard, or refused by the table where there is none.
    clipped:    pushes in which the guard scaled the table's gradients down.

    Thread safety: one writer; another thread's copy may lack its latest push.
    """

    held_out: Counter[str] = field(default_factory=Counter)
    non_finite: Counter[str] = field(default_factory=Counter)
    clipped: Counter[str] = field(default_factory=Counter)

    def add(self, report: PushReport) -> None:
        """Count one more push; one that was applied before, or comes again since it is stale, is not counted here."""
        if report.stale or (report.applied == 0 and report.duplicate + report.fenced):
            return
        self.held_out.update(report.held_out)
        self.non_finite.update(report.held_out_non_finite)
        self.non_finite.update({table: update.non_finite for table, update in report.tables.items()})
        self.clipped.update(report.clipped)

    def plus(self, other: KeptBack) -> KeptBack:
        """Both together."""
        return KeptBack(
            self.held_out + other.held_out, self.non_finite + other.non_finite, self.clipped + other.clipped
        )

    def since(self, before: KeptBack) -> KeptBack:
        """What was added to `before`."""
        return KeptBack(
            self.held_out - before.held_out, self.non_finite - before.non_finite, self.clipped - before.clipped
        )

    def as_json(self) -> dict[str, dict[str, int]]:
        """Count by table, by field; tables without one are left out."""
        return {name: dict(+getattr(self, name)) for name in self.__slots__}

    @classmethod
    def of_json(cls, entry: Mapping[str, Mapping[str, int]]) -> KeptBack:
        """The counts that `as_json` gave."""
        return cls(**{name: Counter(counts) for name, counts in entry.items()})
