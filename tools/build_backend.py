"""PEP 517 build backend: scikit-build-core, with the ziglang wheel as the compiler where the machine has none.

A machine with `CXX` set or any of c++, g++, clang++ on its path uses that compiler and never sees zig.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import sys
from pathlib import Path

from scikit_build_core import build as _backend
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

ZIG_REQUIREMENT = "ziglang>=0.13,<0.15"
Settings = dict[str, "str | list[str]"] | None


def has_compiler() -> bool:
    """Whether this machine can compile C++ by itself."""
    configured = shlex.split(os.environ.get("CXX", ""))
    names = configured[:1] or ["c++", "g++", "clang++"]
    return any(shutil.which(name) for name in names)


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Build requirements beyond pyproject.toml: cmake and ninja where missing, ziglang where there is no compiler."""
    return [*_backend.get_requires_for_build_wheel(config_settings), *([] if has_compiler() else [ZIG_REQUIREMENT])]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """As for a wheel."""
    return [*_backend.get_requires_for_build_editable(config_settings), *([] if has_compiler() else [ZIG_REQUIREMENT])]


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """File name of the wheel built into `wheel_directory`."""
    _use_zig_if_needed()
    return _backend.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """File name of the editable wheel built into `wheel_directory`."""
    _use_zig_if_needed()
    return _backend.build_editable(wheel_directory, config_settings, metadata_directory)


def _use_zig_if_needed() -> None:
    if has_compiler():
        return
    folder = Path("build", "zig").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    tools = {tool: _wrapper(folder, tool) for tool in ("cc", "c++", "ar", "ranlib")}
    os.environ["CC"], os.environ["CXX"] = str(tools["cc"]), str(tools["c++"])
    # CMake looks for binutils otherwise, which a machine without a compiler lacks too.
    os.environ["CMAKE_ARGS"] = " ".join(
        [os.environ.get("CMAKE_ARGS", ""), f"-DCMAKE_AR={tools['ar']}", f"-DCMAKE_RANLIB={tools['ranlib']}"]
    ).strip()


def _wrapper(folder: Path, tool: str) -> Path:
    path = folder / f"zig-{tool}"
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m ziglang {tool} "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return path
