"""What a neighbour's download does to a stream that runs on the node it downloads from.

The node runs in a network namespace and streams one answer after the other, with the same prompt;
during every second one an end in another namespace, made of links and weights alone, downloads all
layers from it, again and again. The gaps between tokens are compared.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import swarm_netns
from link_pair import KEY
from rig import console, print_table
from swarm_procs import SMOLLM2, NodePlan, Swarm
from weights_node import Node
from whole_model import whole_at

from swarm.fetch_facts import LayersFetched
from swarm.terms import Address, LayerRange

PROMPT = list(range(1000, 1064))
RISE_MAX = 1.2
Inside = Callable[..., list[str]]


@dataclass(frozen=True, slots=True)
class Gaps:
    """Between tokens, ms."""

    values: list[float]

    @property
    def p50(self) -> float:
        return statistics.median(self.values)

    @property
    def p95(self) -> float:
        return statistics.quantiles(self.values, n=20)[-1]


async def take(node: Node, folder: Path, address: Address) -> None:
    """Downloads everything while its standard input says so: `go`, then `stop`, again and again.
    Prints after each stop how many bytes came in how many seconds."""
    model = whole_at(SMOLLM2, folder / "cache")
    layers = sum(name.endswith(".input_layernorm.weight") for name in model.manifest.tensors)
    loop = asyncio.get_running_loop()
    came = 0

    async def again_and_again() -> None:
        nonlocal came
        while True:
            if not node.link.events.up:
                node.link.links.dial([address], None)
                await node.link.events.until(lambda: bool(node.link.events.up))
            fact = await node.fetch(model, LayerRange(0, layers), layers)
            assert isinstance(fact, LayersFetched), fact
            came += int(str(node.notes[-1].get("came_bytes")))
            node.store.close()
            await asyncio.to_thread(shutil.rmtree, node.store.path_of(model.model_id))

    print("ready", flush=True)
    while (await loop.run_in_executor(None, sys.stdin.readline)).strip() == "go":
        began, came = time.perf_counter(), 0
        task = loop.create_task(again_and_again())
        await loop.run_in_executor(None, sys.stdin.readline)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        under_way = [download.came_bytes for download in node.weights._downloads.values()]
        node.weights.drop(model.model_id)
        print(came + sum(under_way), time.perf_counter() - began, flush=True)


class Taker:
    """The process that downloads, as its parent sees it."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.rates: list[float] = []
        self._expect("ready")

    def go(self) -> None:
        self._say("go")

    def stop(self) -> None:
        self._say("stop")
        came, took_s = self._read().split()
        self.rates.append(float(came) / float(took_s) / 1e6)

    def end(self) -> None:
        self._say("")
        self.process.wait(timeout=30)

    def _say(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def _expect(self, word: str) -> None:
        said = self._read().strip()
        assert said == word, said


def measure(lan: swarm_netns.Lan, inside: Inside, folder: Path, rounds: int, tokens: int) -> int:
    """Prints what was seen; 1 where the bar is missed."""
    quiet: list[Gaps] = []
    loaded: list[Gaps] = []
    with Swarm(folder / "homes", KEY.text) as swarm:
        plan = NodePlan(
            "giver", SMOLLM2, namespace=lan.hosts[0], connect=lan.connect_inside(0),
            listen=f"{lan.address(0)}:0", dtype="bfloat16",
        )  # fmt: skip
        giver = swarm.start(plan)
        swarm.await_ready()
        address = swarm.endpoints()[0]
        ask = {"model": "smollm2", "prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True}
        giver.ask(**ask).finish()
        taker = Taker(inside(lan, 1, "--role", "taker", "--folder", str(folder),
                             "--host", address))  # fmt: skip
        for _ in range(rounds):
            quiet.append(_gaps(giver.ask(**ask).finish().arrivals))
            taker.go()
            loaded.append(_gaps(giver.ask(**ask).finish().arrivals))
            taker.stop()
        taker.end()
    return _tell(quiet, loaded, taker.rates)


def _gaps(arrivals: list[float]) -> Gaps:
    return Gaps([1e3 * (b - a) for a, b in zip(arrivals, arrivals[1:], strict=False)])


def _tell(quiet: list[Gaps], loaded: list[Gaps], rates: list[float]) -> int:
    rows = [
        (
            what,
            f"{statistics.median(one.p50 for one in seen):.1f}",
            f"{statistics.median(one.p95 for one in seen):.1f}",
        )
        for what, seen in (("alone", quiet), ("during the download", loaded))
    ]
    count = sum(len(one.values) for one in quiet)
    print_table(f"a stream of the node, {count} tokens each way",
                ["", "ITL p50, ms", "ITL p95, ms"], rows)  # fmt: skip
    ratios = [after.p95 / before.p95 for before, after in zip(quiet, loaded, strict=True)]
    rise = statistics.median(ratios)
    console.print(
        f"p95 {rise:.2f} times (rounds {min(ratios):.2f} to {max(ratios):.2f}; bar {RISE_MAX}),"
        f" the download at {statistics.median(rates):.0f} MB/s"
    )
    return 0 if rise <= RISE_MAX else 1
