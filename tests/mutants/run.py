"""Builds the tree with each mutant in turn and shows that its test turns red; exits non-zero if a mutant survives.

By hand, some minutes: `python tests/mutants/run.py [words of names …]`. Needs cmake, ninja and a C++ compiler.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEST_SECONDS = 120

# The editable install's finder comes before sys.path, so it is taken out: the copy is the only embershard there is.
RUN_TESTS = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "ScikitBuildRedirectingFinder"]
sys.path.insert(0, sys.argv[1])
import embershard.embedding._native
assert embershard.embedding._native.__file__.startswith(sys.argv[1]), embershard.embedding._native.__file__
import pytest
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""
KILLED = {1}  # pytest: some tests failed; a crash (negative) and a hang count too


def load_mutants() -> tuple[object, ...]:
    """`MUTANTS` of the file beside this one; tests are no package."""
    spec = importlib.util.spec_from_file_location("mutants", Path(__file__).with_name("mutants.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module
    spec.loader.exec_module(module)
    return tuple(module.MUTANTS)


class Copy:
    """A copy of the tree at `folder`/embershard with a build of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tree = folder, folder / "embershard"
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in listed.splitlines():
            if (ROOT / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.tree / name)
        lists = self.tree / "CMakeLists.txt"
        lists.write_text(lists.read_text().replace("-O3", "-O1"))
        self._run(
            "cmake",
            "-G",
            "Ninja",
            "-S",
            self.tree,
            "-B",
            self.folder / "build",
            f"-DPython_EXECUTABLE={sys.executable}",
        )

    def build(self) -> None:
        """The extensions of the tree as it stands, beside their packages. Raises: RuntimeError."""
        self._run("ninja", "-C", self.folder / "build", "embedding_native", "feature_map_native")
        for package in ("embedding", "feature_map"):
            for extension in (self.folder / "build" / package).glob("_native*"):
                shutil.copy2(extension, self.tree / package / extension.name)

    def test(self, node: str) -> tuple[int, str]:
        """(exit status, output) of one test against the copy; 124 after `TEST_SECONDS`."""
        command = [sys.executable, "-c", RUN_TESTS, str(self.folder), str(self.tree / "tests" / node)]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            ran = subprocess.run(
                command,
                cwd=self.tree,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=TEST_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return 124, f"no end after {TEST_SECONDS} s"
        return ran.returncode, ran.stdout + ran.stderr

    @staticmethod
    def _run(*command: object) -> None:
        ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
        if ran.returncode:
            raise RuntimeError(f"{command[0]} failed:\n{ran.stdout}{ran.stderr}")


def verdict(copy: Copy, mutant: object) -> str:
    """`killed`, `SURVIVED` or what else went wrong; the tree is left as it was."""
    path = copy.tree / mutant.file
    original = path.read_text()
    path.write_text(original.replace(mutant.search, mutant.replace, 1))
    try:
        if mutant.is_native:
            copy.build()
        status, output = copy.test(mutant.killed_by)
    except RuntimeError as error:
        return f"NOT BUILT\n{error}"
    finally:
        path.write_text(original)
    if status in KILLED or status < 0 or status == 124:
        return "killed" + ("" if status in KILLED else f" (status {status})")
    return "SURVIVED" if status == 0 else f"NOT RUN (pytest status {status})\n{output}"


def main(words: list[str]) -> int:
    """0 if each test is green without its mutant and red with it."""
    mutants = [mutant for mutant in load_mutants() if not words or any(word in mutant.name for word in words)]
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        copy.build()
        for node in sorted({mutant.killed_by for mutant in mutants}):
            status, output = copy.test(node)
            if status:
                print(f"red without a mutant: {node}\n{output}")
                return 1
        alive = 0
        # Mutants of Python first, while the build is that of the clean tree.
        for mutant in sorted(mutants, key=lambda mutant: mutant.is_native):
            said = verdict(copy, mutant)
            alive += not said.startswith("killed")
            print(f"{said}: {mutant.name} by {mutant.killed_by}", flush=True)
    print(f"{len(mutants) - alive} of {len(mutants)} mutants killed")
    return int(alive > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
