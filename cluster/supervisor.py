"""A supervisor process: keeps a fixed set of processes running until it is told to end."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

from .errors import ClusterRunningError, LockHeldError
from .lock_file import hold_lock
from .supervision import Backoff, Supervision

GRACE_SECONDS = 20.0
"""How long a process may take to end by itself (drain, flush) before it is killed."""

LOOK_SECONDS = 2.0
"""How often the supervisor looks whether its folder is still its own, and tries to write what it could not."""

LOCK_FILE, STATE_FILE, COMMANDS_FILE, LOG_FOLDER = "supervisor.lock", "state.json", "commands.json", "logs"
STOP_WITH_STDIN, REMOVE_FOLDER = "--stop-with-stdin", "--remove-folder"


class Supervisor:
    """Runs `commands` (role → argv) in `folder` and restarts what dies, with back-off.

        folder/supervisor.lock   held (flock) while the supervisor lives; has its pid
        folder/state.json        pid, restarts and last exit of each role, replaced at each change
        folder/logs/ROLE.log     what the role prints, over all its restarts

    Each child's stdin is a pipe that only the supervisor holds: when it dies in whatever way, the children read the
    end of file and can stop by themselves. Thread safety: main thread only (it handles signals).
    """

    def __init__(
        self,
        folder: Path,
        commands: Mapping[str, Sequence[str]],
        backoff: Backoff | None = None,
        lifeline: int | None = None,
    ) -> None:
        """`lifeline`: a descriptor whose end of file also means: end."""
        self._folder = folder
        self._lifeline = lifeline
        self.lost_lifeline = False
        """After `run`: whether the process that held the other end of the lifeline is gone."""
        self._commands = dict(commands)
        self._supervision = Supervision(commands, backoff)
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._stop_asked = False
        self._state_is_written = True
        self._is_ours: Callable[[], bool] = lambda: True

    def run(self) -> None:
        """Supervise until SIGTERM or SIGINT, then end all children and return; also where the folder was removed, whose
        files may be another cluster's since: then nothing in it is touched and children are killed.

        Raises: ClusterRunningError where another supervisor holds the folder."""
        (self._folder / LOG_FOLDER).mkdir(parents=True, exist_ok=True)
        with self._only_one() as self._is_ours, _wake_on_signals(self._ask_stop) as wake:
            try:
                while not self._stop_asked and self._is_ours():
                    self._reap()
                    self._start_due()
                    if not self._state_is_written:
                        self._write_state()
                    self._wait(wake, self._seconds_to_next())
            finally:
                self._end_children(wake)
                # Who waits for the lock lets go of the lifeline then, and removes the folder itself.
                self._look_at_lifeline()
                if self._is_ours():
                    (self._folder / STATE_FILE).unlink(missing_ok=True)

    def _only_one(self) -> AbstractContextManager[Callable[[], bool]]:
        def refusal(_held: LockHeldError) -> Exception:
            return ClusterRunningError(f"expected no cluster in {self._folder}, got one that runs")

        return hold_lock(self._folder / LOCK_FILE, refusal)

    def _look_at_lifeline(self) -> None:
        if self._lifeline is not None and _wait_readable(self._lifeline) and os.read(self._lifeline, 4096) == b"":
            self._lifeline, self.lost_lifeline = None, True

    def _ask_stop(self) -> None:
        self._stop_asked = True

    def _seconds_to_next(self) -> float:
        seconds = self._supervision.seconds_to_next(time.monotonic())
        return LOOK_SECONDS if seconds is None else min(seconds, LOOK_SECONDS)

    def _wait(self, wake: int, seconds: float | None) -> None:
        watched = [wake] if self._lifeline is None else [wake, self._lifeline]
        ready = _wait(watched, seconds)
        if self._lifeline in ready:
            self._look_at_lifeline()
            self._stop_asked = self._stop_asked or self.lost_lifeline

    def _start_due(self) -> None:
        for name in self._supervision.due(time.monotonic()):
            with self._open_log(name) as log:
                child = subprocess.Popen(
                    self._commands[name],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._children[child.pid] = child
            self._supervision.on_start(name, child.pid, time.monotonic())
            self._write_state()

    def _reap(self) -> None:
        for pid, child in list(self._children.items()):
            code = child.poll()
            if code is not None:
                self._forget(pid, child)
                self._supervision.on_exit(pid, code, time.monotonic())
                self._write_state()

    def _forget(self, pid: int, child: subprocess.Popen[bytes]) -> None:
        if child.stdin is not None:
            child.stdin.close()
        del self._children[pid]

    def _end_children(self, wake: int) -> None:
        number = signal.SIGTERM if self._is_ours() else signal.SIGKILL
        for pid in self._supervision.stop():
            self._children[pid].send_signal(number)
        deadline = time.monotonic() + GRACE_SECONDS
        while not self._supervision.is_done and time.monotonic() < deadline:
            _wait([wake], min(0.2, max(deadline - time.monotonic(), 0.0)))
            self._reap()
        for child in self._children.values():
            child.kill()
            child.wait()
        self._reap()

    def _write_state(self) -> None:
        if not self._is_ours():
            return
        roles = [
            {"name": role.name, "pid": role.pid, "restarts": role.restarts, "last_exit": role.last_exit}
            for role in self._supervision.roles
        ]
        state = {"pid": os.getpid(), "roles": roles}
        try:
            write_atomically(self._folder / STATE_FILE, json.dumps(state))
            self._state_is_written = True
        except OSError as error:  # a full disk: the processes matter more; it is written when there is room
            self._state_is_written = False
            _say(f"state not written: {error}")

    def _open_log(self, name: str) -> BinaryIO:
        try:
            return (self._folder / LOG_FOLDER / f"{name}.log").open("ab")
        except OSError as error:
            _say(f"log of {name} not opened: {error}")
            return open(os.devnull, "ab")


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # the supervisor's own log may be on the full disk
        print(line, file=sys.stderr, flush=True)


def write_atomically(path: Path, text: str) -> None:
    """Replace the file's content: a reader sees the old or the new, never a part."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


@contextlib.contextmanager
def _wake_on_signals(ask_stop: Callable[[], None]) -> Iterator[int]:
    """A descriptor that is readable when a child ended or the supervisor was told to end."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.set_blocking(write_end, False)
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)

    def handle(number: int, _frame: object) -> None:
        if number != signal.SIGCHLD:
            ask_stop()

    before = {number: signal.signal(number, handle) for number in signals}
    wakeup_before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    try:
        yield read_end
    finally:
        signal.set_wakeup_fd(wakeup_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(read_end)
        os.close(write_end)


def _wait(watched: Sequence[int], seconds: float | None) -> list[int]:
    """Descriptors that are readable; the first one, the wake-up pipe, is emptied."""
    ready: list[int] = select.select(watched, [], [], seconds)[0]
    with contextlib.suppress(BlockingIOError):
        os.read(watched[0], 4096)
    return ready


def _wait_readable(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def main() -> None:
    """`python -m embershard.cluster.supervisor FOLDER [--stop-with-stdin] [--remove-folder]`: run FOLDER's commands.

    --stop-with-stdin: also end at the end of stdin.   --remove-folder: remove FOLDER if that came before a signal."""
    folder = Path(sys.argv[1])
    lifeline = sys.stdin.fileno() if STOP_WITH_STDIN in sys.argv[2:] else None
    commands: dict[str, list[str]] = json.loads((folder / COMMANDS_FILE).read_text(encoding="utf-8"))
    supervisor = Supervisor(folder, commands, lifeline=lifeline)
    supervisor.run()
    if REMOVE_FOLDER in sys.argv[2:] and supervisor.lost_lifeline:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
