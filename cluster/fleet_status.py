"""How the shards of a local cluster are: their processes, and what those that answer say of themselves."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

from ..ps_server import parameter_server_pb2 as pb
from ..ps_server.errors import StoreUnavailableError, WrongPeerError
from ..ps_server.security import ClientSecurity
from ..ps_server.shard_link import Patience, ShardLink
from ..ps_server.shard_status import ShardStatus, decode_status
from .errors import ClusterNotRunningError
from .shard_fleet import ShardFleet

ANSWER_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class FleetShard:
    """One shard of a local cluster.

    pid, restarts, last_exit: of its process; pid is None while it waits to be started again.
    tablets:  how many it owns.
    status:   what it says of itself, or None where it does not answer.
    pulls_per_second, pushes_per_second, cpu_share: between the two times it was asked; None unless it answered both.
    """

    index: int
    address: str
    pid: int | None
    restarts: int
    last_exit: int | None
    tablets: int
    status: ShardStatus | None
    pulls_per_second: float | None = None
    pushes_per_second: float | None = None
    cpu_share: float | None = None

    @property
    def state(self) -> str:
        """answers, silent (a process that starts, or does not answer any more) or down."""
        if self.status is not None:
            return "answers"
        return "down" if self.pid is None else "silent"


def fleet_status(fleet: ShardFleet, interval_seconds: float = 0.5, token: str | None = None) -> list[FleetShard]:
    """All shards by number, asked twice `interval_seconds` apart; one that does not answer stands in the list as well.

    token: of the cluster, if it asks for one. Raises: ClusterNotRunningError, AccessDeniedError."""
    security = ClientSecurity(token=token)
    processes = {role.name: role for role in fleet.cluster.status()}
    spec = fleet.spec()
    missing = [index for index in range(len(spec.shards)) if f"shard-{index}" not in processes]
    if missing:
        raise ClusterNotRunningError(
            f"expected a process for each of {len(spec.shards)} shards of the cluster spec, got none for {missing}: "
            "the spec was changed since the cluster was started"
        )
    owners = spec.first_map().owners
    before = [_ask(index, address, security) for index, address in enumerate(spec.shards)]
    time.sleep(interval_seconds)
    shards = []
    for index, address in enumerate(spec.shards):
        process = processes[f"shard-{index}"]
        first, last = before[index], _ask(index, address, security)
        rates: dict[str, float] = {}
        if first is not None and last is not None and last.uptime_seconds > first.uptime_seconds:
            seconds = last.uptime_seconds - first.uptime_seconds
            rates = {
                "pulls_per_second": (last.pulls - first.pulls) / seconds,
                "pushes_per_second": (last.pushes - first.pushes) / seconds,
                "cpu_share": (last.cpu_seconds - first.cpu_seconds) / seconds,
            }
        tablets = int((owners == index).sum())
        shards.append(
            FleetShard(index, address, process.pid, process.restarts, process.last_exit, tablets, last, **rates)
        )
    return shards


def _ask(index: int, address: str, security: ClientSecurity) -> ShardStatus | None:
    patience = Patience(call_seconds=ANSWER_SECONDS, attempt_seconds=ANSWER_SECONDS, connect_seconds=ANSWER_SECONDS)
    with contextlib.closing(ShardLink(address, security, patience, index)) as link:
        try:
            link.hello()
            return decode_status(link.call("Status", pb.StatusRequest().SerializeToString()), address)
        except (StoreUnavailableError, WrongPeerError):
            return None
