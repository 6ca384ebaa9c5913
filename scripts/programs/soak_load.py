"""Many answers at once, greedy and sampled, short and long, over three hops that two nodes hold
each, while nodes are killed and started again at random. Every answer must have the ids that it had
when it ran alone on a swarm that nobody disturbed: losses, rebuilds and company change no token.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rig import console, end_orderly, print_table, spread
from prompts import PROMPTS, long_prompt
from soak import Tally, killer, start_pairs
from streams import Json, Streamed, ask, ask_all
from swarm_procs import Swarm

KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "float32": ("float32", ()),
    "bfloat16": ("bfloat16", ()),
    "int8": ("float32", ("--quantization", "int8")),
    "int4": ("float32", ("--quantization", "int4")),
}
"""How the nodes compute: dtype and further flags."""
MEMORY = ("--memory", "1GiB")
QUIET_ROUNDS = 1
"""Rounds of all at once before the first kill: company alone must change nothing either."""


@dataclass(slots=True)
class Found:
    """What the rounds showed."""

    answers: int = 0
    wrong: list[str] = field(default_factory=list)
    reroutes: int = 0
    stalls_ms: list[float] = field(default_factory=list)


def bodies(count: int, tokens: int) -> list[Json]:
    """Requests of all kinds in turn: short and greedy, short and sampled, long ones of both."""
    asked = []
    for number in range(count):
        is_long, is_sampled = number % 4 >= 2, number % 2 == 1
        prompt = long_prompt(4 + number, number) if is_long else PROMPTS[number % len(PROMPTS)]
        sampling = {"temperature": 0.8, "seed": number} if is_sampled else {"temperature": 0}
        asked.append(request(prompt, sampling) | {"max_tokens": tokens})
    return asked


def request(prompt: str, sampling: Json) -> Json:
    return {
        "model": "smollm2",
        "prompt": prompt,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    } | sampling


def judge(number: int, answer: Streamed, wanted: Sequence[int]) -> str | None:
    """What is wrong with an answer, if anything is."""
    if answer.error is not None:
        return f"answer {number}: {answer.error}"
    if answer.ids != list(wanted):
        pairs = zip(answer.ids, wanted, strict=False)
        place = next((i for i, (a, b) in enumerate(pairs) if a != b), len(wanted))
        reroutes = answer.swarm.get("reroutes")
        return f"answer {number} differs from token {place} on, after {reroutes} reroutes"
    if not answer.swarm.get("exact"):
        return f"answer {number} is right and says that it may not be"
    return None


def one_round(url: str, asked: Sequence[Json], wanted: Sequence[list[int]], found: Found) -> None:
    """All at once."""
    for number, answer in enumerate(ask_all(url, asked)):
        found.answers += 1
        found.reroutes += answer.swarm.get("reroutes", 0)
        found.stalls_ms += answer.swarm.get("stall_ms", [])
        problem = judge(number, answer, wanted[number])
        if problem is not None:
            found.wrong.append(problem)


def run(folder: Path, kind: str, options: argparse.Namespace) -> tuple[Found, Tally, str]:
    """What came of it, the kills, and the nodes' last lines if something was wrong."""
    dtype, flags = KINDS[kind]
    found, tally, rng = Found(), Tally(), random.Random(options.seed)
    asked = bodies(options.streams, options.tokens)
    with Swarm(folder) as swarm:
        url = start_pairs(swarm, options.parts, dtype, (*MEMORY, *flags)).gateway.url
        alone = [ask(url, body) for body in asked]
        failed = [answer.error for answer in alone if answer.error is not None]
        if failed:
            raise SystemExit(f"an undisturbed answer failed: {failed[0]}\n{swarm.logs()}")
        wanted = [answer.ids for answer in alone]
        console.print(f"{kind}: {len(wanted)} answers known", style="dim")
        for _ in range(QUIET_ROUNDS):
            one_round(url, asked, wanted, found)
        with killer(swarm, options.kill_every, rng, tally):
            while len(tally.kills) < options.kills and not found.wrong:
                one_round(url, asked, wanted, found)
                console.print(f"{found.answers} answers, {len(tally.kills)} kills", style="dim")
        logs = swarm.logs() if found.wrong else ""
        if not found.wrong:
            swarm.await_ready()
            swarm.await_idle()
    return found, tally, logs


def main() -> int:
    parser = argparse.ArgumentParser("scripts/soak_load", description=__doc__)
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48, help="of each answer")
    parser.add_argument("--kills", type=int, default=200, help="of each kind, at least")
    parser.add_argument("--kill-every", type=float, default=1.0, metavar="SECONDS")
    parser.add_argument("--parts", type=int, choices=(2, 3), default=3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    end_orderly()
    rows, wrong = [], 0
    for kind in options.kind:
        began = time.monotonic()
        with (
            tempfile.TemporaryDirectory(prefix="swarm-soak-") as folder,
            console.status(f"soaking {kind}"),
        ):
            found, tally, logs = run(Path(folder), kind, options)
        stalls = spread(found.stalls_ms) if found.stalls_ms else "-"
        took = round(time.monotonic() - began)
        counts = (len(tally.kills), found.reroutes, stalls, len(found.wrong), took)
        rows.append((kind, found.answers, *counts))
        wrong += len(found.wrong)
        for line in found.wrong:
            console.print(f"{kind}: {line}", style="red", markup=False)
        if logs:
            console.print(logs, markup=False)
    columns = ["kind", "answers", "kills", "reroutes", "stall ms", "wrong", "seconds"]
    print_table(f"{options.streams} answers at once", columns, rows)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
