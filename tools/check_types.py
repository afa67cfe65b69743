"""Run mypy over the package as it is imported.

The checkout's folder may have any name, so build/types/embershard links to the package's folders.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MEMBERS = (
    "__init__.py",
    "__init__.pyi",
    "py.typed",
    "datasets",
    "feature_map",
    "embedding",
    "ps_server",
    "models",
    "cluster",
    "cli",
    "benchmarks",
)


def main() -> int:
    """Exit status of mypy."""
    package = ROOT / "build" / "types" / "embershard"
    package.mkdir(parents=True, exist_ok=True)
    for member in MEMBERS:
        link = package / member
        if not link.is_symlink():
            link.symlink_to(ROOT / member)
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "-p", "embershard"]
    environment = {**os.environ, "MYPYPATH": str(package.parent)}
    return subprocess.run([*command, *sys.argv[1:]], cwd=package.parent, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
