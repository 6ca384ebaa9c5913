"""`swarm plan`: would a model fit on some machines, and how fast would it be?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarm.commands.terminal_io import AsJson, print_json, wide_console
from swarm.errors import ConfigError

if TYPE_CHECKING:
    from swarm.commands.planning.outline import Outline

OUTLINE_TIMEOUT_S = 300.0
"""Importing torch and transformers takes seconds, on a busy machine tens of them."""
DEFAULT_LINK_MS, DEFAULT_LINK_MBIT = 0.5, 1000.0

app = typer.Typer()


@app.command()
def plan(
    model: Annotated[str, typer.Argument(help="Folder, GGUF file, or a config.json alone.")],
    node: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MEMORY:DEVICE",
            help="24GB:cuda, 8GB:cpu, 32GB:rtx5090; several devices of one: 24GB:cuda+8GB:cpu;"
            " repeatable.",
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    quantization: Annotated[str, typer.Option(help="int8, int4 or none.")] = "none",
    copies: Annotated[
        int, typer.Option(min=1, max=64, help="How often every layer is wanted.")
    ] = 1,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of the prompt.")] = 512,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens to be generated.")] = 256,
    link_ms: Annotated[
        float, typer.Option(min=0, max=10_000, help="Round trip between machines, ms.")
    ] = DEFAULT_LINK_MS,
    link_mbit: Annotated[
        float, typer.Option(min=0.001, help="Bandwidth between machines, Mbit/s.")
    ] = DEFAULT_LINK_MBIT,
    as_json: AsJson = False,
) -> None:
    """Say whether a model fits, which layers go where, how fast, and what a loss would mean.

    Needs no weights. Exit status 1 when it does not fit.
    """
    from swarm.commands.planning import report
    from swarm.commands.planning.layout import Aim, lay_out
    from swarm.commands.planning.machines import parse_nodes
    from swarm.commands.planning.outline import Form
    from swarm.config import Config, ShardConfig
    from swarm.routing.cost import Wire

    machines = parse_nodes(node or [])
    config = Config(shard=ShardConfig(copies=copies))
    wire = Wire(link_ms / 1e3, link_mbit * 1e6 / 8)
    aim = Aim(prompt_tokens, max_tokens, wire, config.shard, config.routing)
    if not Path(model).exists():
        raise ConfigError(f"there is no model at {model}; give a folder, a .gguf or a config.json")
    outline = _outline(model)
    layout = lay_out(outline, Form.of(outline, dtype, quantization), machines, aim)
    if as_json:
        print_json(report.as_json(layout, aim))
    else:
        wide_console().print(report.as_text(layout, aim))
    raise typer.Exit(int(not layout.fits))


def _outline(model: str) -> Outline:
    """Asked of a process of its own, which may import torch."""
    from swarm.commands.planning.outline import Outline

    command = [sys.executable, "-m", "swarm.shard.outline_io", model]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=OUTLINE_TIMEOUT_S, check=False
        )
        told = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"reading the model took more than {OUTLINE_TIMEOUT_S:.0f} s; is the machine busy?"
        ) from error
    except (ValueError, IndexError) as error:
        raise ConfigError(
            "torch or transformers cannot be used here; `swarm doctor` says why"
        ) from error
    return Outline.read(told)
