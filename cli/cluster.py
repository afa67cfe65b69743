"""`embershard cluster`: shards on this machine, started, looked at and taken down."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import note, print_json, say, say_table

if TYPE_CHECKING:
    from ..cluster.shard_fleet import ShardFleet

DEFAULT_FOLDER = Path("runs/cluster")

app = typer.Typer(help="Shards on this machine: up, status, down.", no_args_is_help=True, rich_markup_mode=None)

Folder = Annotated[Path, typer.Option("--folder", help="Where spec, logs and push logs of the cluster are.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


@app.command("up")
def up(
    options: Annotated[
        list[str] | None,
        typer.Argument(help="durability=log, threads=2, transport=tcp …", metavar="[key=value]..."),
    ] = None,
    shards: Annotated[int, typer.Option("--shards", help="How many shards.")] = 1,
    folder: Folder = DEFAULT_FOLDER,
    as_json: Json = False,
) -> None:
    """Start shards in the background and keep them running; returns when all of them answer."""
    from ..cluster.shard_fleet import FleetConfig, ShardFleet
    from ..feature_map.config_file import validate
    from .overrides import apply_overrides

    config = validate(FleetConfig, apply_overrides({"shards": shards}, options or ()), "embershard cluster up")
    fleet = ShardFleet(folder)
    spec = fleet.start(config)
    if as_json:
        print_json({"folder": str(folder), "cluster": spec.name, "shards": list(spec.shards)})
        return
    say(f"{len(spec.shards)} shards of cluster {spec.name} are up:")
    for address in spec.shards:
        say(f"  {address}")
    quoted = shlex.quote(str(folder))
    say(f"train:   embershard train CONFIG store.kind=cluster store.address={shlex.quote(str(fleet.spec_path))}")
    say(f"look:    embershard cluster status --folder {quoted}")
    say(f"end:     embershard cluster down --folder {quoted}")


@app.command("status")
def status(folder: Folder = DEFAULT_FOLDER, as_json: Json = False) -> None:
    """Say how the shards are: processes, rows, bytes, pulls and pushes."""
    from ..cluster.shard_fleet import ShardFleet

    facts = _status_facts(ShardFleet(folder))
    if as_json:
        print_json(facts)
        return
    say(f"cluster {facts['cluster']} in {folder}")
    columns = list(dict.fromkeys(name for row in facts["shards"] for name in row))
    say_table(columns, [[row.get(column) for column in columns] for row in facts["shards"]])


@app.command("down")
def down(folder: Folder = DEFAULT_FOLDER, as_json: Json = False) -> None:
    """Drain and end the shards; logs and push logs stay."""
    from ..cluster.shard_fleet import ShardFleet

    ShardFleet(folder).stop()
    if as_json:
        print_json({"folder": str(folder), "stopped": True})
    else:
        note(f"the cluster in {folder} is down")


def _status_facts(fleet: ShardFleet) -> dict[str, Any]:
    from ..cluster.fleet_status import fleet_status
    from ..ps_server.security import token_of_environment

    shards = fleet_status(fleet, token=token_of_environment())
    pulled = [0 if shard.status is None else int(shard.status.pulled_keys_by_tablet.sum()) for shard in shards]
    total = max(sum(pulled), 1)
    rows = []
    for shard, keys in zip(shards, pulled, strict=True):
        row: dict[str, Any] = {
            "shard": shard.index,
            "state": shard.state,
            "pid": shard.pid,
            "restarts": shard.restarts,
            "last_exit": shard.last_exit,
            "address": shard.address,
            "tablets": shard.tablets,
        }
        if (said := shard.status) is not None:
            row |= {
                "durability": said.durability,
                "uptime_seconds": round(said.uptime_seconds),
                "rows": said.rows,
                "row_bytes": said.row_bytes,
                "resident_bytes": said.resident_bytes,
                "log_bytes": said.log_bytes,
                "pulls": said.pulls,
                "pushes": said.pushes,
                "duplicates": said.duplicates,
                "pulls_per_second": shard.pulls_per_second,
                "pushes_per_second": shard.pushes_per_second,
                "cpu_share": shard.cpu_share,
                "received_bytes": said.received_bytes,
                "sent_bytes": said.sent_bytes,
                "load_share": keys / total,
                "hottest_tablet": int(said.pulled_keys_by_tablet.argmax()),
                "hottest_tablet_share": int(said.pulled_keys_by_tablet.max(initial=0)) / total,
            }
        rows.append(row)
    return {"folder": str(fleet.folder), "cluster": fleet.spec().name, "shards": rows}
