"""Install the pinned packages and an editable build of this checkout into the environment that runs this script.

Called by the Makefile; safe to call again (pip skips what is there, the native build is incremental).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD_REQUIREMENTS = ["scikit-build-core", "nanobind", "grpcio-tools"]


def pip_install(*arguments: str) -> None:
    """Run `pip install` with the constraints of this checkout; ends the script where pip fails."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, "--constraint", str(ROOT / "constraints.txt"), *arguments], check=True, cwd=ROOT)


def main() -> None:
    """Build requirements first, since the build runs in this environment and not in one of its own."""
    print("installing the pinned packages and building the native core (a minute or two the first time)", flush=True)
    pip_install(*BUILD_REQUIREMENTS)
    sys.path.insert(0, str(ROOT / "tools"))
    import build_backend

    if extra := build_backend.get_requires_for_build_editable():
        pip_install(*extra)
    pip_install("--no-build-isolation", "--config-settings=build-dir=build/editable", "--editable", ".[dev]")


if __name__ == "__main__":
    main()
