"""Tells the shards of a cluster when a checkpoint begins and what is in it, so that they can trim their push logs."""

from __future__ import annotations

import logging
import secrets

import numpy as np

from ..embedding.store import TakenSnapshots
from . import parameter_server_pb2 as pb
from .cluster_links import ClusterLinks
from .errors import CheckpointNotBegunError
from .shard_calls import ShardCalls

_log = logging.getLogger(__name__)


def begin_checkpoint(calls: ShardCalls) -> int:
    """Number of the checkpoint that every shard takes from here on; never the same twice, never 0."""
    number = secrets.randbits(63) | 1
    calls.everywhere("BeginCheckpoint", lambda header: pb.BeginCheckpointRequest(header=header, number=number))
    return number


def commit_checkpoint(links: ClusterLinks, checkpoint: str, taken: TakenSnapshots | None) -> bool:
    """Whether every shard goes on from `checkpoint`; see `EmbeddingStore.commit_checkpoint`."""
    number = 0 if taken is None else taken.number
    positions = np.full(1 << links.map.tablet_bits, -1) if taken is None else taken.positions
    is_everywhere = True
    for shard in range(links.map.shards):
        link = links.link(shard)
        request = pb.CommitCheckpointRequest(
            header=link.header, checkpoint=checkpoint, number=number, positions=positions.astype("<i8").tobytes()
        )
        try:
            link.call("CommitCheckpoint", request.SerializeToString())
        except CheckpointNotBegunError as error:
            is_everywhere = False
            if taken is not None:
                _log.warning("checkpoint %s: push log kept until the next one: %s", checkpoint, error)
    return is_everywhere
