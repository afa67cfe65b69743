"""What commands print."""

from __future__ import annotations

import json

import numpy as np
import pytest

from embershard.cli.console import print_json, say_table


def test_json_is_strict_and_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"auc": float("nan"), "rows": np.int64(3), "rate": np.float32(0.5), "list": (1, float("inf"))})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"auc": None, "rows": 3, "rate": 0.5, "list": [1, None]}


def test_table_prints_every_cell_whole(capsys: pytest.CaptureFixture[str]) -> None:
    long = "a-name-" * 30
    say_table(["name", "rows"], [[long, 1234567], ["b", 5]])
    out = capsys.readouterr().out
    assert long in out
    assert "1,234,567" in out
