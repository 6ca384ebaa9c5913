"""`swarm chat`."""

from __future__ import annotations

from typing import Annotated

import typer

from swarm.commands.terminal_io import DEFAULT_HOME, ApiKey, Home, Url, console, gateway_client

TEMPERATURE, TOP_P = 0.6, 0.95
"""Small models ramble at the API's own 1.0. The web page's chat asks with the same."""

app = typer.Typer()


@app.command()
def chat(
    model: Annotated[
        str | None, typer.Argument(help="May be left out when only one is covered.")
    ] = None,
    url: Url = None,
    api_key: ApiKey = None,
    temperature: Annotated[
        float, typer.Option(min=0, max=2, help="0: always the likeliest token.")
    ] = TEMPERATURE,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Per answer.")] = None,
    home: Home = DEFAULT_HOME,
) -> None:
    """Talk to a model in the terminal."""
    from swarm.commands.chat_screen_io import screen_for
    from swarm.commands.conversation_io import Chat, choose_model, wait_for_model

    client = gateway_client(home, url, api_key)
    screen = screen_for(console())
    wait_for_model(client, model, screen.dim)
    settings = {"temperature": temperature, "top_p": TOP_P, "max_tokens": max_tokens}
    conversation = Chat(
        client,
        choose_model(client, model),
        screen,
        {name: value for name, value in settings.items() if value is not None},
    )
    raise typer.Exit(conversation.run())
