"""`swarm load` and `swarm unload`: models of a node that runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from swarm import flags
from swarm.commands.given_models_io import on_this_machine
from swarm.commands.terminal_io import DEFAULT_HOME, AsJson, Home, print_json
from swarm.errors import ConfigError
from swarm.gateway.client_io import Json, running_node
from swarm.notes import printable

app = typer.Typer()
SAID = {
    "shard.intended": "{model}: layers {layers} are chosen",
    "shard.load": "{model}: layers {layers} are being loaded",
    "shard.serving": "{model}: layers {layers} are served",
    "shard.last_copy": "{model}: nobody else serves layers {layers}; answers that need them wait "
    "for another node, and fail where none comes",
    "shard.unloaded": "{model} is served here no more",
}


@app.command()
def load(
    model: Annotated[str, typer.Argument(help="Folder, GGUF file, or ORG/NAME of the hub.")],
    layers: flags.Layers = None,
    served_model_name: Annotated[
        str | None, typer.Option(help="What it is called; default: as its file.")
    ] = None,
    as_json: AsJson = False,
    home: Home = DEFAULT_HOME,
) -> None:
    """Have this machine's running node serve one more model."""
    node = running_node(home.expanduser())
    (path,), names = on_this_machine([model], [served_model_name] if served_model_name else [])
    resolved = Path(path).resolve()
    name = names[0] if names else resolved.name
    asked = {"path": str(resolved), "name": name, "layers": layers}
    _show(node.client().change_models("load", asked), as_json=as_json)


@app.command()
def unload(
    model: Annotated[str, typer.Argument(help="Its name, as `swarm status` shows it.")],
    as_json: AsJson = False,
    home: Home = DEFAULT_HOME,
) -> None:
    """Have this machine's running node serve a model no more; its answers move away first."""
    node = running_node(home.expanduser())
    _show(node.client().change_models("unload", {"model": model}), as_json=as_json)


def _show(news: Iterable[Json], *, as_json: bool) -> None:
    """Raises ConfigError with what the node said, where it came to nothing."""
    for told in news:
        if told["event"] == "shard.failed":
            raise ConfigError(f"{told.get('model')} cannot be served: {told.get('reason')}")
        if as_json:
            print_json(told)
        elif (said := SAID.get(told["event"])) is not None:
            print(printable(said.format(**told)), flush=True)
