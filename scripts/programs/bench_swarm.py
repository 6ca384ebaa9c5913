"""Many streams of mixed lengths through one gateway: how long people wait for the first token and
between tokens, what all get together, what fails, and how well the planner knew beforehand what a
token would take.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bench_nodes import Asker, add_engine_options, engine_of
from rig import console, end_orderly, print_machine, print_table, spread
from streams import Streamed, ask_all, completion, prompt_ids
from swarm_procs import Node, Swarm

PERCENTS = (50, 95, 99)
SHORT, LONG = (1, 200), (400, 3000)
LONG_SHARE = 0.25
"""Of the prompts; the others are short."""
ALONE_PROMPTS = (8, 100, 400, 1000)
REFUSALS = (429, 503)


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest rank: the least value that `percent` of all do not pass."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


def lengths(count: int, rng: random.Random) -> list[int]:
    """Prompts of mixed lengths; the first two are the shortest and the longest there are."""
    mixed = [rng.randint(*(LONG if rng.random() < LONG_SHARE else SHORT)) for _ in range(count)]
    return [SHORT[0], LONG[1], *mixed][:count]


def outcomes(answers: Sequence[Streamed]) -> Counter[str]:
    """How many ended well, were refused at the door, or failed; the latter by what was said."""
    found: Counter[str] = Counter()
    for answer in answers:
        if answer.error is None:
            found["answered"] += 1
        elif answer.status in REFUSALS:
            found[f"refused, {answer.status}"] += 1
        else:
            found[f"failed: {answer.error}"] += 1
    return found


def load(url: str, count: int, tokens: int, seed: int) -> list[Streamed]:
    rng = random.Random(seed)
    bodies = []
    for prompt in lengths(count, rng):
        bodies.append(completion(prompt_ids(prompt, rng), rng.randint(tokens // 2, tokens)))
    return ask_all(url, bodies)


def report_load(answers: Sequence[Streamed]) -> None:
    good = [answer for answer in answers if answer.error is None]
    if good:
        waits = [1000 * answer.ttft_s for answer in good]
        gaps = [1000 * gap for answer in good for gap in answer.gaps_s]
        longest = [1000 * max(answer.gaps_s, default=0.0) for answer in good]
        rows = [
            [name, *(f"{percentile(values, p):.1f}" for p in PERCENTS), f"{max(values):.1f}"]
            for name, values in (
                ("time to first token", waits),
                ("between tokens", gaps),
                ("longest pause of a stream", longest),
            )
        ]
        columns = ["ms", *(f"{p} %" for p in PERCENTS), "most"]
        print_table(f"{len(good)} streams at once", columns, rows)
        began = min(answer.asked_at for answer in good)
        took = max(answer.arrivals[-1] for answer in good) - began
        total = sum(answer.tokens for answer in good)
        console.print(f"{total} tokens in {took:.1f} s: {total / took:.1f} tok/s in all")
    for what, number in sorted(outcomes(answers).items()):
        console.print(f"{number:4} {what}", markup=False)


def predicted_ms(origin: Node, session: str) -> float:
    """What the planner expected of one token on the route that the session took last."""
    told = [
        note
        for note in origin.notes
        if note["event"] == "session.route" and session.startswith(str(note["session"]))
    ]
    return float(told[-1]["predicted_ms"])


def error_percent(origin: Node, answer: Streamed) -> float:
    """How far the prediction was off, of what came."""
    came_ms = 1000 * statistics.fmean(answer.gaps_s)
    return 100 * abs(predicted_ms(origin, answer.session) - came_ms) / came_ms


def predictions(origin: Node, rounds: int) -> list[float]:
    """Errors for answers that run alone, one after the other."""
    asker = Asker(origin.gateway.url)
    answers = [asker.one(prompt, 48) for _ in range(rounds) for prompt in ALONE_PROMPTS]
    return [error_percent(origin, answer) for answer in answers]


def main() -> int:
    parser = argparse.ArgumentParser("scripts/bench_swarm", description=__doc__)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64, help="most tokens of an answer")
    parser.add_argument("--cuts", nargs="+", default=["0:15", "15:30"], help="layers by node")
    parser.add_argument("--threads", type=int, default=1, help="of each node")
    parser.add_argument("--rounds", type=int, default=5, help="of predictions")
    parser.add_argument("--seed", type=int, default=1)
    add_engine_options(parser)
    options = parser.parse_args()
    end_orderly()
    print_machine()
    engine = engine_of(options)
    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder, Swarm(Path(folder)) as swarm:
        with console.status("starting"):
            cores = ["0,1"] * len(options.cuts)
            origin = engine.start(swarm, options.cuts, cores, options.threads)[0]
        console.print(f"{engine.title}, {' '.join(options.cuts)}", style="dim")
        with console.status("answers alone"):
            alone = predictions(origin, options.rounds)
        with console.status(f"{options.streams} streams"):
            answers = load(origin.gateway.url, options.streams, options.tokens, options.seed)
        report_load(answers)
        good = [a for a in answers if a.error is None and a.gaps_s]
        crowd = [error_percent(origin, answer) for answer in good]
    rows = [("alone", spread(alone)), ("all at once", spread(crowd) if crowd else "-")]
    print_table("ms per token as planned, error in % of what came", ["answers", "error"], rows)
    return 1 if any(what.startswith("failed") for what in outcomes(answers)) else 0


if __name__ == "__main__":
    raise SystemExit(main())
