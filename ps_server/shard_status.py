"""What a shard says of itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from . import parameter_server_pb2 as pb
from .wire import NormSummary
from .wire_calls import parse


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """Load and resources of one shard since it started.

    pushes_by_tablet (2^t,) uint64; pulled_keys_by_tablet, pushed_keys_by_tablet (2^t,) int64, estimated from sampled
    calls.
    gradient_norms: running norm of each table over the pushes of all workers.
    """

    shard: int
    address: str
    cluster: str
    generation: int
    epoch: int
    durability: str
    uptime_seconds: float
    rows: int
    row_bytes: int
    resident_bytes: int
    cpu_seconds: float
    received_bytes: int
    sent_bytes: int
    pulls: int
    pushes: int
    duplicates: int
    log_bytes: int
    pushes_by_tablet: npt.NDArray[np.uint64]
    pulled_keys_by_tablet: npt.NDArray[np.int64]
    pushed_keys_by_tablet: npt.NDArray[np.int64]
    gradient_norms: dict[str, NormSummary]


def decode_status(data: bytes, address: str) -> ShardStatus:
    """The status in a shard's reply."""
    reply = parse(data, pb.StatusReply())
    return ShardStatus(
        reply.shard,
        address,
        reply.cluster,
        reply.generation,
        reply.epoch,
        reply.durability,
        reply.uptime_seconds,
        reply.rows,
        reply.row_bytes,
        reply.resident_bytes,
        reply.cpu_seconds,
        reply.received_bytes,
        reply.sent_bytes,
        reply.pulls,
        reply.pushes,
        reply.duplicates,
        reply.log_bytes,
        np.frombuffer(reply.pushes_by_tablet, np.uint64),
        np.frombuffer(reply.pulled_keys_by_tablet, np.int64),
        np.frombuffer(reply.pushed_keys_by_tablet, np.int64),
        {norm.table: NormSummary(norm.mean, norm.deviation, norm.pushes) for norm in reply.norms},
    )
