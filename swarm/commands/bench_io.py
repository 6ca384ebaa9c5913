"""`swarm bench`: how fast any OpenAI-compatible endpoint answers."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swarm.commands.terminal_io import DEFAULT_HOME, AsJson, Home, print_json, wide_console

if TYPE_CHECKING:
    from swarm.commands.bench import Level

app = typer.Typer()


@app.command()
def bench(
    url: Annotated[
        str | None, typer.Argument(help="http://HOST:PORT, with or without /v1; default: own node.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="May be left out when only one is there.")] = (
        None
    ),
    concurrency: Annotated[str, typer.Option(metavar="1,4,16", help="Requests at once.")] = "1,4",
    requests: Annotated[int, typer.Option(min=1, help="Requests at each concurrency.")] = 8,
    prompt_words: Annotated[int, typer.Option(min=1, max=100_000, help="Of each prompt.")] = 64,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of each answer.")] = 64,
    temperature: Annotated[float, typer.Option(min=0, max=2)] = 0.0,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Answers of full length, where the server can.")
    ] = False,
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="Sent as a bearer token.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Of one request, seconds.")] = 600.0,
    seed: Annotated[int, typer.Option(help="Of the prompts.")] = 1,
    as_json: AsJson = False,
    home: Home = DEFAULT_HOME,
) -> None:
    """Measure TTFT, ITL, TPOT and throughput of streamed chat answers.

    TTFT: time to the first text. ITL: between two chunks of text. TPOT: per token after the first.
    Exit status 1 when a request failed.
    """
    from swarm.commands.bench import bench_view, level_json, parse_levels
    from swarm.commands.bench_run_io import Endpoint, Load, run_levels
    from swarm.gateway.client_io import CONTROL_HEADER, running_node

    levels = parse_levels(concurrency)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    if url is None:
        node = running_node(home.expanduser())
        url, headers = node.url, {CONTROL_HEADER: node.control_token}
    endpoint = Endpoint.of(url, headers, timeout)
    body: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature}
    body |= {"ignore_eos": True} if ignore_eos else {}
    load = Load(body, prompt_words, requests, seed)
    name, done = asyncio.run(run_levels(endpoint, model, load, levels, _progress))
    rows = [level_json(level) for level in done]
    if as_json:
        settings = {"prompt_words": prompt_words, **body}
        print_json({"url": endpoint.base, "model": name, **settings, "levels": rows})
    else:
        about = f"{name} at {endpoint.base}: {prompt_words} words in, up to {max_tokens} tokens out"
        wide_console().print(bench_view(rows, about))
    raise typer.Exit(int(any(row["failed"] for row in rows)))


def _progress(level: Level) -> None:
    """A line for who waits at a terminal."""
    if sys.stderr.isatty():
        print(f"{level.concurrency} at once: {level.wall_s:.1f} s", file=sys.stderr, flush=True)
