"""Four nodes on this machine hold a model in three parts, the middle part twice. One of them asks;
the node in the middle of the route is killed while it answers; the answer goes on. The same
question is then asked undisturbed, and both answers must have the same token ids.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.panel import Panel
from rich.rule import Rule
from rig import console, end_orderly, print_table
from swarm_http import Answer
from swarm_procs import SMOLLM2, Node, NodePlan, Swarm

HOLDERS = {"anna": "0:10", "bert": "10:20", "cleo": "20:30", "dora": "10:20"}
QUESTION = "Tell me a short story about a lighthouse keeper and a storm."


def main() -> int:
    end_orderly()
    options = _options()
    console.print(Panel.fit("[bold]swarm[/]: an answer that outlives the machine it came from"))
    with tempfile.TemporaryDirectory(prefix="swarm-demo-") as folder, Swarm(Path(folder)) as swarm:
        origin = _start(swarm)
        console.print(Rule("one answer, and kill -9 in the middle of it", align="left"))
        disturbed = _disturbed(swarm, origin, options)
        if disturbed.error:
            return _verdict(disturbed, disturbed)
        console.print(Rule("the same question, undisturbed", align="left"))
        undisturbed = _stream(_ask(origin, options))
        console.print("\n")
        return _verdict(disturbed, undisturbed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("scripts/demo", description=__doc__)
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("--tokens", type=int, default=96, help="most tokens of the answer")
    parser.add_argument("--kill-at", type=int, default=32, help="kill when this many have come")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def _start(swarm: Swarm) -> Node:
    """Start the four nodes and wait until they all see each other serve."""
    began = time.monotonic()
    with console.status("starting four nodes"):
        nodes = [swarm.start(NodePlan(n, SMOLLM2, cut)) for n, cut in HOLDERS.items()]
        swarm.await_ready()
    rows = [(node.name, node.plan.layers, node.process.pid, node.gateway.url) for node in nodes]
    took = time.monotonic() - began
    title = f"four nodes, found and linked in {took:.1f} s"
    print_table(title, ["node", "layers", "pid", "gateway"], rows)
    return nodes[0]


def _ask(origin: Node, options: argparse.Namespace) -> Answer:
    body: dict[str, Any] = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": options.question}],
        "max_tokens": options.tokens,
        "temperature": options.temperature,
        "seed": options.seed,
    }
    return origin.ask(**body)


def _disturbed(swarm: Swarm, origin: Node, options: argparse.Namespace) -> Answer:
    """The answer during which the middle hop of its route is killed."""
    answer = _ask(origin, options)
    hops = swarm.hops(origin, "")
    console.print(f"[dim]{origin.name} is asked:[/] {options.question}")
    console.print(f"[dim]route:[/] {_route(hops)}\n")
    _stream(answer, until=options.kill_at)
    if answer.error:
        return answer
    victim = hops[1]
    victim.kill()
    console.print(f"[bold red] ✗ kill -9 {victim.name} (pid {victim.process.pid}) [/]", end="")
    _stream(answer, style="green")
    if answer.error:
        return answer
    taken = [swarm.by_id(hop["node"]) for hop in answer.swarm.get("route", [])]
    stalls = ", ".join(f"{stall:.0f} ms" for stall in answer.swarm.get("stall_ms", []))
    console.print(f"\n[dim]new route:[/] {_route(taken)}   [dim]pause:[/] [bold]{stalls}[/]\n")
    return answer


def _stream(answer: Answer, until: int | None = None, style: str = "") -> Answer:
    """Print text as it comes, until `until` tokens are here or the answer is over."""
    while until is None or len(answer.ids) < until:
        shown = len(answer.text)
        if answer.next_event() is None:
            break
        console.print(answer.text[shown:], end="", markup=False, soft_wrap=True, style=style)
    return answer


def _route(hops: list[Node]) -> str:
    return " → ".join(f"[cyan]{node.name}[/] {node.plan.layers}" for node in hops)


def _verdict(disturbed: Answer, undisturbed: Answer) -> int:
    for answer in (disturbed, undisturbed):
        if answer.error:
            console.print(f"[bold red]failed:[/] {answer.error}")
            return 1
    if not disturbed.swarm["reroutes"]:
        console.print("[bold red]the answer was over before the kill could matter[/]")
        return 1
    if disturbed.ids != undisturbed.ids:
        console.print(f"[bold red]different tokens:[/] {disturbed.ids}\n{undisturbed.ids}")
        return 1
    count = len(disturbed.ids)
    console.print(f"[bold green]✓ the same {count} tokens, with and without the loss[/]")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
