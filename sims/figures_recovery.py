"""What losses cost, and what is mistaken for one."""

from __future__ import annotations

from sims import catalogue
from sims.figure import Cell, Figure, Kind, command, quantile, spread_of
from sims.measures import (
    CafeDay,
    Loss,
    Parting,
    Steady,
    Weather,
    cafe_day,
    events_of,
    false_cut_overs,
    false_deaths,
    heal_seconds,
    loss_of,
)
from sims.pool import Job, play
from sims.progress import Milestones, measured
from sims.runner import Options, Result
from sims.wishes import Wishes

FAILOVERS = ("peer death", "worker crash", "silent death", "wedged node", "double death")
FAILOVER_SEEDS = 40
HEAL_COUNTS = (10, 32)
HEAL_SEEDS = 5
HEAL_AIM_S = 3.0
WEATHER_NODES = 10
WEATHER_MINUTES = 60.0
WEATHER_SEEDS = 4
WEATHERS = ((0.05, 0.0, 1), (0.20, 1.0, 4))
"""Share of packets lost, how many false deaths in 100 node-hours may come of it, and of how many
seeds one is played: none in a thousand hours takes longer to see than one in a hundred."""
STEADY_MINUTES = 60.0
STEADY_SEEDS = 2
STEADIES = ((False, 0.0, 1), (True, 1.0, 4))
"""Whether one is on Wi-Fi, how many false cut-overs an hour there may be, and of how many seeds one
is played: none in a day takes longer to see than one in an hour."""
CAFE_DAYS = 6
STORM_NODES = 20
STORM_MINUTES = 60.0


def _seeds(wishes: Wishes, usual: int) -> range:
    return range(wishes.first_seed, wishes.first_seed + (wishes.seeds or usual))


def failover(wishes: Wishes) -> Figure:
    seeds = _seeds(wishes, FAILOVER_SEEDS)
    jobs = [Job(catalogue.find(name).name, seed) for name in FAILOVERS for seed in seeds]
    taken = list(measured(wishes, "losses", loss_of, jobs))
    rows: list[tuple[Cell, ...]] = []
    samples: dict[str, list[float]] = {}
    for name in FAILOVERS:
        losses = [loss for job, loss in taken if job.scenario == name]
        stalls = [ms for loss in losses for ms in loss.stalls_ms]
        detections = [ms for loss in losses for ms in loss.detections_ms]
        samples[f"stall {name}"], samples[f"detection {name}"] = stalls, detections
        rows.append((name, len(losses), *_three(detections), *_three(stalls), _per_loss(losses),
                     all(loss.passed for loss in losses)))  # fmt: skip
    return Figure(
        "failover",
        "What a loss costs, in virtual milliseconds",
        ("scenario", "runs", "noticed p50", "p99", "max", "stall p50", "p99 ", "max ",
         "reroutes per loss", "held"),
        tuple(rows),
        command("failover", wishes),
        (
            "noticed: from the loss to the reroute; stall: from the last sign of progress to the"
            " next token. A loss that no answer was using causes none.",
        ),
        all(row[-1] is True for row in rows),
        samples,
    )  # fmt: skip


def _three(values: list[float]) -> tuple[float | None, ...]:
    if not values:
        return None, None, None
    return quantile(values, 0.5), quantile(values, 0.99), max(values)


def _per_loss(losses: list[Loss]) -> float | None:
    faults = sum(loss.fault_count for loss in losses)
    return sum(loss.reroute_count for loss in losses) / faults if faults else None


def heal(wishes: Wishes) -> Figure:
    wished = wishes.options.node_count
    counts = HEAL_COUNTS if wished is None else (wished,)
    seeds = _seeds(wishes, HEAL_SEEDS)
    jobs = [Parting(seed, count) for count in reversed(counts) for seed in seeds]
    taken = list(measured(wishes, "partitions", heal_seconds, jobs))
    rows: list[tuple[Cell, ...]] = []
    samples: dict[str, list[float]] = {}
    for count in counts:
        seconds = [s for parting, s in taken if parting.count == count]
        samples[f"heal {count}"] = seconds
        rows.append(
            (count, len(seconds), spread_of(seconds), HEAL_AIM_S, max(seconds) <= HEAL_AIM_S)
        )
    return Figure(
        "heal",
        "From the end of a partition to identical views, seconds",
        ("nodes", "runs", "measured", "aim", "met"),
        tuple(rows),
        command("heal", wishes),
        ("Whole nodes; two halves that have held each other for dead.",),
        all(row[-1] is True for row in rows),
        samples,
    )


def deaths(wishes: Wishes) -> Figure:
    count = wishes.options.node_count or WEATHER_NODES
    minutes = wishes.options.minutes or WEATHER_MINUTES
    seeds = _seeds(wishes, WEATHER_SEEDS)
    jobs = [
        Weather(seed, count, loss, minutes)
        for loss, _, one_in in WEATHERS
        for seed in (seeds if len(seeds) <= WEATHER_SEEDS else seeds[::one_in])
    ]
    taken = list(measured(wishes, "worlds", false_deaths, jobs))
    rows: list[tuple[Cell, ...]] = []
    for loss, allowed, _ in WEATHERS:
        results = [result for weather, result in taken if weather.loss == loss]
        hours = count * minutes / 60.0 * len(results)
        events = events_of(results)
        found = events["member.dead"]
        rate = 100.0 * found / hours
        rows.append((f"{loss:.0%}", hours, events["member.suspect"], events["gossip.refuted"],
                     found, rate, allowed, rate <= allowed))  # fmt: skip
    return Figure(
        "false-deaths",
        "Living nodes that were declared dead",
        ("lost packets", "node-hours", "suspicions", "refutations", "deaths declared",
         "per 100 node-hours", "aim", "met"),
        tuple(rows),
        command("false-deaths", wishes),
        (
            f"Whole nodes, {count} a world; stalls of up to 300 ms, one machine starved all the"
            " time. Every node that declares a death counts.",
        ),
        all(row[-1] is True for row in rows),
    )  # fmt: skip


def cut_overs(wishes: Wishes) -> Figure:
    minutes = wishes.options.minutes or STEADY_MINUTES
    seeds = _seeds(wishes, STEADY_SEEDS)
    jobs = [
        Steady(seed, minutes, wifi)
        for wifi, _, one_in in STEADIES
        for seed in (seeds if len(seeds) <= STEADY_SEEDS else seeds[::one_in])
    ]
    taken = list(measured(wishes, "worlds", false_cut_overs, jobs))
    rows: list[tuple[Cell, ...]] = []
    for wifi, aim, _ in STEADIES:
        results = [result for steady, result in taken if steady.wifi is wifi]
        hours = sum(result.virtual_s for result in results) / 3600.0
        events = events_of(results)
        rate = events["session.reroute"] / hours
        right = all(result.passed for result in results)
        name = "one on Wi-Fi" if wifi else "all wired"
        rows.append((name, hours, events["peer.quiet"], events["session.reroute"], rate, aim,
                     right, right and rate <= aim))  # fmt: skip
    return Figure(
        "false-cut-overs",
        "Hops that were cut over though nothing was the matter",
        ("three hops", "hours", "soft alarms", "cut-overs", "per hour", "aim", "right answers",
         "met"),
        tuple(rows),
        command("false-cut-overs", wishes),
        ("One answer after the other, about four tokens a second; nothing is done to anybody.",),
        all(row[-1] is True for row in rows),
    )  # fmt: skip


def kill_storm(wishes: Wishes) -> Figure:
    options = Options(
        wishes.options.node_count or STORM_NODES, wishes.options.minutes or STORM_MINUTES
    )
    jobs = [Job("kill storm", seed, options) for seed in _seeds(wishes, 1)]
    taken = list(measured(wishes, "storms", storm_of, jobs))
    rows: list[tuple[Cell, ...]] = []
    samples: dict[str, list[float]] = {"stall": []}
    for job, loss, result in sorted(taken, key=lambda entry: entry[0].seed):
        answers = result.outcomes.total()
        finished = result.outcomes["finished"]
        samples["stall"] += loss.stalls_ms
        rows.append((job.seed, result.virtual_s / 60.0, loss.fault_count, answers, finished,
                     answers - finished, loss.reroute_count, *_three(loss.stalls_ms),
                     result.passed))  # fmt: skip
    broken = [str(r.violations[0]) for _, _, r in taken if r.violations]
    return Figure(
        "kill-storm",
        f"One machine in ten killed every ten seconds, {options.node_count} nodes",
        ("seed", "minutes", "kills", "answers", "whole", "lost", "reroutes", "stall p50 ms",
         "p99", "max", "all held"),
        tuple(rows),
        command("kill-storm", wishes),
        ("all held: no answer wrong or lost, and every other invariant.", *broken),
        all(row[-1] is True and row[5] == 0 for row in rows),
        samples,
    )  # fmt: skip


def storm_of(job: Job) -> tuple[Job, Loss, Result]:
    loss = Loss()
    result = play(job, Milestones(f"kill storm, seed {job.seed}", loss))
    return job, loss, result


def departures(wishes: Wishes) -> Figure:
    seeds = _seeds(wishes, CAFE_DAYS)
    jobs = [CafeDay(seed, knows) for seed in seeds for knows in (False, True)]
    taken = list(measured(wishes, "days", cafe_day, jobs))
    rows: list[tuple[Cell, ...]] = []
    found: list[tuple[float, float]] = []
    for knows in (False, True):
        days = [tally for day, tally in taken if day.knows is knows]
        tokens, stalls = sum(t.tokens for t in days), sum(t.stalls for t in days)
        pace = tokens / sum(t.busy_s for t in days)
        found.append((1000.0 * stalls / tokens, pace))
        rows.append(("heeded" if knows else "not heeded", len(days),
                     sum(t.departures for t in days), tokens, stalls, *found[-1]))  # fmt: skip
    left, slower = found[1][0] / found[0][0], 1.0 - found[1][1] / found[0][1]
    return Figure(
        "departures",
        "A cafe's day: what it saves to heed how long machines used to stay",
        ("histories of stays", "days", "departures", "tokens", "stalls", "per 1,000 tokens",
         "tokens a second and answer"),
        tuple(rows),
        command("departures", wishes),
        (
            f"{left:.0%} of the stalls are left (aim: 50 % at most), {slower:.1%} of the throughput"
            " is given up (aim: 10 % at most). The distribution is stated in sims/cafe.py; the"
            " planner and the memory of stays are the production ones, without messages.",
        ),
        left <= 0.5 and slower <= 0.1,
    )  # fmt: skip


KINDS = (
    Kind("departures", "stalls in a cafe, with and without histories of stays", departures),
    Kind("failover", "stalls, detection times and reroutes of the failover scenarios", failover),
    Kind("heal", "time to identical views after a partition", heal),
    Kind("false-deaths", "living nodes declared dead under loss, stalls and starvation", deaths),
    Kind("false-cut-overs", "hops cut over for nothing, wired and on Wi-Fi", cut_overs),
    Kind("kill-storm", "an hour in which one machine in ten is killed every 10 s", kill_storm),
)
