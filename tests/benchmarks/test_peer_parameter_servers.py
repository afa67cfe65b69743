"""The comparison with other parameter servers, beside a peer that only prints a rate."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "peers" / "parameter_servers.py"


@pytest.fixture
def peer(tmp_path: Path) -> Path:
    """An interpreter that answers for TensorFlow, if it is handed the whole click log."""
    path = tmp_path / "python"
    path.write_text(
        f"#!{sys.executable}\n"
        "import sys, pyarrow.parquet as pq\n"
        "table = pq.read_table(sys.argv[2])\n"
        "assert sys.argv[1].endswith('tensorflow_server.py'), sys.argv\n"
        "assert table.column_names[:2] == ['label', 'I1'] and table.column_names[-1] == 'C26', table.column_names\n"
        "print('{\"rate\": %d}' % table.num_rows)\n",
        encoding="utf-8",
    )
    path.chmod(0o755)
    return path


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.slow
def test_ours_is_compared_with_each_named_peer_at_each_depth(peer: Path) -> None:
    done = run("--tensorflow", peer, "--rows", "12288", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert [(one["reference"], one["pipeline_depth"]) for one in measured] == [
        ("tensorflow parameter server", 0),
        ("tensorflow parameter server", 1),
    ]
    for one in measured:
        assert one["reference_rate"] == 12288
        assert one["rate"] > 100
        assert one["ratio"] == pytest.approx(one["rate"] / 12288)


def test_a_peer_has_to_be_named() -> None:
    done = run()
    assert done.returncode == 2
    assert "expected --tensorflow or --paddle, got neither" in done.stderr
