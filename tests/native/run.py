"""Compiles the native core with its own tests under each sanitizer and runs them; exits non-zero on a failure."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "embedding" / "native"
SOURCES = ["arena", "kernels", "part", "policies", "row_store", "table"]
SOURCES += ["key_partition", "table_assign", "table_erase", "table_group", "table_lookup", "table_push"]
SOURCES += ["table_tablets", "thread_pool"]
COMMON = ["-std=c++20", "-O1", "-g", "-ffp-contract=off", "-fno-math-errno", f"-I{NATIVE}", "-pthread"]
PROGRAMS = {"address,undefined": ("stress_table_group", "row_addresses"), "thread": ("stress_table_group",)}
SANITIZERS = {
    "address,undefined": ["-fno-sanitize-recover=all"],
    "thread": [],
}


def run_under(compiler: str, sanitizer: str, folder: Path) -> str:
    """Empty if the programs pass under the sanitizer, else what the first that fails said."""
    flags = [*COMMON, f"-fsanitize={sanitizer}", *SANITIZERS[sanitizer]]
    core = {NATIVE / f"{name}.cpp": folder / f"{sanitizer}-{name}.o" for name in SOURCES}
    tests = {Path(__file__).with_name(f"{name}.cpp"): folder / f"{sanitizer}-{name}.o" for name in PROGRAMS[sanitizer]}
    for source, target in {**core, **tests}.items():
        built = subprocess.run(
            [compiler, *flags, "-c", source, "-o", target], capture_output=True, text=True, check=False
        )
        if built.returncode:
            return f"{source} does not compile under {sanitizer}:\n{built.stderr}"
    for source, target in tests.items():
        failure = run_program(compiler, flags, [*core.values(), target], folder / f"{source.stem}-{sanitizer}")
        if failure:
            return f"{source.stem} under {sanitizer}:\n{failure}"
    return ""


def run_program(compiler: str, flags: list[str], objects: list[Path], program: Path) -> str:
    """Empty if the objects link to a program that passes, else what it said."""
    linked = subprocess.run([compiler, *flags, *objects, "-o", program], capture_output=True, text=True, check=False)
    if linked.returncode:
        return linked.stderr
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "detect_leaks=1"}
    ran = subprocess.run([program], capture_output=True, text=True, check=False, env=environment, timeout=300)
    return f"{ran.stdout}{ran.stderr}" or "failed" if ran.returncode else ""


def main() -> int:
    """0 if every sanitizer is content, or if there is no compiler to ask."""
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    if compiler is None:
        print("native tests skipped: no g++ or clang++ on this machine")
        return 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        failures = list(pool.map(lambda sanitizer: run_under(compiler, sanitizer, Path(folder)), SANITIZERS))
    for sanitizer, failure in zip(SANITIZERS, failures, strict=True):
        print(failure or f"native {', '.join(PROGRAMS[sanitizer])} under {sanitizer}: ok")
    return int(any(failures))


if __name__ == "__main__":
    sys.exit(main())
