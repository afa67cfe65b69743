"""The `store:` section: where the rows live."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from ..ps_server.cluster_spec import check_shards
from ..ps_server.gradient_guard import GuardOptions
from ..ps_server.shard_link import MAX_SECONDS, MIN_SECONDS


class _Store(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class LocalStoreConfig(_Store):
    """Rows in the training process.

    tablet_bits: the key space is cut into 2^tablet_bits ranges.   threads: of the native tables.
    guard:       looks at each push before it is made; see `GuardOptions`. Without it rows that are not finite are
                 refused by the tables, and nothing else is.
    """

    kind: Literal["local"] = "local"
    tablet_bits: int = Field(default=8, ge=0, le=16)
    threads: int = Field(default=1, ge=1, le=256)
    guard: GuardOptions | None = None


class StoreSecurityConfig(_Store):
    """What the run brings to the shards of a running cluster; see `ClientSecurity`.

    token_file: file with the bearer token, on a line of its own. Without it the token is $EMBERSHARD_TOKEN, if that is
    set. The token itself has no place here: run folders and checkpoints keep the configuration.
    """

    tls_ca: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_server_name: str | None = None
    token_file: Path | None = None
    insecure: bool = False

    @model_validator(mode="after")
    def _check(self) -> StoreSecurityConfig:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("expected tls_certificate and tls_key together, got one of them")
        if self.tls_ca is None and (self.tls_certificate is not None or self.tls_server_name is not None):
            raise ValueError("expected tls_ca with tls_certificate and tls_server_name, got none")
        return self


class ClusterStoreConfig(_Store):
    """Rows on shards of this machine that the run starts and ends itself, or on those of a running cluster.

    shards, tablet_bits, transport, durability, log_limit_bytes, threads, max_staleness, staleness_lr: of the shards
    that are started; see `FleetConfig`. A running cluster has its own.
    address:    of a running cluster: a cluster file, or addresses of shards with commas; nothing is started then.
    cluster:    its name; another cluster at the address is refused. A cluster file says it too.
    security:   TLS and token for it.
    connect_seconds, call_seconds: how long the first answer, and any call with its retries, may take.
    wire_dtype: floats on the wire.
    compression: of large messages.
    guard:      looks at each push before it leaves; see `GuardOptions`.
    shared_memory: large arrays go to shards on this machine through memory that both map, not through the socket.
    """

    kind: Literal["cluster"] = "cluster"
    shards: int = Field(default=1, ge=1, le=1024)
    tablet_bits: int = Field(default=8, ge=0, le=16)
    transport: Literal["unix", "tcp"] = "unix"
    durability: Literal["none", "log", "fsync"] = "none"
    log_limit_bytes: int | None = Field(default=None, ge=1 << 20)
    threads: int | None = Field(default=None, ge=1, le=256)
    max_staleness: int | None = Field(default=None, ge=0)
    staleness_lr: float = Field(default=0.5, gt=0, le=1)
    address: str | None = None
    cluster: str | None = None
    security: StoreSecurityConfig = StoreSecurityConfig()
    connect_seconds: float = Field(default=20.0, ge=MIN_SECONDS, le=MAX_SECONDS)
    call_seconds: float = Field(default=120.0, ge=MIN_SECONDS, le=MAX_SECONDS)
    wire_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    compression: Literal["none", "zstd"] = "none"
    shared_memory: bool = True
    guard: GuardOptions | None = None

    @model_validator(mode="after")
    def _check(self) -> ClusterStoreConfig:
        check_shards(self.shards, self.tablet_bits)
        ignored = _OF_RUNNING_CLUSTERS if self.address is None else _OF_STARTED_SHARDS
        for field in ignored:
            if getattr(self, field) != type(self).model_fields[field].default:
                how = "with an address" if self.address is None else "without one"
                raise ValueError(f"expected {field} only {how}, got address {self.address!r} and {field} set")
        return self


_OF_RUNNING_CLUSTERS = ("cluster", "security")
_OF_STARTED_SHARDS = (
    "shards",
    "tablet_bits",
    "transport",
    "durability",
    "log_limit_bytes",
    "threads",
    "max_staleness",
    "staleness_lr",
)


def _kind(value: object) -> str:
    kind = value.get("kind", "local") if isinstance(value, dict) else getattr(value, "kind", "local")
    return str(kind)


StoreConfig = Annotated[
    Annotated[LocalStoreConfig, Tag("local")] | Annotated[ClusterStoreConfig, Tag("cluster")], Discriminator(_kind)
]
"""The store section, by `kind`: local (the default) or cluster."""
