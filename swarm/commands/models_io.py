"""`swarm models`: what came from peers and lies in the cache of this host."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.table import Table

from swarm.commands.terminal_io import (
    DEFAULT_HOME,
    AsJson,
    Home,
    home_config,
    print_json,
    wide_console,
)
from swarm.errors import ConfigError
from swarm.weights.store_io import ModelStore, Stored, models_store

HELP = "Models that came from other machines and are kept here."
DAY_S = 86400

app = typer.Typer(no_args_is_help=True)
Which = Annotated[str, typer.Argument(help="Its name, or the first digits of its id.")]


def _store(home: Home) -> ModelStore:
    return models_store(home_config(home.expanduser()).weights)


def _named(store: ModelStore, which: str) -> list[Stored]:
    """Raises ConfigError when there is none."""
    found = [
        model
        for model in store.models()
        if which and (model.name == which or model.model_id.startswith(which))
    ]
    if not found:
        raise ConfigError(f"there is no model {which} in {store.folder}")
    return found


@app.command("list")
def list_models(as_json: AsJson = False, home: Home = DEFAULT_HOME) -> None:
    """Show the models, what of them is here, and when each was used last."""
    store = _store(home)
    models = store.models()
    if as_json:
        print_json([_row(model) for model in models])
        return
    table = Table("model", "id", "layers", "MiB", "used", "", box=None)
    for model in models:
        days = max(0, time.time() - model.used_at) / DAY_S
        table.add_row(
            model.name, model.model_id[:8], ranges(model.layers), str(model.byte_count >> 20),
            "today" if days < 1 else f"{days:.0f} days ago", "in use" if model.in_use else "",
        )  # fmt: skip
    wide_console().print(table if models else f"no models in {store.folder}")


@app.command()
def rm(which: Which, as_json: AsJson = False, home: Home = DEFAULT_HOME) -> None:
    """Remove a model from the cache; one that a running node uses stays."""
    store = _store(home)
    models = _named(store, which)
    for model in models:
        if not store.remove(model.model_id):
            raise ConfigError(f"{model.name} is in use by a running node; end it first")
    if as_json:
        print_json({"removed": [model.model_id for model in models]})
        return
    for model in models:
        print(f"removed {model.name} ({model.byte_count >> 20} MiB)")


@app.command()
def verify(which: Which, as_json: AsJson = False, home: Home = DEFAULT_HOME) -> None:
    """Read all files of a model and compare them with its hashes; damaged ones are removed."""
    store = _store(home)
    wrong = [line for model in _named(store, which) for line in store.verify(model.model_id)]
    if as_json:
        print_json({"wrong": wrong})
    else:
        print("\n".join(wrong) or "all files are what they should be")
    if wrong:
        raise typer.Exit(1)


def _row(model: Stored) -> dict[str, object]:
    return {
        "name": model.name,
        "id": model.model_id,
        "path": str(model.path),
        "bytes": model.byte_count,
        "used_at": model.used_at,
        "layers": list(model.layers),
        "in_use": model.in_use,
    }


def ranges(layers: tuple[int, ...]) -> str:
    """Layers as half-open ranges: (0, 1, 2, 5) is 0:3 5:6."""
    starts = [n for n in layers if n - 1 not in layers]
    stops = [n + 1 for n in layers if n + 1 not in layers]
    return " ".join(f"{start}:{stop}" for start, stop in zip(starts, stops, strict=True))
