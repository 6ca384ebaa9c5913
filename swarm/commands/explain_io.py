"""`swarm explain`: why requests take the route that they take."""

from __future__ import annotations

from typing import Annotated

import typer

from swarm.commands.terminal_io import (
    DEFAULT_HOME,
    ApiKey,
    AsJson,
    Home,
    Url,
    gateway_client,
    print_json,
    wide_console,
)

app = typer.Typer()


@app.command()
def explain(
    model: Annotated[
        str | None, typer.Argument(help="May be left out when only one is covered.")
    ] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of the prompt.")] = 512,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens to be generated.")] = 256,
    routes: Annotated[int, typer.Option(min=1, max=8, help="How many to show.")] = 3,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
    home: Home = DEFAULT_HOME,
) -> None:
    """Show the best routes now, what each hop and link costs, and why the first one wins."""
    from swarm.commands.explain import explain_view

    client = gateway_client(home, url, api_key)
    asked = {"prompt_tokens": prompt_tokens, "max_tokens": max_tokens, "routes": routes}
    told = client.explain(asked | ({"model": model} if model is not None else {}))
    if as_json:
        print_json(told)
    else:
        wide_console().print(explain_view(told))
