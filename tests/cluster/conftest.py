"""Lets the tests of this folder import helpers that test folders share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
