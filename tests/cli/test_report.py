"""The report files of a run."""

from __future__ import annotations

import json
import math
from pathlib import Path

from embershard.cli.report import RunReport, TableReport, write_report
from embershard.cli.run_folder import RunFolder


def test_both_forms_hold_the_same_numbers_and_undefined_auc_is_null(tmp_path: Path) -> None:
    report = RunReport(
        name="movielens",
        auc=math.nan,
        logloss=0.5,
        examples=80_000,
        examples_per_second=1e5,
        seconds=0.8,
        steps=20,
        rows=2625,
        checkpoint="checkpoints/step-000000020",
        history=[{"step": 20, "epoch": 1, "auc": 0.75, "logloss": 0.5}],
        tables=[TableReport("user", 17, 943, 131072, evicted=3, held_out=5, non_finite=2)],
        machine={"cores": 2},
    )
    run = RunFolder(tmp_path)
    write_report(run, report)
    data = json.loads(run.report.read_text())
    assert data["auc"] is None
    assert data["rows"] == 2625
    assert data["tables"] == [
        {
            "table": "user",
            "dim": 17,
            "rows": 943,
            "bytes": 131072,
            "evicted": 3,
            "held_out": 5,
            "non_finite": 2,
            "clipped": 0,
        }
    ]
    text = run.report_text.read_text()
    assert "| examples | 80,000 |" in text
    assert "| auc | - |" in text
    assert "| user | 17 | 943 | 131,072 | 3 | 5 | 2 | 0 |" in text
    assert "| 20 | 1 | 0.7500 | 0.5000 |" in text
