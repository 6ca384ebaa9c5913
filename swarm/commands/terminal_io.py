"""What every command shares: the home option, a console that names cannot steer, JSON out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook
from rich.segment import Segment

from swarm.config import Config, load_config
from swarm.errors import ConfigError
from swarm.notes import json_text, printable

if TYPE_CHECKING:
    from swarm.gateway.client_io import GatewayClient

DEFAULT_HOME = Path("~/.swarm")
PIPED_COLUMNS = 160

Home = Annotated[Path, typer.Option("--home", help="Folder of the node's keys and state.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Url = Annotated[
    str | None, typer.Option(metavar="http://HOST:PORT", help="Another node's gateway.")
]

ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key", metavar="KEY", envvar="OPENAI_API_KEY", show_envvar=True,
        help="For a gateway that asks for one.",
    ),
]  # fmt: skip


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


def console(width: int | None = None) -> Console:
    """A console on standard output whose text cannot steer the terminal, nor the console itself: a
    name such as `[/]` is no markup."""
    made = Console(highlight=False, markup=False, width=width)
    made.push_render_hook(_InertHook())
    return made


def wide_console() -> Console:
    """For tables: a pipe, which has no width of its own, gets lines that are not folded."""
    is_piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return console(width=PIPED_COLUMNS if is_piped else None)


def print_json(value: object) -> None:
    print(json_text(value, indent=2))


def home_config(home: Path) -> Config:
    """The settings in force for a home: its config.toml and the environment."""
    file = home / "config.toml"
    try:
        text = file.read_text()
    except FileNotFoundError:
        text = ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error
    return load_config(text, os.environ, {})


def gateway_client(home: Path, url: str | None, api_key: str | None) -> GatewayClient:
    """Of the gateway at `url`, or else of the home's own node. Raises ConfigError without either.

    The own node needs no key: its home holds a token for its owner.
    """
    from swarm.gateway.client_io import GatewayClient, running_node

    if url is None:
        return running_node(home.expanduser()).client()
    return GatewayClient(url, {"Authorization": f"Bearer {api_key}"} if api_key else {})
