"""`embershard shard`: one parameter-server shard, served until it is told to stop."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer


def shard(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="host:port or unix:/path (else --cluster or $EMBERSHARD_CLUSTER say it), then options of the shard: "
            "durability=log folder=… threads=2 security.tls_certificate=… The token comes from $EMBERSHARD_TOKEN.",
            metavar="[ADDRESS] [key=value]...",
        ),
    ] = None,
    cluster: Annotated[Path | None, typer.Option("--cluster", help="Cluster file, YAML or JSON.")] = None,
    index: Annotated[int | None, typer.Option("--index", help="Which shard of the cluster this is.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen where other machines can reach it, without TLS and token.")
    ] = False,
    stop_with_stdin: Annotated[
        bool, typer.Option("--stop-with-stdin", help="Also stop at the end of standard input.")
    ] = False,
) -> None:
    """Serve one shard: rows of its tablets over gRPC, until SIGTERM."""
    from ..feature_map.config_file import validate
    from ..ps_server.cluster_spec import ClusterSpec, load_cluster
    from ..ps_server.security import token_of_environment
    from ..ps_server.server import ShardOptions, serve
    from .overrides import apply_overrides

    address, *overrides = words if words and "=" not in words[0] else [None, *(words or ())]
    if address is not None:
        spec = validate(ClusterSpec, {"shards": [address]}, f"shard {address}")
        index = 0 if index is None else index
    else:
        spec, task = load_cluster(cluster)
        index = (task.index if task is not None else 0) if index is None else index
    security = {"insecure": insecure, "token": token_of_environment()}
    data = {"spec": spec, "index": index, "security": security}
    options = validate(ShardOptions, apply_overrides(data, [str(word) for word in overrides]), "embershard shard")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    if stop_with_stdin:
        threading.Thread(target=_stop_at_end_of_stdin, name="stdin", daemon=True).start()
    serve(options)


def _stop_at_end_of_stdin() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
