"""Runs that are stopped from outside: one line, the signal's exit code, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from embershard.embedding.checkpoint import latest_checkpoint

from .job import Job

pytestmark = pytest.mark.process

STORES = {"local": (), "cluster": ("store.kind=cluster", "store.shards=2", "store.durability=log")}
ENDLESS = ("train.epochs=100000", "output.checkpoint_every=25", "output.log_every=5")


@pytest.fixture
def temporary() -> Iterator[Path]:
    """The temporary folder of the run, short enough for a socket's path."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def processes_of(temporary: Path) -> list[str]:
    """Command lines of the processes that were started with this temporary folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"TMPDIR={temporary}\0".encode() in (path / "environ").read_bytes():
                found.append((path / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@contextmanager
def not_ignored(number: signal.Signals) -> Iterator[None]:
    """A process that is started meanwhile does not inherit that the signal is ignored, as under nohup."""
    if number == signal.SIGKILL or signal.getsignal(number) != signal.SIG_IGN:
        yield
        return
    signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(number, signal.SIG_IGN)


def stop(
    job: Job, temporary: Path, how: signal.Signals | Callable[[subprocess.Popen[str]], None], *words: str
) -> subprocess.CompletedProcess[str]:
    """A run that has trained and saved, once it has ended by the signal, or by what is done."""
    command = [sys.executable, "-m", "embershard.cli", "train", str(job.path), *ENDLESS, *words]
    # torch makes its cache folder beside, whatever becomes of the run.
    torch_cache = {"TORCHINDUCTOR_CACHE_DIR": str(job.folder / "torch")}
    environment = {**os.environ, "TMPDIR": str(temporary), **torch_cache}
    with not_ignored(how if isinstance(how, signal.Signals) else signal.SIGTERM):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    with process:
        try:
            deadline = time.monotonic() + 60
            while not list((job.folder / "runs").glob("*/checkpoints/step-?????????/manifest.json")):
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.02)
            if isinstance(how, signal.Signals):
                process.send_signal(how)
            else:
                how(process)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=lambda number: number.name)
def test_a_stopped_run_says_so_and_leaves_nothing_but_its_checkpoints(
    job: Job, temporary: Path, store: str, number: signal.Signals
) -> None:
    done = stop(job, temporary, number, *STORES[store])
    assert done.returncode == 128 + number
    word = "interrupted" if number == signal.SIGINT else f"stopped by {number.name}"
    assert done.stderr == f"error: {word}\n"
    assert processes_of(temporary) == []
    assert list(temporary.iterdir()) == []
    (run,) = (job.folder / "runs").iterdir()
    checkpoint, skipped = latest_checkpoint(run / "checkpoints")
    assert checkpoint is not None
    assert not skipped
    assert [path for path in run.rglob("*") if "part" in path.suffix] == []
    assert not (run / "training.lock").exists()


def test_a_killed_run_leaves_no_process_and_no_temporary_folder(job: Job, temporary: Path) -> None:
    done = stop(job, temporary, signal.SIGKILL, *STORES["cluster"])
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 30
    while processes_of(temporary) or list(temporary.iterdir()):
        assert time.monotonic() < deadline, (processes_of(temporary), list(temporary.iterdir()))
        time.sleep(0.05)


@pytest.mark.parametrize("moment", ["bench-*", "bench-*/ready.json", "bench-*/echo.sock"])
def test_interrupted_benchmark_of_a_shard_says_so_in_one_line_and_leaves_nothing(temporary: Path, moment: str) -> None:
    """Ctrl-C at a terminal reaches the shard and the echo server too: as they start, and as they answer."""
    command = [sys.executable, "-m", "embershard.cli", "bench", "store", "rows=1000", "keys=[1000]", "rounds=100000"]
    with (
        not_ignored(signal.SIGINT),
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(temporary)},
            start_new_session=True,
        ) as process,
    ):
        deadline = time.monotonic() + 60
        while not list(temporary.glob(moment)):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "error: interrupted\n")
    assert processes_of(temporary) == []
    assert list(temporary.iterdir()) == []


def test_a_run_whose_supervisor_was_killed_says_so_at_once(job: Job, temporary: Path) -> None:
    """Nobody starts its shards again, so there is nothing to wait for."""

    def kill_supervisor(_: subprocess.Popen[str]) -> None:
        (state,) = [path for path in Path("/proc").glob("[0-9]*") if "cluster.supervisor" in command_of(path)]
        os.kill(int(state.name), signal.SIGKILL)

    def command_of(process: Path) -> str:
        try:
            is_ours = f"TMPDIR={temporary}\0".encode() in (process / "environ").read_bytes()
            return (process / "cmdline").read_text() if is_ours else ""
        except OSError:
            return ""

    begun = time.monotonic()
    done = stop(job, temporary, kill_supervisor, *STORES["cluster"])
    assert done.returncode == 1
    assert "did not answer" in done.stderr
    assert "(the supervisor of the shards has ended)" in done.stderr
    assert time.monotonic() - begun < 60
    assert processes_of(temporary) == []


def test_a_run_that_waits_for_shards_ends_when_it_is_asked_to(job: Job, temporary: Path) -> None:
    """As SIGTERM by an orchestrator that will not wait for two minutes."""
    folder = job.folder / "shards"
    up = [sys.executable, "-m", "embershard.cli", "cluster"]
    subprocess.run([*up, "up", "--folder", str(folder), "--shards", "1"], check=True, capture_output=True, timeout=60)

    def take_down_and_stop(process: subprocess.Popen[str]) -> None:
        subprocess.run([*up, "down", "--folder", str(folder)], check=True, capture_output=True, timeout=60)
        time.sleep(1)
        process.send_signal(signal.SIGTERM)

    begun = time.monotonic()
    done = stop(job, temporary, take_down_and_stop, "store.kind=cluster", f"store.address={folder}/cluster.yaml")
    assert done.returncode == 128 + signal.SIGTERM
    assert done.stderr == "error: stopped by SIGTERM\n"
    assert time.monotonic() - begun < 60
