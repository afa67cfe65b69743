"""Requests that are larger than shards take are refused by the client, before anything of them is copied or sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..embedding.store import Push
from .cluster_links import ClusterLinks
from .errors import RequestTooLargeError
from .exchange_parts import ExchangePart
from .wire_values import WireDtype, storage_dtype

NAMED_PEERS = 4


def push_bytes(push: Push, dtype: WireDtype) -> int:
    """Bytes of the push's arrays on the wire, before compression."""
    clicks = 0 if push.clicks is None else push.clicks.nbytes
    values = len(push.gradients) * storage_dtype(dtype).itemsize
    return values + push.keys.keys.nbytes + push.occurrences.nbytes + clicks


def check_size(what: str, size: int, links: ClusterLinks) -> None:
    """Raises: RequestTooLargeError for a request that would be too large however its keys were spread."""
    most, addresses = links.max_request_bytes, links.map.addresses
    if size > most * len(addresses):
        raise RequestTooLargeError(
            f"expected {what} of at most {most} bytes a shard, got {size} bytes for {len(addresses)} shards "
            f"(at {_named(addresses)}); use a smaller batch"
        )


def check_parts(parts: Iterable[ExchangePart], dtype: WireDtype, links: ClusterLinks) -> None:
    """Raises: RequestTooLargeError for the part of one shard, so that no other shard applies a push that it refuses."""
    most = links.max_request_bytes
    for part in parts:
        if part.push is not None and (size := push_bytes(part.push, dtype)) > most:
            raise RequestTooLargeError(
                f"{links.link(part.shard).name}: expected a push of at most {most} bytes, got {size} bytes of its "
                "own keys; use a smaller batch"
            )


def _named(addresses: Sequence[str]) -> str:
    return ", ".join(addresses[:NAMED_PEERS]) + ", …" * (len(addresses) > NAMED_PEERS)
