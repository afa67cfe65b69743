"""The native encoder under sanitizers: no read past a buffer, no undefined step, no data race."""

from __future__ import annotations

import os
import platform
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


LEVELS = {"x86-64": set(), "x86-64-v3": {"avx2", "bmi2", "fma"}, "x86-64-v4": {"avx512f", "avx512dq", "avx512vl"}}


@pytest.mark.slow
def test_kernels_give_the_same_bits_on_every_instruction_set(tmp_path: Path) -> None:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    cpu = Path("/proc/cpuinfo")
    if compiler is None or not cpu.exists() or platform.machine() != "x86_64":
        pytest.skip("needs a C++ compiler on x86-64 Linux")
    flags = set(cpu.read_text(encoding="utf-8").partition("flags")[2].partition("\n")[0].split())
    names = ("column", "memory_pool", "mix_kernels", "numbers", "text_hashes", "values")
    sources = [str(ROOT / "feature_map" / "native" / f"{name}.cpp") for name in names]
    sources.append(str(Path(__file__).parent / "native" / "kernel_bits.cpp"))
    found = {}
    for level in (name for name, needed in LEVELS.items() if needed <= flags):
        program = str(tmp_path / level)
        options = [f"-march={level}", "-std=c++20", "-O3", "-ffp-contract=off", "-DEMBERSHARD_NO_CLONES"]
        run([compiler, *options, *sources, "-o", program])
        found[level] = run([program]).stdout
    assert len(set(found.values())) == 1, found


def run(command: list[str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=check)
