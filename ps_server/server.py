"""ShardServer: one parameter-server process's shell of sockets, health, metrics and files around a shard."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import IO, Literal
from wsgiref.simple_server import WSGIServer

import grpc
import prometheus_client
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..embedding.table_group import TableGroup
from .allocator import keep_large_buffers
from .channel_options import server_options
from .cluster_spec import ClusterSpec, is_local
from .durable_shard import DurableShard
from .incarnation import incarnation_of
from .push_log_files import DiskFolder
from .push_log_writer import NO_ROOM, LogLimits
from .security import ServerSecurity, TokenCheck
from .service import ParameterServerService, ShardIdentity
from .service_name import SERVICE
from .shard import Shard, StalenessLimit
from .shard_metrics import ShardMetrics
from .shard_recovery import recover
from .tablet_map import TabletMap
from .wire import cluster_hash

LOAD_SAMPLING = 16
MOST_DEFAULT_THREADS = 8
ANNOUNCE_SECONDS = 2.0
"""Between tries to write the ready file while the disk is full."""

_log = logging.getLogger(__name__)


class ShardOptions(BaseModel):
    """How one shard is served.

    folder:       where its push log lives; needed unless durability is `none`.
    durability:   `none`: rows live as long as the process; `log`: they survive the process; `fsync`: the machine too.
    threads:      of the tables, for one push or pull; None: this machine's CPUs by the number of its shards, at most 8.
    workers:      calls that run at once, and as many more of clients on this machine that have a doorbell.
    metrics_port: of the Prometheus endpoint on loopback (0: any free port), None for none.
    ready_file:   JSON of addresses, pid and shard, written when the shard answers and removed at a clean stop.
    max_request_bytes: of one call, chunked or not.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    spec: ClusterSpec
    index: int = Field(default=0, ge=0)
    folder: Path | None = None
    durability: Literal["none", "log", "fsync"] = "none"
    log_limit_bytes: int | None = Field(default=None, ge=1 << 20)
    threads: int | None = Field(default=None, ge=1, le=256)
    workers: int = Field(default=16, ge=1, le=1024)
    security: ServerSecurity = ServerSecurity()
    max_staleness: int | None = Field(default=None, ge=0)
    staleness_lr: float = Field(default=0.5, gt=0, le=1)
    max_request_bytes: int = Field(default=1 << 30, ge=1 << 20, le=1 << 31)
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    ready_file: Path | None = None

    @model_validator(mode="after")
    def _check(self) -> ShardOptions:
        if self.index >= len(self.spec.shards):
            raise ValueError(f"expected a shard index below {len(self.spec.shards)}, got {self.index}")
        if self.durability != "none" and self.folder is None:
            raise ValueError(f"expected a folder for durability {self.durability}, got none")
        self.security.check_address(self.spec.shards[self.index])
        return self


class ShardServer:
    """One shard, served. `start` returns once it answers; `stop` drains it.

    Raises: OSError naming the address if somebody else listens there.
    Thread safety: `start` and `stop` from one thread; calls are answered on threads of the server's own.
    """

    def __init__(self, options: ShardOptions, tables: TableGroup | None = None) -> None:
        """tables: another table group than the native one, for tests."""
        keep_large_buffers()
        self.options = options
        spec = options.spec
        if tables is None:
            from ..embedding.native_table_group import NativeTableGroup

            threads = options.threads or default_threads(spec, options.index)
            tables = NativeTableGroup(spec.tablet_bits, threads)
        staleness = (
            None if options.max_staleness is None else StalenessLimit(options.max_staleness, options.staleness_lr)
        )
        self.map = spec.first_map()
        shard = Shard(
            tables,
            owned=self.map.tablets_of(options.index),
            epoch=self.map.epoch,
            staleness=staleness,
            load_sampling=LOAD_SAMPLING,
        )
        self.shard = shard
        self._files = contextlib.ExitStack()
        self._durable = open_durable_shard(shard, options, self._files)
        incarnation = incarnation_of(options.folder, options.durability)
        identity = ShardIdentity(spec.name, options.index, incarnation, options.durability, version("embershard"))
        self.metrics = ShardMetrics(shard, lambda: self._durable.log_bytes)
        self.service = ParameterServerService(
            self._durable, identity, self.map, self.metrics, options.max_request_bytes, options.workers
        )
        self._pool = ThreadPoolExecutor(options.workers, thread_name_prefix="call")
        interceptors: list[grpc.ServerInterceptor] = (
            [] if options.security.token is None else [TokenCheck(options.security.token)]
        )
        self._server = grpc.server(self._pool, interceptors=interceptors, options=server_options())
        self._server.add_generic_rpc_handlers((self.service.handler(),))
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)
        self._exporter: WSGIServer | None = None
        self._socket_lock: IO[str] | None = None
        self.address = spec.shards[options.index]
        self.metrics_address: str | None = None
        self.is_announced = False

    def start(self) -> ShardServer:
        """Listen and answer."""
        self.address = self.service.address = self._bind(self.address)
        if self.address != self.options.spec.shards[self.options.index]:
            addresses = list(self.map.addresses)
            addresses[self.options.index] = self.address
            self.map = TabletMap(self.map.epoch, self.map.tablet_bits, tuple(addresses), self.map.owners)
            self.service.tablet_map = self.map
        if self.options.metrics_port is not None:
            self._exporter, _ = prometheus_client.start_http_server(
                self.options.metrics_port, "127.0.0.1", self.metrics.registry
            )
            self.metrics_address = f"127.0.0.1:{self._exporter.server_port}"
        self._server.start()
        for name in ("", SERVICE):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self.announce()
        _log.info("shard %d of %s answers at %s", self.options.index, self.options.spec.name, self.address)
        return self

    def announce(self) -> None:
        """Write the ready file, if there is to be one; on a full disk `is_announced` stays false. Raises: OSError."""
        path = self.options.ready_file
        document = {
            "shard": self.options.index,
            "cluster": self.options.spec.name,
            "address": self.address,
            "metrics": self.metrics_address,
            "pid": os.getpid(),
        }
        try:
            if path is not None:
                DiskFolder(path.parent).replace(path.name, json.dumps(document).encode())
            self.is_announced = True
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            _log.warning("shard %d: no ready file yet: %s (%s)", self.options.index, error.strerror, path)

    def adopt(self, tablet_map: TabletMap, generation: int) -> None:
        """Own what the map says, in this generation."""
        self.service.adopt(tablet_map, generation)
        self.map = tablet_map

    def stop(self, grace_seconds: float = 10.0) -> None:
        """Refuse new calls, let running ones end (at most `grace_seconds`), flush the log, let go of everything."""
        self._health.enter_graceful_shutdown()
        drained = self._server.stop(grace_seconds)
        self.service.doorbells.stop(grace_seconds)
        drained.wait()
        self._pool.shutdown()
        self._durable.close()
        self._files.close()
        if self._exporter is not None:
            self._exporter.shutdown()
            self._exporter.server_close()
        if self.options.ready_file is not None:
            self.options.ready_file.unlink(missing_ok=True)
        if self._socket_lock is not None:
            for path in (self.address[len("unix:") :], self._socket_lock.name):
                Path(path).unlink(missing_ok=True)
            self._socket_lock.close()
        _log.info("shard %d of %s drained and stopped", self.options.index, self.options.spec.name)

    def _bind(self, address: str) -> str:
        if address.startswith("unix:"):
            self._socket_lock = _claim_socket(Path(address[len("unix:") :]))
        else:
            _check_free(address)
        credentials = self.options.security.credentials()
        try:
            if credentials is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise OSError(f"expected to listen at {address}, got: {error}") from None
        if port == 0:
            raise OSError(f"expected to listen at {address}, got refused: is another server there?")
        if address.startswith("unix:"):
            return address
        return f"{address.rpartition(':')[0]}:{port}"


def default_threads(spec: ClusterSpec, index: int) -> int:
    """Table threads for a shard that has its share of this machine's CPUs.

    Its client mostly waits while it works, and a large pull or push is 1.7 to 1.8 times as fast on two threads."""
    hosts = ["" if is_local(address) else address.rpartition(":")[0] for address in spec.shards]
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(max(usable // hosts.count(hosts[index]), 1), MOST_DEFAULT_THREADS)


def serve(options: ShardOptions) -> None:
    """Serve one shard until SIGTERM or SIGINT, then drain it. Main thread only.

    Raises: PushLogFailedError, after draining, when the shard has to be started again from its push log."""
    server = ShardServer(options)
    stopping = server.service.stopping
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        server.start()
        while not server.is_announced and not stopping.wait(ANNOUNCE_SECONDS):
            server.announce()
        stopping.wait()
    finally:
        server.stop()
    if server.service.failure is not None:
        raise server.service.failure


def open_durable_shard(shard: Shard, options: ShardOptions, files: contextlib.ExitStack) -> DurableShard:
    """The shard as its push log left it; without a log for durability `none`. `files` holds the folder's lock."""
    if options.durability == "none" or options.folder is None:
        return DurableShard(shard)
    folder = DiskFolder(options.folder / "push_log")
    files.enter_context(folder.lock())
    durable, found = recover(
        shard,
        folder,
        shard_number=options.index,
        cluster=cluster_hash(options.spec.name),
        durability=options.durability,
        limits=LogLimits(log_bytes=options.log_limit_bytes),
    )
    if found.end:
        _log.info(
            "shard %d: %d records replayed on %s", options.index, found.replayed, found.checkpoint or "an empty shard"
        )
    for repair in found.repairs:
        _log.warning("shard %d: push log: %s", options.index, repair)
    return durable


def _claim_socket(path: Path) -> IO[str]:
    # gRPC removes a socket file that is in its way, even a live one; the lock keeps two servers off one path.
    if path.exists() and not path.is_socket():
        raise FileExistsError(f"expected a socket or nothing at unix:{path} to listen, got something else there")
    path.parent.mkdir(parents=True, exist_ok=True)
    lock_path = path.with_name(path.name + ".lock")
    while True:
        lock = open(lock_path, "w", encoding="ascii")  # noqa: SIM115
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # One that ended meanwhile may have removed the file that was opened: then it keeps nobody off.
            if os.path.samestat(os.fstat(lock.fileno()), lock_path.stat()):
                return lock
        except BlockingIOError:
            lock.close()
            raise OSError(f"expected to listen at unix:{path}, got refused: another server is there") from None
        except FileNotFoundError:
            pass
        lock.close()


def _check_free(address: str) -> None:
    """Raises: OSError with the system's reason, which gRPC keeps to itself."""
    host, _, port = address.rpartition(":")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        raise OSError(f"expected to listen at {address}, got: {error.strerror or error}") from None
