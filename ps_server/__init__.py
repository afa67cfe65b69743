"""Tablets on shards: the store, its wire and its processes."""

from .client import connect
from .cluster_spec import ClusterSpec, ClusterTask, load_cluster
from .errors import (
    AccessDeniedError,
    DurabilityError,
    GenerationError,
    LostRowsError,
    RequestTooLargeError,
    SharedStoreNeededError,
    StoreClosedError,
    StoreUnavailableError,
    WireFormatError,
    WrongPeerError,
    WrongShardError,
)
from .local_store import LocalStore
from .remote_store import RemoteStore
from .security import ClientSecurity, ServerSecurity
from .server import ShardOptions, ShardServer, serve
from .shard import Shard, StalenessLimit
from .shard_link import Patience
from .shard_status import ShardStatus
from .wire_values import WireFormat

__all__ = [
    "AccessDeniedError",
    "ClientSecurity",
    "ClusterSpec",
    "ClusterTask",
    "DurabilityError",
    "GenerationError",
    "LocalStore",
    "LostRowsError",
    "Patience",
    "RemoteStore",
    "RequestTooLargeError",
    "ServerSecurity",
    "Shard",
    "ShardOptions",
    "ShardServer",
    "ShardStatus",
    "SharedStoreNeededError",
    "StalenessLimit",
    "StoreClosedError",
    "StoreUnavailableError",
    "WireFormat",
    "WireFormatError",
    "WrongPeerError",
    "WrongShardError",
    "connect",
    "load_cluster",
    "serve",
]
