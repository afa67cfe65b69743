"""Errors of starting and stopping processes: one class per decision a caller can take."""

from __future__ import annotations

from pathlib import Path


class ClusterRunningError(ValueError):
    """A cluster runs in that folder already; take it down or use another folder."""


class ClusterNotRunningError(LookupError):
    """No cluster runs in that folder."""


class ClusterStartError(RuntimeError):
    """A process of the cluster did not come up in time; the message has its last words and where its log is."""


class ClusterStopError(RuntimeError):
    """The supervisor of a cluster did not end in time."""


class LockHeldError(RuntimeError):
    """Another process holds the lock. pid: which one, None where it has not said so yet."""

    def __init__(self, path: Path, pid: int | None) -> None:
        self.path, self.pid = path, pid
        super().__init__(f"expected {path} to be free, got it held by {self.holder}")

    @property
    def holder(self) -> str:
        """The other process in words."""
        return "another process" if self.pid is None else f"process {self.pid}"
