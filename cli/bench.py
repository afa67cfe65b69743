"""`embershard bench`: measured rates beside their references."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Annotated, cast

import typer

from ..benchmarks import SUITES
from .console import note, print_json, say, say_table
from .errors import UsageError

if TYPE_CHECKING:
    from ..benchmarks.measurement import Measurement, Suite


def bench(
    suite: Annotated[str, typer.Argument(help=f"One of {', '.join(SUITES)}.", metavar="SUITE")],
    options: Annotated[list[str] | None, typer.Argument(help="Options of the suite.", metavar="[key=value]...")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: a first look, no proof.")] = False,
    shards: Annotated[int | None, typer.Option("--shards", help="Parameter-server shards (suite train).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list and nothing else.")] = False,
) -> None:
    """Measure one suite of workloads, each against a reference in the same run."""
    from ..feature_map.config_file import did_you_mean, validate
    from .overrides import apply_overrides

    if suite not in SUITES:
        raise UsageError(f"unknown suite {suite!r}; {did_you_mean(suite, SUITES)}")
    data: dict[str, object] = {"quick": True} if quick else {}
    if shards is not None:
        data["shards"] = shards
    module = cast("Suite", import_module(SUITES[suite]))
    settings = validate(module.Options, apply_overrides(data, options or ()), f"bench {suite}")
    found: list[Measurement] = []
    for measurement in module.run(settings):
        found.append(measurement)
        note(f"{measurement.workload}: {measurement.rate:,.0f} {measurement.unit} ({measurement.ratio:.2f} x)")
    if as_json:
        print_json([measurement.as_json() for measurement in found])
        return
    _say_measurements(found)


def _say_measurements(found: list[Measurement]) -> None:
    from ..benchmarks.measurement import machine

    details = list(dict.fromkeys(name for measurement in found for name in measurement.details))
    say_table(
        ["workload", *details, "rate", "unit", "reference", "reference rate", "ratio"],
        [
            [
                measurement.workload,
                *(measurement.details.get(name) for name in details),
                round(measurement.rate),
                measurement.unit,
                measurement.reference,
                round(measurement.reference_rate),
                f"{measurement.ratio:.2f}",
            ]
            for measurement in found
        ],
    )
    facts = machine()
    say(f"{facts['cpu']}, {facts['cores']} cores, Python {facts['python']}, commit {facts['commit']}")
