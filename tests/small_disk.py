"""A file system with little room, for tests of full disks."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """`place`, with that much room; the test is skipped where nothing can be mounted."""
    place.mkdir()
    mount = shutil.which("mount")
    made = mount and subprocess.run([mount, "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=False)
    if not made or made.returncode:
        pytest.skip("cannot mount a small file system here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
