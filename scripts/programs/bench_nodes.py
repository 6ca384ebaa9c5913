"""Nodes as the benches start them: on chosen cores, with the engine's flags."""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rig import ROOT
from streams import Json, Streamed, aggregate_tokens_s, ask, ask_all, completion, prompt_ids
from swarm_procs import Node, NodePlan, Swarm

MODEL = ROOT / "models" / "smollm2"
MEMORY = "2GiB"
"""Of each node, so that several swarms have room side by side."""


@dataclass(frozen=True, slots=True)
class CorePlan(NodePlan):
    """A node, all its processes included, that stays on some cores."""

    cores: str = "0,1"

    def command(self, home: Path, key: str, peers: Iterable[str]) -> list[str]:
        return ["taskset", "-c", self.cores, *NodePlan.command(self, home, key, peers)]


@dataclass(frozen=True, slots=True)
class Engine:
    """How all nodes of a bench compute."""

    dtype: str
    flags: tuple[str, ...]

    @property
    def title(self) -> str:
        return " ".join((self.dtype, *self.flags))

    def start(
        self, swarm: Swarm, cuts: Iterable[str], cores: Iterable[str], threads: int
    ) -> list[Node]:
        """One node per layer range, each on its own cores; waits until all serve."""
        nodes = []
        for number, (cut, place) in enumerate(zip(cuts, cores, strict=True)):
            plan = CorePlan(
                f"node{number}",
                MODEL,
                cut,
                self.dtype,
                threads,
                extra=("--memory", MEMORY, *self.flags),
                cores=place,
            )
            nodes.append(swarm.start(plan))
        swarm.await_ready()
        return nodes


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--quantization", choices=("none", "int8", "int4"))
    parser.add_argument(
        "--flag", action="append", default=[], help="one more flag of `swarm join`: --flag=--x=y"
    )


def engine_of(options: argparse.Namespace) -> Engine:
    chosen = ("--quantization", options.quantization) if options.quantization else ()
    return Engine(options.dtype, (*chosen, *options.flag))


class Asker:
    """Asks one server, every time something it cannot have cached."""

    def __init__(self, url: str, seed: int = 1) -> None:
        self.url = url
        self._rng = random.Random(seed)

    def body(self, prompt: int, tokens: int) -> Json:
        return completion(prompt_ids(prompt, self._rng), tokens)

    def one(self, prompt: int, tokens: int) -> Streamed:
        answer = ask(self.url, self.body(prompt, tokens))
        if answer.error is not None:
            raise SystemExit(f"{self.url}: {answer.error}")
        return answer

    def decode_tokens_s(self, prompt: int = 32, tokens: int = 128) -> float:
        return self.one(prompt, tokens).tokens_s

    def ttft_s(self, prompt: int) -> float:
        return self.one(prompt, 2).ttft_s

    def aggregate_tokens_s(self, streams: int, prompt: int = 32, tokens: int = 64) -> float:
        """Tokens per second of all streams together, their prefills included."""
        return aggregate_tokens_s(
            ask_all(self.url, [self.body(prompt, tokens) for _ in range(streams)])
        )
