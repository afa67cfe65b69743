"""Shards of a cluster on this machine: their addresses, their command lines, when they are ready."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..ps_server.cluster_spec import ClusterSpec, check_shards, load_cluster
from .local_cluster import LocalCluster
from .supervisor import write_atomically

SPEC_FILE = "cluster.yaml"
MAX_SOCKET_PATH = 100


class FleetConfig(BaseModel):
    """Shards to be started on this machine.

    transport:  `unix` sockets in the cluster's folder, or `tcp` on loopback with ports that the system chooses.
    durability, log_limit_bytes, threads, max_staleness, staleness_lr: of each shard; see `ShardOptions`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    shards: int = Field(default=1, ge=1, le=1024)
    tablet_bits: int = Field(default=8, ge=0, le=16)
    transport: Literal["unix", "tcp"] = "unix"
    durability: Literal["none", "log", "fsync"] = "none"
    log_limit_bytes: int | None = Field(default=None, ge=1 << 20)
    threads: int | None = Field(default=None, ge=1, le=256)
    max_staleness: int | None = Field(default=None, ge=0)
    staleness_lr: float = Field(default=0.5, gt=0, le=1)

    @model_validator(mode="after")
    def _check(self) -> FleetConfig:
        check_shards(self.shards, self.tablet_bits)
        return self


class ShardFleet:
    """The shards of one folder, run by a `LocalCluster`.

        folder/cluster.yaml         the cluster spec, with the addresses the shards have
        folder/shard-0/             push log of shard 0
        folder/shard-0.ready.json   while it answers: address, pid
        folder/logs/shard-0.log     what it printed

    A restarted shard comes back at the same address. Thread safety: one thread.
    """

    def __init__(self, folder: Path) -> None:
        self.cluster = LocalCluster(folder.absolute())

    @property
    def folder(self) -> Path:
        """Where all of it is."""
        return self.cluster.folder

    def start(self, config: FleetConfig, *, attached: bool = False, removed_with_owner: bool = False) -> ClusterSpec:
        """Start the shards; the spec with their addresses, once all of them answer.

        attached, removed_with_owner: see `LocalCluster.start`.
        Raises: ClusterRunningError; ClusterStartError with the last words of a shard that does not come up: the cluster
        file and the shards' folders are then as before, the logs of what was tried stay."""
        with self.cluster.starting(), self._undone_on_failure(config.shards):
            spec = ClusterSpec(name=self._name(), shards=self._addresses(config), tablet_bits=config.tablet_bits)
            self._write_spec(spec)
            commands = {f"shard-{index}": self._command(index, config) for index in range(config.shards)}
            self.cluster.start(commands, attached=attached, removed_with_owner=removed_with_owner)
            try:
                self.cluster.wait_for(lambda: all(self._ready(index) for index in range(config.shards)))
            except BaseException:
                if self.cluster.is_running():
                    self.stop()
                raise
            return spec

    @contextlib.contextmanager
    def _undone_on_failure(self, shards: int) -> Iterator[None]:
        """Where the block fails, what it wrote of the cluster is taken back."""
        before = self.spec_path.read_text(encoding="utf-8") if self.spec_path.exists() else None
        added = [place for place in map(self._shard_folder, range(shards)) if not place.exists()]
        try:
            yield
        except BaseException:
            if not self.cluster.is_running():
                for place in added:
                    shutil.rmtree(place, ignore_errors=True)
                with contextlib.suppress(OSError):  # the error that is told is the first one
                    if before is None:
                        self.spec_path.unlink(missing_ok=True)
                    else:
                        write_atomically(self.spec_path, before)
            raise

    @property
    def spec_path(self) -> Path:
        """The cluster file."""
        return self.folder / SPEC_FILE

    def spec(self) -> ClusterSpec:
        """The spec of the cluster in this folder. Raises: ConfigError, FileNotFoundError."""
        return load_cluster(self.spec_path)[0]

    def stop(self) -> None:
        """Drain and end all shards; logs and push logs stay. Raises: ClusterNotRunningError."""
        self.cluster.stop()
        for place in self._other_socket_folders():
            with contextlib.suppress(OSError):  # it was not made, or is another cluster's
                place.rmdir()

    def _other_socket_folders(self) -> tuple[Path, ...]:
        return tuple(Path(place) / f"embershard-{self._name()}" for place in (tempfile.gettempdir(), "/tmp"))

    def _command(self, index: int, config: FleetConfig) -> list[str]:
        options: dict[str, object] = {
            "folder": self._shard_folder(index),
            "durability": config.durability,
            "log_limit_bytes": config.log_limit_bytes,
            "threads": config.threads,
            "max_staleness": config.max_staleness,
            "staleness_lr": config.staleness_lr,
            "ready_file": self._ready_file(index),
        }
        words = [f"{name}={json.dumps(value, default=str)}" for name, value in options.items() if value is not None]
        where = ["--cluster", str(self.spec_path), "--index", str(index), "--stop-with-stdin"]
        return [sys.executable, "-m", "embershard.cli", "shard", *words, *where]

    def _ready(self, index: int) -> bool:
        """Whether the process that runs now has said that it answers."""
        try:
            said = json.loads(self._ready_file(index).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return False
        running = {role.name: role.pid for role in self.cluster.status()}
        return bool(running.get(f"shard-{index}") == said["pid"])

    def _shard_folder(self, index: int) -> Path:
        return self.folder / f"shard-{index}"

    def _ready_file(self, index: int) -> Path:
        return self.folder / f"shard-{index}.ready.json"

    def _name(self) -> str:
        return f"local-{hashlib.sha256(str(self.folder).encode()).hexdigest()[:12]}"

    def _addresses(self, config: FleetConfig) -> tuple[str, ...]:
        if config.transport == "tcp":
            return tuple(f"127.0.0.1:{port}" for port in _free_ports(config.shards))
        # A socket's path has to be short.
        places = (self.folder, *self._other_socket_folders())
        longest = f"shard-{config.shards}.socket.lock"
        folder = next((place for place in places if len(str(place / longest).encode()) <= MAX_SOCKET_PATH), places[-1])
        return tuple(f"unix:{folder}/shard-{index}.socket" for index in range(config.shards))

    def _write_spec(self, spec: ClusterSpec) -> None:
        document = {"cluster": spec.model_dump(mode="json", exclude_none=True)}
        write_atomically(self.spec_path, json.dumps(document, indent=2) + "\n")


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on; held together while they are chosen, so that all differ."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
