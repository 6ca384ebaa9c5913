"""How fast the simulator is, and that a seed is one run."""

from __future__ import annotations

import time

from sims import catalogue, repeats
from sims.figure import Cell, Figure, Kind, command, spread_of
from sims.measures import idle_rate
from sims.pool import Job, play
from sims.runner import Options
from sims.wishes import Wishes

ROUNDS = 3
IDLE_NODES = (10, 100)
IDLE_MINUTES = {10: 2.0, 100: 2.0}
LARGE = 100
"""From this many nodes on one round is enough."""
IDLE_RATE_AIM = 100.0
SEEDS = 20
SEEDS_AIM = 3.0
REPLAYS = 100
REPLAYED = (("mixed", 1), ("mixed", 2), ("rolling restart", 1), ("cloned identity", 1))


def speed(wishes: Wishes) -> Figure:
    """In this one process, one run after the other."""
    rows: list[tuple[Cell, ...]] = []
    samples: dict[str, list[float]] = {}
    wished = wishes.options.node_count
    for count in IDLE_NODES if wished is None else (IDLE_NODES[0], wished):
        minutes = wishes.options.minutes or IDLE_MINUTES.get(count, 2.0)
        job = Job("quiet hours", 1, Options(count, minutes))
        rounds = [idle_rate(job) for _ in range(ROUNDS if count < LARGE else 1)]
        rates = [rate for rate, _ in rounds]
        aim = IDLE_RATE_AIM if count == IDLE_NODES[0] else None
        held = all(result.passed for _, result in rounds)
        what = f"{count} idle nodes, virtual s per real s"
        rows.append((what, spread_of(rates), aim, held and (aim is None or max(rates) >= aim)))
        samples[f"idle {count}"] = rates
    seeds = range(wishes.first_seed, wishes.first_seed + (wishes.seeds or SEEDS))
    began_s = time.process_time()
    mixed = [play(Job("mixed", seed)) for seed in seeds]
    rate = len(mixed) / (time.process_time() - began_s)
    what = f"mixed seeds per second and core, over {len(mixed)}"
    rows.append((what, spread_of([rate]), SEEDS_AIM, rate >= SEEDS_AIM))
    steps = [1e6 * result.real_s / max(1, result.steps) for result in mixed]
    rows.append(("microseconds per step of the loop, mixed", spread_of(steps), None, None))
    samples["mixed seeds"] = [1 / result.real_s for result in mixed if result.real_s]
    return Figure(
        "speed",
        "How fast the simulator is",
        ("what", "measured", "aim", "met"),
        tuple(rows),
        command("speed", wishes),
        (
            "Median of the rounds, with the least and the most. One process. Idle: the later half"
            " of the run, when all have joined. Seeds per second are of processor time.",
        ),
        all(row[3] is not False for row in rows),
        samples,
    )


def determinism(wishes: Wishes) -> Figure:
    rows: list[tuple[Cell, ...]] = []
    for name, seed in REPLAYED:
        job = Job(catalogue.find(name).name, seed)
        replayed = list(repeats.again(wishes, job, wishes.seeds or REPLAYS))
        hashed = [repeats.under(job, hash_seed) for hash_seed in repeats.HASH_SEEDS]
        traces = len({*replayed, *hashed})
        rows.append((name, seed, len(replayed), len(hashed), traces, traces == 1))
    return Figure(
        "determinism",
        "A seed is one run",
        ("scenario", "seed", "replays", "hash seeds", "different traces", "one trace"),
        tuple(rows),
        command("determinism", wishes),
        (f"Hash seeds: fresh interpreters with PYTHONHASHSEED {', '.join(repeats.HASH_SEEDS)}.",),
        all(row[-1] is True for row in rows),
    )


KINDS = (
    Kind("speed", "virtual seconds per real one, seeds per second", speed),
    Kind("determinism", "replays and hash seeds give one trace", determinism),
)
