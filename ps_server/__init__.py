"""Tablets on shards: the store, its wire and its processes."""

from .errors import GenerationError, SharedStoreNeededError, StoreClosedError, WrongShardError
from .local_store import LocalStore
from .shard import Shard, StalenessLimit

__all__ = [
    "GenerationError",
    "LocalStore",
    "Shard",
    "SharedStoreNeededError",
    "StalenessLimit",
    "StoreClosedError",
    "WrongShardError",
]
