"""`embershard`: parses the command line, runs one command, turns errors into one clear message and an exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from ..models.openmp_spin import limit_openmp_spin
from . import bench, cluster, demo, evaluate, export, features, inspect_file, key, predict, shard, train
from .console import note, open_streams
from .errors import EXIT_FAILURE, describe, exit_code
from .stop_signals import StoppedError, stopping_on_signals

TRACEBACK = "--traceback"

app = typer.Typer(
    name="embershard",
    help="Sparse embeddings for CTR and recommendation models: click log in, trained rows out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
    show_traceback: Annotated[bool, typer.Option(TRACEBACK, help="Show where in the code an error came from.")] = False,
) -> None:
    if version:
        from .. import __version__

        typer.echo(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command("demo")(demo.demo)
app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("predict")(predict.predict)
app.command("export")(export.export)
app.command("inspect")(inspect_file.inspect)
app.command("key", context_settings={"ignore_unknown_options": True})(key.key)
app.command("bench")(bench.bench)
app.command("shard")(shard.shard)
app.add_typer(cluster.app, name="cluster")
app.add_typer(features.app, name="features")


def run(arguments: Sequence[str]) -> int:
    """Exit code of one command line. Nothing but results goes to stdout; errors are one message on stderr."""
    limit_openmp_spin()
    open_streams()
    words = list(arguments)
    show_traceback = TRACEBACK in words
    try:
        with stopping_on_signals():
            app(args=[word for word in words if word != TRACEBACK], prog_name="embershard")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_FAILURE
    except StoppedError as end:
        return _fail(str(end), end.exit_code)
    except Exception as error:  # the one place where every error ends
        if show_traceback:
            traceback.print_exc()
        return _fail(describe(error), exit_code(error))
    return 0


def main() -> None:
    """Run the command line of this process and leave with its exit code."""
    sys.exit(run(sys.argv[1:]))


def _fail(message: str, code: int) -> int:
    note(f"error: {message}")
    return code
