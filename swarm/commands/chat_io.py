"""`swarm chat`."""

from __future__ import annotations

from typing import Annotated

import typer

from swarm.commands.terminal_io import DEFAULT_HOME, Home, Url, console

app = typer.Typer()


@app.command()
def chat(
    model: Annotated[
        str | None, typer.Argument(help="May be left out when only one is covered.")
    ] = None,
    url: Url = None,
    temperature: Annotated[float | None, typer.Option(min=0, max=2)] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Per answer.")] = None,
    home: Home = DEFAULT_HOME,
) -> None:
    """Talk to a model in the terminal."""
    from swarm.gateway.chat_io import Chat, choose_model
    from swarm.gateway.client_io import GatewayClient, running_node

    client = GatewayClient(url or running_node(home.expanduser()).url)
    screen = console()
    settings = {"temperature": temperature, "max_tokens": max_tokens}
    conversation = Chat(
        client,
        choose_model(client, model),
        screen,
        lambda: screen.input("[bold]> [/]"),
        {name: value for name, value in settings.items() if value is not None},
    )
    raise typer.Exit(conversation.run())
