"""Gradient rows that were kept back are in a run's report and in its JSON line, table by table, on every store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from embershard.cli.main import run

from .job import Job

GUARD = "store.guard={max_ratio: 20.0, min_pushes: 10}"
MODEL = (
    f"model={{class: '{__name__}:Faulty', dim: 4}}",
    "features.features=[{name: user, kind: categorical}, {name: item, kind: categorical, id: text}]",
    "data.evaluate=null",
)


class Faulty(torch.nn.Module):
    """Sums the rows. At step 21 the gradients of `user` are not a number, at steps 31 and 32 those of `item` huge."""

    def __init__(self, features: Any) -> None:
        super().__init__()
        self.steps = 0

    def forward(self, inputs: Any, dense: torch.Tensor) -> torch.Tensor:
        vectors = {name: inputs[name] for name in ("user", "item")}
        if self.training:
            self.steps += 1
            if self.steps == 21:
                vectors["user"].register_hook(lambda gradient: gradient * float("nan"))
            if self.steps in (31, 32):
                vectors["item"].register_hook(lambda gradient: gradient * 1e5)
        return torch.stack([vector.sum(1) for vector in vectors.values()]).sum(0)


def trained(job: Job, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The JSON line, and the report."""
    facts = job.train(capsys, *MODEL, "train.max_steps=40", *words)
    return facts, json.loads(Path(facts["report"]).read_text())


@pytest.mark.process
@pytest.mark.parametrize("kind", ["local", "cluster"])
def test_rows_held_out_are_counted_by_table(kind: str, job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    shards = ["store.shards=2"] if kind == "cluster" else []
    facts, report = trained(job, capsys, f"store.kind={kind}", *shards, GUARD)
    tables = {table["table"]: table for table in report["tables"]}
    users, items = tables["user"], tables["item"]
    assert 40 < users["held_out"] == users["non_finite"] <= 64  # the distinct users of one batch
    assert 60 < items["held_out"] <= 120  # the distinct items of two batches
    assert items["non_finite"] == items["clipped"] == users["clipped"] == 0
    assert facts["held_out"] == {"user": users["held_out"], "item": items["held_out"]}
    assert facts["non_finite"] == {"user": users["non_finite"]}
    assert facts["clipped"] == {}
    text = Path(facts["report"]).with_suffix(".md").read_text()
    assert f"| {users['held_out']} | {users['non_finite']} | 0 |" in text


def test_pushes_that_are_clipped_are_counted_by_table(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    facts, report = trained(job, capsys, GUARD, "store.guard.action=clip")
    assert facts["clipped"] == {"item": 2}
    assert {table["table"]: table["clipped"] for table in report["tables"]} == {"user": 0, "item": 2}
    assert list(facts["held_out"]) == list(facts["non_finite"]) == ["user"]


def test_rows_that_the_tables_refuse_are_counted_without_a_guard(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    facts, report = trained(job, capsys, "train.max_steps=30")
    assert facts["held_out"] == {}
    assert 40 < facts["non_finite"]["user"] == report["tables"][0]["non_finite"] <= 64


def test_what_was_kept_back_before_a_resume_still_counts(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    straight, _ = trained(job, capsys, GUARD, "output.name=straight")
    stopped, _ = trained(job, capsys, GUARD, "output.name=run", "train.max_steps=25")
    assert stopped["held_out"] == stopped["non_finite"] == straight["non_finite"]
    resumed, _ = trained(job, capsys, GUARD, "output.name=run", "--resume")
    # The model's own count of steps starts anew with the process: its items' gradients stay sound.
    assert resumed["held_out"] == straight["non_finite"]


def test_people_are_told_too(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", str(job.path), *MODEL, "train.max_steps=30", GUARD]) == 0
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if line.startswith("held out: ")]
    assert line.endswith(" gradient rows of user")
