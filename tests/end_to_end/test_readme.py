"""The Python example of the README runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

README = Path(__file__).parents[2] / "README.md"


def test_the_example_of_the_readme_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 50, 60_000), rng.integers(0, 20, 60_000)
    click = ((user + item) % 2 == 0).astype(np.float32)
    (tmp_path / "clicks").mkdir()
    pq.write_table(pa.table({"user": user, "item": item, "click": click}), tmp_path / "clicks" / "day.parquet")
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    lines = example.replace("loss.backward()", "losses.append(loss.item()); loss.backward()")
    names: dict[str, object] = {"losses": []}
    exec(compile(lines, str(README), "exec"), names)
    losses = names["losses"]
    assert isinstance(losses, list)
    assert len(losses) == 15  # ⌈60,000 / 4096⌉
    assert losses[-1] < losses[0] - 0.001
