"""Opens the store of a configuration: in this process, on shards started for it, or on a running cluster."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..cluster.shard_fleet import FleetConfig, ShardFleet
from ..embedding.store import EmbeddingStore
from ..ps_server import LocalStore
from ..ps_server.client import connect
from ..ps_server.cluster_spec import load_cluster
from ..ps_server.wire_values import WireFormat
from .console import note
from .store_config import ClusterStoreConfig, LocalStoreConfig


@contextmanager
def opened_store(config: LocalStoreConfig | ClusterStoreConfig) -> Iterator[EmbeddingStore]:
    """The store, empty unless it is a running cluster's; closed at the end, with the shards that were started for it.

    Shards that were started live in a folder of their own, which is removed when all went well and named otherwise."""
    if isinstance(config, LocalStoreConfig):
        with LocalStore(config.tablet_bits, config.threads) as local:
            yield local
    elif config.address is not None:
        yield from _connected(config, _addresses(config.address))
    else:
        folder = Path(tempfile.mkdtemp(prefix="embershard-"))
        fleet = ShardFleet(folder)
        try:
            spec = fleet.start(FleetConfig(**config.model_dump(include=set(FleetConfig.model_fields))), attached=True)
            try:
                yield from _connected(config, spec.shards)
            finally:
                if fleet.cluster.is_running():
                    fleet.stop()
        except BaseException:
            note(f"what the shards said is in {folder / 'logs'}")
            raise
        shutil.rmtree(folder)


def _connected(config: ClusterStoreConfig, addresses: tuple[str, ...]) -> Iterator[EmbeddingStore]:
    store = connect(addresses, wire=WireFormat(config.wire_dtype, config.compression))
    try:
        yield store
    finally:
        store.close()


def _addresses(address: str) -> tuple[str, ...]:
    if address.endswith((".yaml", ".yml", ".json")):
        return load_cluster(address)[0].shards
    return tuple(part.strip() for part in address.split(","))
