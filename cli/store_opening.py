"""Opens the store of a configuration: in this process, on shards started for it, or on a running cluster."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..cluster.shard_fleet import FleetConfig, ShardFleet
from ..cluster.supervisor import LOG_FOLDER
from ..embedding.store import EmbeddingStore
from ..ps_server import LocalStore
from ..ps_server.client import connect
from ..ps_server.cluster_spec import load_cluster
from ..ps_server.security import ClientSecurity, token_of_environment
from ..ps_server.shard_link import Patience
from ..ps_server.wire_values import WireFormat
from .console import note
from .errors import EXIT_BAD_INPUT, exit_code
from .stop_signals import StoppedError, why_stop
from .store_config import ClusterStoreConfig, LocalStoreConfig, StoreSecurityConfig


@contextmanager
def opened_store(config: LocalStoreConfig | ClusterStoreConfig) -> Iterator[EmbeddingStore]:
    """The store, empty unless it is a running cluster's; closed at the end, with the shards that were started for it.

    Shards that were started live in a folder of their own, which is removed when all went well, the input was bad, or
    the run was stopped, and named otherwise; where this process is killed, their supervisor removes it."""
    if isinstance(config, LocalStoreConfig):
        with LocalStore(config.tablet_bits, config.threads, guard=config.guard) as local:
            yield local
    elif config.address is not None:
        addresses, name = _running_cluster(config.address)
        security = _security(config.security, addresses[0])
        yield from _connected(config, addresses, config.cluster or name, security, why_stop)
    else:
        folder = Path(tempfile.mkdtemp(prefix="embershard-"))
        fleet = ShardFleet(folder)
        try:
            fleet_config = FleetConfig(**config.model_dump(include=set(FleetConfig.model_fields)))
            spec = fleet.start(fleet_config, attached=True, removed_with_owner=True)
            try:
                # The shards have taken the token from this process's environment, if there is one.
                security = _security(config.security, spec.shards[0])

                def why_stop_waiting() -> str | None:
                    return why_stop() or (
                        None if fleet.cluster.is_running() else "the supervisor of the shards has ended"
                    )

                yield from _connected(config, spec.shards, spec.name, security, why_stop_waiting)
            finally:
                if fleet.cluster.is_running():
                    fleet.stop()
        except BaseException as error:
            is_silent = not any(log.stat().st_size for log in (folder / LOG_FOLDER).glob("*"))
            is_no_failure = isinstance(error, KeyboardInterrupt | StoppedError) or exit_code(error) == EXIT_BAD_INPUT
            if is_no_failure or is_silent:
                shutil.rmtree(folder)
            else:
                for push_log in folder.glob("shard-*/"):  # nobody goes on from it, and it may have filled the disk
                    shutil.rmtree(push_log, ignore_errors=True)
                note(f"what the shards said is in {folder / LOG_FOLDER}")
            raise
        shutil.rmtree(folder)


def _connected(
    config: ClusterStoreConfig,
    addresses: tuple[str, ...],
    cluster: str,
    security: ClientSecurity,
    why_stop: Callable[[], str | None],
) -> Iterator[EmbeddingStore]:
    store = connect(
        addresses,
        cluster=cluster,
        security=security,
        wire=WireFormat(config.wire_dtype, config.compression),
        patience=Patience(call_seconds=config.call_seconds, connect_seconds=config.connect_seconds, why_stop=why_stop),
        shared_memory=config.shared_memory,
        guard=config.guard,
    )
    try:
        yield store
    finally:
        store.close()


def _running_cluster(address: str) -> tuple[tuple[str, ...], str]:
    """Addresses of shards, and the cluster's name where a cluster file says it, else ""."""
    if address.endswith((".yaml", ".yml", ".json")):
        spec = load_cluster(address)[0]
        return spec.shards, spec.name
    return tuple(part.strip() for part in address.split(",")), ""


def _security(config: StoreSecurityConfig, address: str) -> ClientSecurity:
    """What the run brings to the shard at `address`. Raises: FileNotFoundError, ValueError for a token file without
    a token."""
    token = token_of_environment()
    if config.token_file is not None:
        try:
            token = config.token_file.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            problem = f"expected a file with the token to reach {address} as token_file, got none"
            raise FileNotFoundError(errno.ENOENT, problem, str(config.token_file)) from None
        if not token or len(token.split()) != 1:
            raise ValueError(f"expected one token to reach {address} in file {config.token_file}, got none or several")
    return ClientSecurity(token=token, **config.model_dump(exclude={"token_file"}))
