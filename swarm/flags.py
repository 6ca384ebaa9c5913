"""Flags of `swarm join`; those of the engine are named as vLLM's where those exist."""

from __future__ import annotations

from typing import Annotated

import typer

Invite = Annotated[
    str | None, typer.Argument(metavar="[INVITE]", help="What `swarm invite` printed elsewhere.")
]
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        help="Checkpoint folder, GGUF file, or ORG/NAME of the Hugging Face hub to serve;"
        " repeatable. Without it: layers of a model that the swarm has.",
    ),
]
Layers = Annotated[str | None, typer.Option(metavar="A:B", help="Serve exactly these layers.")]
Memory = Annotated[
    str | None,
    typer.Option(
        metavar="8GiB", help="For weights, KV and work space, on each device; or 24GiB,8GiB."
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda:N or mps; several: cuda:0,cuda:1,cpu.")]
Gateway = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where to listen for HTTP.")]
NoAuth = Annotated[
    bool, typer.Option("--no-auth", help="Ask for no key of the API, wherever the gateway listens.")
]
AllowOrigin = Annotated[
    list[str] | None,
    typer.Option(metavar="https://HOST", help="A site whose pages may ask too; repeatable."),
]
GatewayOnly = Annotated[
    bool, typer.Option("--gateway-only", help="Answer requests here, but take no layers.")
]
YieldToOwner = Annotated[
    bool,
    typer.Option(
        "--yield-to-owner", help="Give the layers up while other programs need the machine."
    ),
]
Listen = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where to listen for peers.")]
OpenSwarm = Annotated[
    bool, typer.Option("--open", help="Join the LAN's open swarm: anyone there may.")
]
Peer = Annotated[
    list[str] | None, typer.Option(metavar="HOST:PORT", help="A member to dial; repeatable.")
]
Dtype = Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.")]
Quantization = Annotated[str | None, typer.Option(help="Weights: int8, int4 or none.")]
KvCacheDtype = Annotated[str | None, typer.Option(help="KV: auto, int8 or fp8.")]
MaxModelLen = Annotated[int | None, typer.Option(min=1, help="Longest sequence served, in tokens.")]
MaxNumSeqs = Annotated[int | None, typer.Option(min=1, help="Sessions that decode in one batch.")]
MaxNumBatchedTokens = Annotated[
    int | None, typer.Option(min=1, help="Rows of one step, prompts included.")
]
ServedModelName = Annotated[
    list[str] | None, typer.Option(help="What clients call the model; repeatable.")
]
PrefixCaching = Annotated[
    bool | None,
    typer.Option(
        "--enable-prefix-caching/--no-enable-prefix-caching",
        help="Reuse the KV of prompts that begin alike.",
    ),
]
EnforceEager = Annotated[
    bool | None, typer.Option("--enforce-eager", help="No captured decode steps.")
]
Copies = Annotated[
    int | None,
    typer.Option(min=1, max=64, help="How often the swarm shall hold every layer, if it can."),
]
Exact = Annotated[
    bool | None,
    typer.Option("--exact/--no-exact", help="A row's bits do not depend on its batch."),
]
