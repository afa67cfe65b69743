"""connect: a store over the shards of a running cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from .cluster_links import ClusterLinks
from .cluster_spec import check_address
from .gradient_guard import GuardOptions
from .remote_store import RemoteStore
from .security import ClientSecurity
from .shard_link import Patience
from .wire_values import WireFormat


def connect(
    addresses: str | Sequence[str],
    *,
    cluster: str = "",
    security: ClientSecurity | None = None,
    wire: WireFormat | None = None,
    patience: Patience | None = None,
    guard: GuardOptions | None = None,
    clock: Callable[[], int] = lambda: 0,
    shared_memory: bool = True,
) -> RemoteStore:
    """The store of the cluster that answers at one of the addresses (`host:port` or `unix:/path`, or a list, or text
    with commas); the other shards are found by its tablet map.

    cluster: refuse any other cluster than this one.   clock: seconds, stored as `touched_at` by `assign`.
    shared_memory: with shards on this machine, large arrays go through memory that both map (Linux).
    Raises: StoreUnavailableError if nobody answers in time; WrongPeerError if the wrong one does; AccessDeniedError."""
    if not isinstance(addresses, Iterable):
        raise TypeError(f"expected an address or a list of them, got {addresses!r}")
    listed = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    checked = [check_address(address.strip()) for address in listed]
    links = ClusterLinks(
        checked,
        cluster=cluster,
        security=security or ClientSecurity(),
        patience=patience or Patience(),
        shares_memory=shared_memory,
    )
    try:
        return RemoteStore(links, wire=wire, guard=guard, clock=clock)
    except BaseException:
        links.close()
        raise
