"""The report of a run: what was measured, as JSON for programs and Markdown for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields

from ..datasets.whole_file import whole_file
from .console import format_value, strict_json
from .run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class TableReport:
    """What became of one table.

    rows, bytes: at the end of the run.
    evicted: rows that an eviction policy removed during the whole run.
    held_out, non_finite: gradient rows of the whole run that were not applied; see `models.kept_back.KeptBack`.
    clipped: pushes whose gradients were scaled down.
    """

    table: str
    dim: int
    rows: int
    bytes: int
    evicted: int = 0
    held_out: int = 0
    non_finite: int = 0
    clipped: int = 0


@dataclass(frozen=True, slots=True)
class RunReport:
    """What a training run measured.

    stopped: finished, max_steps or early_stop.
    changes: what a resume changed of features and tables, a line each.
    history: one mapping an evaluation: step, epoch, auc, logloss.   tables: what became of each.
    machine: cpu, cores, python, commit.   versions: of the packages that numbers depend on.
    """

    name: str
    auc: float | None
    logloss: float | None
    examples: int
    examples_per_second: float
    seconds: float
    steps: int
    rows: int
    checkpoint: str | None
    resumed_from: str | None = None
    changes: Sequence[str] = ()
    stopped: str = "finished"
    history: Sequence[Mapping[str, object]] = ()
    tables: Sequence[TableReport] = ()
    machine: Mapping[str, object] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


def write_report(run: RunFolder, report: RunReport) -> None:
    """Write `report.json` and `report.md` into the run's folder."""
    text = json.dumps(strict_json(asdict(report)), indent=2, allow_nan=False)
    for path, content in ((run.report, text + "\n"), (run.report_text, _markdown(report))):
        with whole_file(path) as partial:
            partial.write_text(content, encoding="utf-8")


def _markdown(report: RunReport) -> str:
    lines = [f"# {report.name}", ""]
    outcome = ("auc", "logloss", "examples", "examples_per_second", "seconds", "steps", "rows", "stopped", "checkpoint")
    lines += _table(["measured", "value"], [[name, getattr(report, name)] for name in outcome])
    if report.changes:
        lines += ["", "## Changes at this resume", "", *(f"- {change}" for change in report.changes)]
    if report.history:
        columns = list(report.history[0])
        lines += ["", "## Evaluations", ""]
        lines += _table(columns, [[entry.get(column) for column in columns] for entry in report.history])
    if report.tables:
        lines += ["", "## Tables", ""]
        columns = [column.name for column in fields(TableReport)]
        lines += _table(columns, [[getattr(table, column) for column in columns] for table in report.tables])
    lines += ["", "## Machine and versions", ""]
    lines += _table(["what", "value"], [*report.machine.items(), *report.versions.items()])
    return "\n".join(lines) + "\n"


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    head = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    return head + [f"| {' | '.join(format_value(value) for value in row)} |" for row in rows]
