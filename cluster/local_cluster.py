"""A cluster on this machine: start its supervisor, look at it, take it down."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import (
    ClusterNotRunningError,
    ClusterRunningError,
    ClusterStartError,
    ClusterStopError,
    LockHeldError,
)
from .lock_file import hold_lock, lock_holder
from .supervisor import (
    COMMANDS_FILE,
    GRACE_SECONDS,
    LOCK_FILE,
    LOG_FOLDER,
    REMOVE_FOLDER,
    STATE_FILE,
    STOP_WITH_STDIN,
    write_atomically,
)

START_SECONDS = 60.0
STOP_SECONDS = GRACE_SECONDS + 10.0
STARTING_FILE = "starting.lock"
POLL_SECONDS = 0.02
LAST_WORDS = 2000


@dataclass(frozen=True, slots=True)
class RoleStatus:
    """One supervised process: `pid` None while it waits to be started again; `last_exit` of its last end, if any."""

    name: str
    pid: int | None
    restarts: int
    last_exit: int | None


class LocalCluster:
    """The processes of one folder, kept running by a supervisor of their own.

    `start(attached=True)` ties the supervisor to this process: it ends when this process does, however that is.
    Thread safety: one thread.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._attached: subprocess.Popen[bytes] | None = None

    @property
    def folder(self) -> Path:
        """Where state and logs are."""
        return self._folder

    def start(
        self, commands: Mapping[str, Sequence[str]], *, attached: bool = False, removed_with_owner: bool = False
    ) -> None:
        """Start the supervisor over `commands` (role → argv).

        removed_with_owner: if this process ends without `stop`, the supervisor of an attached cluster removes the
        folder as well.
        Raises: ClusterRunningError; ClusterStartError."""
        self.check_not_running()
        logs = self._folder / LOG_FOLDER
        logs.mkdir(parents=True, exist_ok=True)
        argvs = {name: list(argv) for name, argv in commands.items()}
        write_atomically(self._folder / COMMANDS_FILE, json.dumps(argvs))
        # What a killed supervisor left behind must not pass for a word of the new one.
        (self._folder / STATE_FILE).unlink(missing_ok=True)
        command = [sys.executable, "-m", "embershard.cluster.supervisor", str(self._folder)]
        words = [STOP_WITH_STDIN] if attached else []
        words += [REMOVE_FOLDER] if attached and removed_with_owner else []
        with (logs / "supervisor.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, *words],
                stdin=subprocess.PIPE if attached else subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if attached:
            self._attached = process
        else:
            threading.Thread(target=process.wait, name="supervisor-wait", daemon=True).start()
        try:
            self._wait(lambda: process.poll() is not None or self._state() is not None, START_SECONDS)
            if process.poll() is not None or self._state() is None:
                raise ClusterStartError(f"the supervisor did not come up: {self.last_words('supervisor')}")
        except BaseException:
            process.terminate()
            process.wait()
            (self._folder / COMMANDS_FILE).unlink(missing_ok=True)
            raise

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Nobody else starts a cluster in the folder during the block. Raises: ClusterRunningError."""

        def refusal(held: LockHeldError) -> Exception:
            return ClusterRunningError(f"expected no cluster in {self._folder}, got one that {held.holder} starts")

        self._folder.mkdir(parents=True, exist_ok=True)
        with hold_lock(self._folder / STARTING_FILE, refusal):
            self.check_not_running()
            yield

    def check_not_running(self) -> None:
        """Raises: ClusterRunningError where a supervisor holds the folder."""
        if self.is_running():
            raise ClusterRunningError(f"expected no cluster in {self._folder}, got one that runs; take it down first")

    def wait_for(self, is_ready: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        """Return when `is_ready()`. Raises: ClusterStartError with the last words of a process that keeps dying."""
        deadline = time.monotonic() + seconds
        while not is_ready():
            failing = [role for role in self.status() if role.restarts >= 2]
            if failing or time.monotonic() > deadline:
                named = failing or [role for role in self.status() if role.pid is None] or list(self.status())
                words = "; ".join(f"{role.name}: {self.last_words(role.name)}" for role in named[:1])
                raise ClusterStartError(f"expected the cluster to be up within {seconds:.0f} s, got {words}")
            time.sleep(POLL_SECONDS)

    def is_running(self) -> bool:
        """Whether a supervisor holds the folder."""
        return lock_holder(self._folder / LOCK_FILE) is not None

    def status(self) -> tuple[RoleStatus, ...]:
        """The processes. Raises: ClusterNotRunningError."""
        state = self._state() if self.is_running() else None
        if state is None:
            raise ClusterNotRunningError(f"expected a running cluster in {self._folder}, got none")
        return state

    def stop(self) -> None:
        """End all processes, gracefully first; logs stay. Raises: ClusterNotRunningError, ClusterStopError."""
        pid = lock_holder(self._folder / LOCK_FILE)
        if pid is None:
            raise ClusterNotRunningError(f"expected a running cluster in {self._folder}, got none")
        with contextlib.suppress(ProcessLookupError):  # it has ended since
            os.kill(pid, signal.SIGTERM)
        self._wait(lambda: not self.is_running(), STOP_SECONDS)
        if self.is_running():
            raise ClusterStopError(
                f"expected the supervisor (process {pid}) of {self._folder} to end within {STOP_SECONDS:.0f} s, "
                f"got it still there: {self.last_words('supervisor')}"
            )
        if self._attached is not None:
            if self._attached.stdin is not None:
                self._attached.stdin.close()
            self._attached.wait()
            self._attached = None
        with contextlib.suppress(OSError):  # a folder that was made read-only: the cluster has ended all the same
            (self._folder / COMMANDS_FILE).unlink(missing_ok=True)

    def last_words(self, role: str) -> str:
        """End of the role's log, on one line, and where the log is."""
        path = self._folder / LOG_FOLDER / f"{role}.log"
        try:
            text = path.read_text(encoding="utf-8", errors="replace")[-LAST_WORDS:]
        except FileNotFoundError:
            text = ""
        lines = [line for line in text.splitlines() if line.strip()]
        return f"{lines[-1] if lines else 'no output'} (log {path})"

    def _state(self) -> tuple[RoleStatus, ...] | None:
        try:
            state = json.loads((self._folder / STATE_FILE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return tuple(RoleStatus(**role) for role in state["roles"])

    @staticmethod
    def _wait(condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
