"""The `swarm` command. Errors are one plain sentence on standard error; the exit status is 1.

Each file of `swarm/commands` brings its commands in a Typer application of its own.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from typing import Annotated

import typer

from swarm.commands import (
    bench_io,
    chat_io,
    doctor_io,
    explain_io,
    invite_io,
    join_io,
    key_io,
    keys_io,
    load_io,
    logs_io,
    map_io,
    models_io,
    plan_io,
    settings_io,
    status_io,
)
from swarm.errors import SwarmError
from swarm.notes import printable

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Pool the machines of a LAN to run a language model that none of them holds alone.",
)
for part in (
    join_io,
    invite_io,
    load_io,
    status_io,
    map_io,
    chat_io,
    bench_io,
    doctor_io,
    explain_io,
    logs_io,
    plan_io,
    settings_io,
):
    app.add_typer(part.app)
app.add_typer(keys_io.usage_app)
app.add_typer(key_io.app, name="key", no_args_is_help=True, help=key_io.HELP)
app.add_typer(keys_io.app, name="keys", no_args_is_help=True, help=keys_io.HELP)
app.add_typer(models_io.app, name="models", no_args_is_help=True, help=models_io.HELP)


def main(arguments: list[str] | None = None) -> int:
    """Run a command line; the exit status."""
    try:
        app(args=arguments, prog_name="swarm")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except SwarmError as error:
        print(f"swarm: {printable(str(error))}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        # An update may need what the last setup did not install yet; ours are always here.
        if error.name is None or error.name.split(".")[0] == "swarm":
            raise
        print(f"swarm: the package {error.name} is missing; run scripts/setup", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has gone; nothing may be flushed into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"swarm {importlib.metadata.version('swarm')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    pass


if __name__ == "__main__":
    sys.exit(main())
