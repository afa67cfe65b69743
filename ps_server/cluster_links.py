"""ClusterLinks: a client's links to all shards of a cluster, and the tablet map it goes by."""

from __future__ import annotations

import time
from collections.abc import Sequence

from . import parameter_server_pb2 as pb
from .call_watch import CallWatch
from .errors import StoreUnavailableError, WrongPeerError, WrongShardError
from .security import ClientSecurity
from .shard_link import Patience, ShardLink
from .tablet_map import TabletMap

MAP_BACKOFF_SECONDS = 0.05


class ClusterLinks:
    """Links by shard number, made when they are first needed; a newer map only adds or replaces links.

    Thread safety: one caller at a time (the store's lane).
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        cluster: str,
        security: ClientSecurity,
        patience: Patience,
        shares_memory: bool = True,
    ) -> None:
        """Find the cluster at the first address that answers. cluster: its expected name, empty for any."""
        self.patience = patience
        self._shares_memory = shares_memory
        self._security = security
        self._links: dict[int, ShardLink] = {}
        self._watch = CallWatch()
        reply = self._first_answer(addresses, cluster)
        self.cluster = reply.cluster
        self.max_request_bytes = int(reply.max_request_bytes)
        self.map = TabletMap.from_message(reply.map)
        self.identity = f"cluster-{self.cluster}-{self.link(0).header.incarnation:016x}"

    def link(self, shard: int) -> ShardLink:
        """The link to a shard, greeted."""
        address = self.map.addresses[shard]
        link = self._links.get(shard)
        if link is not None and link.address == address:
            return link
        if link is not None:
            link.close()
        link = ShardLink(
            address, self._security, self.patience, shard, shares_memory=self._shares_memory, watch=self._watch
        )
        link.tablets = self.map.describe(shard)
        try:
            link.hello(self.cluster)
        except BaseException:
            link.close()
            raise
        self._links[shard] = link
        return link

    def adopt_newer_map(self, error: WrongShardError, until: float) -> None:
        """Go by the newest map the shards know; waits while none is newer than the one that misled the call.

        Raises: StoreUnavailableError at time `until`: nobody owns the tablets."""
        backoff = MAP_BACKOFF_SECONDS
        while True:
            best = self.map
            for shard in range(self.map.shards):
                try:
                    reply = self.link(shard).hello(self.cluster, self.patience.attempt_seconds)
                except StoreUnavailableError:
                    continue
                found = TabletMap.from_message(reply.map)
                best = found if found.epoch > best.epoch else best
            if best is not self.map:
                self.map = best
                for shard, link in self._links.items():
                    link.tablets = best.describe(shard)
                    link.header.epoch = best.epoch
                return
            if time.monotonic() + backoff > until:
                raise StoreUnavailableError(
                    f"expected a shard of cluster {self.cluster!r} that owns tablets {error.tablets[:8]} at map epoch "
                    f"{self.map.epoch} or later, got none"
                ) from error
            time.sleep(backoff)
            backoff = min(2 * backoff, 1.0)

    def close(self) -> None:
        """Close all links."""
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._watch.close()

    def _first_answer(self, addresses: Sequence[str], cluster: str) -> pb.HelloReply:
        until = time.monotonic() + self.patience.connect_seconds
        problem: Exception | None = None
        for number, address in enumerate(addresses):
            link = ShardLink(address, self._security, self.patience)
            try:
                # Each address gets its share of the time that is left.
                return link.hello(cluster, (until - time.monotonic()) / (len(addresses) - number))
            except (StoreUnavailableError, WrongPeerError) as error:
                problem = problem or error
            finally:
                link.close()
        raise problem or ValueError("expected at least one address, got none")
