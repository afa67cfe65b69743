"""A reading process killed with SIGKILL at random points and started again delivers every row exactly once."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROWS = 60_000
KILLS = 10

# Each batch is one line: the position after it and its rows; a line without its end was never delivered. A line is
# written when the reader asks for it, so that a kill comes in the middle however slow either side is.
PROGRAM = """
import sys
import pyarrow as pa
from embershard.datasets import ClickLog, ColumnSpec, ReadPosition

class RowIds:
    columns = (ColumnSpec("row", pa.int64()),)
    def encode(self, records, id=None):
        return records.column("row").to_pylist()

folder, place = sys.argv[1], [int(part) for part in sys.argv[2:]]
log = ClickLog(folder, unit_rows=1_500, run=1)
stream = log.batches(RowIds(), 64, seed=3, shuffle=True, start=ReadPosition(*place))
for rows in stream:
    sys.stdin.readline()
    at = stream.position
    sys.stdout.write(" ".join(map(str, [at.epoch, at.unit, at.batch, *rows])) + "\\n")
    sys.stdout.flush()
sys.stdout.write("end\\n")
"""


@pytest.mark.process
@pytest.mark.slow
def test_rows_over_ten_kills_are_each_row_once(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    for number, rows in enumerate(np.array_split(np.arange(ROWS), 4)):
        pq.write_table(pa.table({"row": rows}), folder / f"{number}.parquet", row_group_size=4_000)
    draw = random.Random(5)
    place = ["2", "0", "0"]
    seen: Counter[int] = Counter()
    for kill in range(KILLS + 1):
        lines_before_kill = draw.randint(20, 120) if kill < KILLS else None
        lines, ended = read_until(folder, place, lines_before_kill)
        for line in lines:
            seen.update(map(int, line[3:]))
        if lines:
            place = lines[-1][:3]
        if ended:
            break
    assert ended
    assert kill == KILLS  # every kill came in the middle
    assert seen == Counter(range(ROWS))


def read_until(folder: Path, place: list[str], kill_after: int | None) -> tuple[list[list[str]], bool]:
    """The whole lines a reader wrote before it was killed, or all; and whether it came to its end."""
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), *place], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    lines: list[str] = []
    with child:
        # Some lines beyond the kill are asked for too: they may be written, whole or in part, or not.
        child.stdin.write("\n" * (ROWS if kill_after is None else kill_after + 3))
        child.stdin.flush()
        for line in child.stdout:
            if line.endswith("\n"):
                lines.append(line)
            if kill_after is not None and len(lines) == kill_after:
                child.send_signal(signal.SIGKILL)
    ended = bool(lines) and lines[-1] == "end\n"
    return [line.split() for line in lines if line != "end\n"], ended
