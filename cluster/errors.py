"""Errors of starting and stopping processes: one class per decision a caller can take."""

from __future__ import annotations


class ClusterRunningError(ValueError):
    """A cluster runs in that folder already; take it down or use another folder."""


class ClusterNotRunningError(LookupError):
    """No cluster runs in that folder."""


class ClusterStartError(RuntimeError):
    """A process of the cluster did not come up in time; the message has its last words and where its log is."""
