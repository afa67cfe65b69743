"""The job as a fixture; the helpers that test folders share can be imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .job import Job

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A fresh click log and run file."""
    return Job.make(tmp_path)
