"""Cluster spec: which shards there are and where; from flags, a YAML or JSON file, or EMBERSHARD_CLUSTER."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from ..feature_map.config_file import parse_yaml, read_yaml, validate
from ..feature_map.errors import ConfigError
from .tablet_map import TabletMap
from .tablets import MAX_TABLET_BITS

CLUSTER_VARIABLE = "EMBERSHARD_CLUSTER"
NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}$"


class _Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ClusterSpec(_Spec):
    """Name and shards of a cluster.

    name:        told apart in every call, so that a client never talks to another job's server.
    shards:      address of each shard, `host:port` or `unix:/path`, by shard number.
    coordinator: address of the coordinator, if the cluster has one.
    tablet_bits: the key space is cut into 2^tablet_bits tablets; fixed for the life of the cluster.
    """

    name: str = Field(default="embershard", pattern=NAME_PATTERN)
    shards: tuple[str, ...] = Field(min_length=1)
    coordinator: str | None = None
    tablet_bits: int = Field(default=8, ge=0, le=MAX_TABLET_BITS)

    @field_validator("shards")
    @classmethod
    def _check_shards(cls, shards: tuple[str, ...]) -> tuple[str, ...]:
        checked = tuple(check_address(address) for address in shards)
        fixed = [address for address in checked if not address.endswith(":0")]
        if len(set(fixed)) != len(fixed):
            raise ValueError(f"expected distinct addresses, got {list(checked)}")
        return checked

    @model_validator(mode="after")
    def _check_map(self) -> ClusterSpec:
        check_shards(len(self.shards), self.tablet_bits)
        return self

    def first_map(self) -> TabletMap:
        """The tablet map that a cluster without a coordinator has: equal runs of tablets, epoch 1."""
        return TabletMap.even(self.shards, self.tablet_bits)


class ClusterTask(_Spec):
    """Which role of the cluster this process is."""

    type: Literal["coordinator", "shard", "worker"]
    index: int = Field(default=0, ge=0)


class _ClusterDocument(_Spec):
    cluster: ClusterSpec
    task: ClusterTask | None = None


def load_cluster(source: str | os.PathLike[str] | None = None) -> tuple[ClusterSpec, ClusterTask | None]:
    """Cluster and task from a YAML or JSON file, or from $EMBERSHARD_CLUSTER (JSON text) if `source` is None.

    The document is `{"cluster": {"name": …, "shards": […]}, "task": {"type": "shard", "index": 0}}`.
    Raises: ConfigError that names the source and what is wrong in it."""
    if source is None:
        place, text = f"${CLUSTER_VARIABLE}", os.environ.get(CLUSTER_VARIABLE)
        if text is None:
            raise ConfigError(f"expected a cluster file or ${CLUSTER_VARIABLE}, got neither")
        document = parse_yaml(text, place)  # JSON is YAML
    else:
        place, document = str(source), read_yaml(Path(source))
    parsed = validate(_ClusterDocument, document, place)
    if parsed.task is not None and parsed.task.type == "shard" and parsed.task.index >= len(parsed.cluster.shards):
        raise ConfigError(
            f"{place}: expected a shard index below {len(parsed.cluster.shards)}, got {parsed.task.index}"
        )
    return parsed.cluster, parsed.task


def check_shards(shards: int, tablet_bits: int) -> None:
    """Raises: ValueError for more shards than there are tablets."""
    if shards > 1 << tablet_bits:
        raise ValueError(f"expected at most {1 << tablet_bits} shards (2^tablet_bits), got {shards}")


def check_address(address: str) -> str:
    """`address`, if it is `host:port`, `[ipv6]:port` or `unix:/absolute/path`. Raises: ValueError."""
    if address.startswith("unix:"):
        path = address[len("unix:") :]
        if not path.startswith("/") or len(path.encode()) > 100:
            raise ValueError(f"expected unix:/path of at most 100 bytes, got {address!r}")
        return address
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"expected host:port or unix:/path, got {address!r}")
    return address


def is_local(address: str) -> bool:
    """Whether only this machine can reach the address: a Unix socket or a loopback host."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
