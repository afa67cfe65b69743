"""The build picks the machine's own compiler, and the ziglang wheel only where there is none."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def backend() -> ModuleType:
    pytest.importorskip("scikit_build_core")
    spec = importlib.util.spec_from_file_location("build_backend", ROOT / "tools" / "build_backend.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_zig_is_required_where_no_compiler_is_found(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert not backend.has_compiler()
    assert backend.ZIG_REQUIREMENT in backend.get_requires_for_build_wheel()


def test_a_compiler_on_the_path_is_used(backend: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "clang++"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert backend.has_compiler()
    assert backend.ZIG_REQUIREMENT not in backend.get_requires_for_build_editable()


def test_zig_wrappers_are_executable_and_name_this_interpreter(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("CC", "CXX", "CMAKE_ARGS"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("PATH", str(tmp_path))
    backend._use_zig_if_needed()
    import os
    import sys

    compiler = Path(os.environ["CXX"])
    assert os.access(compiler, os.X_OK)
    assert sys.executable in compiler.read_text()
    assert "CMAKE_AR" in os.environ["CMAKE_ARGS"]
