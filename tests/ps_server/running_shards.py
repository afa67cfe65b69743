"""Shards served in this process, on Unix sockets or loopback ports."""

from __future__ import annotations

import contextlib

from embershard.embedding.reference import ReferenceTableGroup
from embershard.ps_server.client import connect
from embershard.ps_server.cluster_spec import ClusterSpec
from embershard.ps_server.server import ShardOptions, ShardServer


def make_spec(folder, shards=1, tablet_bits=4, name="test"):
    """A cluster on Unix sockets in `folder`."""
    sockets = tuple(f"unix:{folder}/{name}-{index}.sock" for index in range(shards))
    return ClusterSpec(name=name, shards=sockets, tablet_bits=tablet_bits)


@contextlib.contextmanager
def running_shards(spec, tables=ReferenceTableGroup, **options):
    """The servers of a cluster, stopped at the end."""
    servers = []
    try:
        for index in range(len(spec.shards)):
            made = ShardOptions(spec=spec, index=index, **options)
            servers.append(ShardServer(made, tables(spec.tablet_bits)).start())
        yield servers
    finally:
        for server in servers:
            server.stop(1.0)


@contextlib.contextmanager
def remote_store(folder, shards=1, tablet_bits=4, tables=ReferenceTableGroup, **options):
    """A store over shards that run as long as the block."""
    spec = make_spec(folder, shards, tablet_bits)
    with running_shards(spec, tables), connect(spec.shards[0], **options) as store:
        yield store
