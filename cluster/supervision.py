"""Which process to start when: decisions of the supervisor, without processes or clocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before a dead process is started again.

    The k-th restart in a row waits first · factor^(k−1) seconds, at most `most_seconds`; a process that lived for
    `healthy_seconds` starts the row anew.
    """

    first_seconds: float = 0.2
    factor: float = 2.0
    most_seconds: float = 30.0
    healthy_seconds: float = 30.0

    def delay(self, restarts_in_a_row: int) -> float:
        """Seconds before restart number `restarts_in_a_row` (≥ 1)."""
        return min(self.first_seconds * self.factor ** (restarts_in_a_row - 1), self.most_seconds)


@dataclass(slots=True)
class Role:
    """One supervised process, as far as it is known.

    pid: None while it does not run.   start_at: when it is due, None while it runs or is stopped for good.
    restarts: starts after the first.   last_exit: exit code of its last end; −9 for SIGKILL and so on.
    """

    name: str
    pid: int | None = None
    start_at: float | None = 0.0
    started_at: float = 0.0
    starts: int = 0
    failures_in_a_row: int = 0
    last_exit: int | None = None

    @property
    def restarts(self) -> int:
        """Starts after the first one."""
        return max(self.starts - 1, 0)


class Supervision:
    """Roles and what is to be done about them: events in, decisions out.

    Invariants: 1. a role has a pid or a start time or, after `stop`, neither. 2. after `stop` nothing is ever due.
    Thread safety: one thread.
    """

    def __init__(self, roles: Iterable[str], backoff: Backoff | None = None) -> None:
        self._backoff = backoff or Backoff()
        self._roles = {name: Role(name) for name in roles}
        self._stopping = False

    @property
    def roles(self) -> tuple[Role, ...]:
        """All roles in the order given."""
        return tuple(self._roles.values())

    @property
    def is_done(self) -> bool:
        """Whether everything was stopped and has ended."""
        return self._stopping and all(role.pid is None for role in self._roles.values())

    def due(self, now: float) -> list[str]:
        """Names of the roles to start now."""
        return [role.name for role in self.roles if role.start_at is not None and role.start_at <= now]

    def seconds_to_next(self, now: float) -> float | None:
        """Seconds until a role is due, or None where none will be by itself."""
        starts = [role.start_at for role in self.roles if role.start_at is not None]
        return max(min(starts) - now, 0.0) if starts else None

    def on_start(self, name: str, pid: int, now: float) -> None:
        """The process of `name` runs as `pid`."""
        role = self._roles[name]
        role.pid, role.started_at, role.start_at = pid, now, None
        role.starts += 1

    def on_exit(self, pid: int, code: int, now: float) -> str | None:
        """Name of the role whose process ended (None: not one of ours); it is due again after its back-off."""
        for role in self._roles.values():
            if role.pid == pid:
                role.pid, role.last_exit = None, code
                lived = now - role.started_at
                role.failures_in_a_row = 1 if lived >= self._backoff.healthy_seconds else role.failures_in_a_row + 1
                role.start_at = None if self._stopping else now + self._backoff.delay(role.failures_in_a_row)
                return role.name
        return None

    def stop(self) -> list[int]:
        """Pids to be told to end; nothing is started from now on."""
        self._stopping = True
        for role in self._roles.values():
            role.start_at = None
        return [role.pid for role in self._roles.values() if role.pid is not None]
