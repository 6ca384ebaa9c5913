"""The `swarm` command. Errors are one plain sentence on standard error; the exit status is 1."""

from __future__ import annotations

import importlib.metadata
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook
from rich.segment import Segment

from swarm import flags
from swarm.config import as_toml, load_config
from swarm.errors import ConfigError, SwarmError
from swarm.notes import json_text, printable
from swarm.options import EngineOptions, JoinOptions, parse_address, parse_bytes, parse_layers

DEFAULT_HOME = Path("~/.swarm")
PIPED_COLUMNS = 160
LEAVE_MARGIN_S = 15.0
"""Waited for beyond the grace that the node gives its sessions."""

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Pool the machines of a LAN to run a language model that none of them holds alone.",
)
key_app = typer.Typer(no_args_is_help=True, help="The key that makes nodes one swarm.")
app.add_typer(key_app, name="key")

Home = Annotated[Path, typer.Option("--home", help="Folder of the node's keys and state.")]


class _Inert:
    """Something to show, without its control characters: names and answers come from others."""

    def __init__(self, shown: RenderableType) -> None:
        self._shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._shown, options):
            if segment.control:
                yield segment
            else:
                lines = map(printable, segment.text.split("\n"))
                yield Segment("\n".join(lines), segment.style)


class _InertHook(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Inert(shown) for shown in renderables]


def _console(width: int | None = None) -> Console:
    console = Console(highlight=False, width=width)
    console.push_render_hook(_InertHook())
    return console


def main(arguments: list[str] | None = None) -> int:
    """Run a command line; the exit status."""
    try:
        app(args=arguments, prog_name="swarm")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except SwarmError as error:
        print(f"swarm: {printable(str(error))}", file=sys.stderr)
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


@app.command()
def join(
    model: flags.Models = None,
    layers: flags.Layers = None,
    memory: flags.Memory = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda:N or mps.")] = None,
    dtype: flags.Dtype = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Compute threads.")] = None,
    quantization: flags.Quantization = None,
    kv_cache_dtype: flags.KvCacheDtype = None,
    max_model_len: flags.MaxModelLen = None,
    max_num_seqs: flags.MaxNumSeqs = None,
    max_num_batched_tokens: flags.MaxNumBatchedTokens = None,
    served_model_name: flags.ServedModelName = None,
    enable_prefix_caching: flags.PrefixCaching = None,
    enforce_eager: flags.EnforceEager = None,
    exact: flags.Exact = None,
    gateway: flags.Gateway = None,
    listen: flags.Listen = None,
    peer: flags.Peer = None,
    key: Annotated[str | None, typer.Option(help="The key of the swarm to join; kept.")] = None,
    open_swarm: Annotated[
        bool, typer.Option("--open", help="Join the LAN's open swarm: anyone there may.")
    ] = False,
    home: Home = DEFAULT_HOME,
    name: Annotated[str | None, typer.Option(help="Shown to people; default: host name.")] = None,
    no_mdns: Annotated[bool, typer.Option("--no-mdns", help="Do not use multicast.")] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="One JSON object a line.")] = False,
) -> None:
    """Run this machine's node until Ctrl-C or `swarm leave`."""
    if key is not None and open_swarm:
        raise ConfigError("--key and --open exclude each other: give one of them")
    options = JoinOptions(
        model=tuple(model or ()),
        layers=None if layers is None else parse_layers(layers),
        memory_bytes=None if memory is None else parse_bytes(memory),
        device=device,
        dtype=dtype,
        threads=threads,
        gateway=None if gateway is None else parse_address(gateway),
        listen=None if listen is None else parse_address(listen),
        peers=tuple(parse_address(text) for text in peer or ()),
        key=key,
        open_swarm=open_swarm,
        home=home.expanduser(),
        name=name,
        mdns=not no_mdns,
        log_json=log_json,
        engine=EngineOptions(
            quantization, kv_cache_dtype, max_model_len, max_num_seqs, max_num_batched_tokens,
            enable_prefix_caching, enforce_eager, exact,
        ),
        served_model_name=tuple(served_model_name or ()),
    )  # fmt: skip
    from swarm import daemon

    raise typer.Exit(daemon.run(options))


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="The whole state as JSON.")] = False,
    home: Home = DEFAULT_HOME,
) -> None:
    """Show who is in the swarm, what each serves and which models are covered."""
    from swarm.gateway.client_io import GatewayClient, running_node
    from swarm.gateway.status_text import status_view

    state = GatewayClient(running_node(home.expanduser()).url).state()
    if as_json:
        print(json_text(state, indent=2))
    else:
        is_piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
        console = _console(width=PIPED_COLUMNS if is_piped else None)
        console.print(status_view(state))


@app.command()
def chat(
    model: Annotated[
        str | None, typer.Argument(help="May be left out when only one is covered.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(metavar="http://HOST:PORT", help="Another node's gateway.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(min=0, max=2)] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Per answer.")] = None,
    home: Home = DEFAULT_HOME,
) -> None:
    """Talk to a model in the terminal."""
    from swarm.gateway.chat_io import Chat, choose_model
    from swarm.gateway.client_io import GatewayClient, running_node

    client = GatewayClient(url or running_node(home.expanduser()).url)
    console = _console()
    settings = {"temperature": temperature, "max_tokens": max_tokens}
    conversation = Chat(
        client,
        choose_model(client, model),
        console,
        lambda: console.input("[bold]> [/]"),
        {name: value for name, value in settings.items() if value is not None},
    )
    raise typer.Exit(conversation.run())


@app.command()
def leave(home: Home = DEFAULT_HOME) -> None:
    """Take this machine's node out; its running answers move to other nodes first."""
    from swarm.gateway.client_io import GatewayClient, running_node, wait_for_end

    node = running_node(home.expanduser())
    grace_s = GatewayClient(node.url).leave(node.control_token)
    print("leaving: running answers move to other nodes or end", flush=True)
    if not wait_for_end(node.pid, grace_s + LEAVE_MARGIN_S):
        raise ConfigError(
            f"the node (process {node.pid}) is still there; stop it with Ctrl-C or end the process"
        )
    print("left")


@app.command()
def config(home: Home = DEFAULT_HOME) -> None:
    """Print the settings in force here, as a config.toml."""
    file = home.expanduser() / "config.toml"
    try:
        text = file.read_text()
    except FileNotFoundError:
        text = ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error
    print(as_toml(load_config(text, os.environ, {})), end="")


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def sim(context: typer.Context) -> None:
    """Play a simulated swarm's bad days by seed, on virtual time. `swarm sim --help` says more."""
    from sims.cli import main as play

    raise typer.Exit(play(context.args, "swarm sim"))


@key_app.command("show")
def show_key(home: Home = DEFAULT_HOME) -> None:
    """Print the line that lets another machine join this swarm. It is a secret."""
    from swarm.home_io import Home as NodeHome

    folder = home.expanduser()
    key = NodeHome(folder).swarm_key() if folder.is_dir() else None
    if key is None:
        raise ConfigError(f"there is no swarm key in {folder}; `swarm key new` makes one")
    print(f"swarm join --key {key.text}")


@key_app.command("new")
def new_key(
    replace: Annotated[bool, typer.Option("--replace", help="Throw the present key away.")] = False,
    home: Home = DEFAULT_HOME,
) -> None:
    """Make a fresh key, that is a new swarm, and print the line for the other machines."""
    from swarm.home_io import Home as NodeHome
    from swarm.link.identity import SwarmKey

    folder = NodeHome(home.expanduser())
    if folder.swarm_key() is not None and not replace:
        raise ConfigError(
            f"there is a swarm key in {folder.path} already, which other machines may use;"
            " add --replace to throw it away"
        )
    key = SwarmKey.generate(secrets.token_bytes)
    folder.save_swarm_key(key)
    print(f"swarm join --key {key.text}")


if __name__ == "__main__":
    sys.exit(main())
