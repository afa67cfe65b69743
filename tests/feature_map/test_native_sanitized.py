"""The native encoder under sanitizers: no read past a buffer, no undefined step, no data race."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELS = [path for path in sorted((ROOT / "feature_map" / "native").glob("*.cpp")) if not path.name.startswith("bind")]
SOURCES = [*KERNELS, Path(__file__).parent / "native" / "encode_fuzz.cpp"]


@pytest.mark.slow
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_encoder_is_sound_under(sanitizers: str, tmp_path: Path) -> None:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler with sanitizers here")
    flags = ["-std=c++20", "-O1", "-g1", "-pthread", "-ffp-contract=off", "-fno-sanitize-recover=all"]
    command = [compiler, *flags, f"-fsanitize={sanitizers}"]

    def build(source: Path) -> str:
        target = str(tmp_path / f"{source.stem}.o")
        run([*command, "-c", str(source), "-o", target])
        return target

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(build, SOURCES))
    program = str(tmp_path / "encode_fuzz")
    linked = run([*command, *objects, "-o", program], check=False)
    if "cannot find" in linked.stderr and "san" in linked.stderr:
        pytest.skip("this compiler has no sanitizer libraries")
    assert linked.returncode == 0, linked.stderr
    ran = run([program], check=False)
    assert (ran.returncode, ran.stdout) == (0, "sound\n"), ran.stdout + ran.stderr


def run(command: list[str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=check)
