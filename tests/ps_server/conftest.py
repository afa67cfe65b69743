"""Lets the tests of this folder import helpers (importlib mode puts no folder on the path)."""

import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]


@pytest.fixture
def folder():
    """An empty folder. Not tmp_path: a Unix socket's path has to be short."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)
