"""The `store:` section: where the rows live."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag


class _Store(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class LocalStoreConfig(_Store):
    """Rows in the training process.

    tablet_bits: the key space is cut into 2^tablet_bits ranges.   threads: of the native tables.
    """

    kind: Literal["local"] = "local"
    tablet_bits: int = Field(default=8, ge=0, le=16)
    threads: int = Field(default=1, ge=1, le=256)


class ClusterStoreConfig(_Store):
    """Rows on shards of this machine that the run starts and ends itself, or on those of a running cluster.

    shards, tablet_bits, transport, durability, log_limit_bytes, threads, max_staleness, staleness_lr: of the shards
    that are started; see `FleetConfig`.
    address:    of a running cluster: a cluster file, or addresses of shards with commas; nothing is started then.
    wire_dtype: floats on the wire.
    compression: of large messages.
    """

    kind: Literal["cluster"] = "cluster"
    shards: int = Field(default=1, ge=1, le=1024)
    tablet_bits: int = Field(default=8, ge=0, le=16)
    transport: Literal["unix", "tcp"] = "unix"
    durability: Literal["none", "log", "fsync"] = "none"
    log_limit_bytes: int | None = Field(default=None, ge=1 << 20)
    threads: int = Field(default=1, ge=1, le=256)
    max_staleness: int | None = Field(default=None, ge=0)
    staleness_lr: float = Field(default=0.5, gt=0, le=1)
    address: str | None = None
    wire_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    compression: Literal["none", "zstd"] = "none"


def _kind(value: object) -> str:
    kind = value.get("kind", "local") if isinstance(value, dict) else getattr(value, "kind", "local")
    return str(kind)


StoreConfig = Annotated[
    Annotated[LocalStoreConfig, Tag("local")] | Annotated[ClusterStoreConfig, Tag("cluster")], Discriminator(_kind)
]
"""The store section, by `kind`: local (the default) or cluster."""
