"""The `bench` command, over a suite of one workload."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator

import pytest
import typer
from typer.testing import CliRunner

from embershard import benchmarks
from embershard.benchmarks.measurement import BenchOptions, Measurement, interleaved_rates
from embershard.cli.bench import bench
from embershard.cli.errors import UsageError
from embershard.feature_map.errors import ConfigError


class Options(BenchOptions):
    rows: int = 10
    shards: int = 0


def run(options: Options) -> Iterator[Measurement]:
    details = {"rows": options.rows, "quick": options.quick, "shards": options.shards}
    yield Measurement("lookup", 50.0, "keys/s", "numpy.take", 100.0, details)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    module = types.ModuleType("bench_suite_for_test")
    module.Options, module.run = Options, run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(benchmarks.SUITES, "fake", module.__name__)
    app = typer.Typer()
    app.command()(bench)
    return app


def test_json_is_one_list_of_measurements_and_nothing_else(cli: typer.Typer) -> None:
    result = CliRunner().invoke(cli, ["fake", "rows=7", "--quick", "--shards", "2", "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout) == [
        {
            "workload": "lookup",
            "rows": 7,
            "quick": True,
            "shards": 2,
            "rate": 50.0,
            "unit": "keys/s",
            "reference": "numpy.take",
            "reference_rate": 100.0,
            "ratio": 0.5,
        }
    ]


def test_people_get_a_table_and_the_machine(cli: typer.Typer) -> None:
    result = CliRunner().invoke(cli, ["fake"])
    assert result.exit_code == 0
    assert "numpy.take" in result.stdout
    assert "cores, Python" in result.stdout


def test_unknown_suite_and_option_are_refused_by_name(cli: typer.Typer) -> None:
    result = CliRunner().invoke(cli, ["fak"])
    assert isinstance(result.exception, UsageError)
    assert str(result.exception) == "unknown suite 'fak'; did you mean 'fake'?"
    result = CliRunner().invoke(cli, ["fake", "row=5"])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == "bench fake: $.row: unknown key; did you mean 'rows'?"


def test_rates_are_amounts_over_the_median_time_of_interleaved_rounds() -> None:
    calls: list[str] = []
    work = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    rates = interleaved_rates(work, {"a": 1.0, "b": 1e6}, rounds=3, warm_up=1)
    assert calls == ["a", "b"] * 4
    assert 0 < rates["a"] < rates["b"]
