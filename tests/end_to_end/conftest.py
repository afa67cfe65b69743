"""The job as a fixture."""

from __future__ import annotations

from pathlib import Path

import pytest

from .job import Job


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A fresh click log and run file."""
    return Job.make(tmp_path)
