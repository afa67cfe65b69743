"""Lets the tests of this folder import helpers (importlib mode puts no folder on the path)."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
