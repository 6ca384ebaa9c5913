"""What membership costs and how fast it knows, by the size of the swarm."""

from __future__ import annotations

from sims.figure import Cell, Figure, Kind, command, quantile
from sims.measures import GossipJob, GossipMeasure, gossip_measure
from sims.progress import measured
from sims.wishes import Wishes

COUNTS = (10, 32, 100)
LOSS = 0.01
CHANGES = 100
SEEDS = 2
LARGE = 100
LARGE_CHANGES = 50
BYTES_AIMS = ((10, 8000.0), (100, 20000.0), (1000, 30000.0))
CHANGE_AIMS = ((32, 0.3), (100, 1.0), (1000, 2.0))


def gossip(wishes: Wishes) -> Figure:
    """Gossip cores and address books alone, on a wired network."""
    wished = wishes.options.node_count
    counts = COUNTS if wished is None else tuple(sorted({*COUNTS, wished}))
    jobs = [
        GossipJob(seed, count, LARGE_CHANGES if count >= LARGE else CHANGES, LOSS)
        for count in reversed(counts)
        for seed in range(wishes.first_seed, wishes.first_seed + _seeds(wishes, count))
    ]
    taken = list(measured(wishes, "swarms", gossip_measure, jobs))
    rows = [_row(count, [m for m in taken if m.job.count == count]) for count in counts]
    samples: dict[str, list[float]] = {"nodes": [float(count) for count in counts]}
    for column, name in ((1, "idle bytes per s"), (2, "busy bytes per s")):
        samples[name] = [float(str(row[column])) for row in rows]
    for count in counts:
        samples[f"change {count}"] = [s for m in taken if m.job.count == count for s in m.changes_s]
    return Figure(
        "gossip",
        "Gossip by the size of the swarm",
        ("nodes", "idle B/s", "busy B/s", "aim B/s", "known p50 s", "known p99 s", "worst s",
         "aim s", "joined s", "met"),
        tuple(rows),
        command("gossip", wishes),
        (
            "B/s: sealed gossip frames that one node sends, without TCP/IP headers; busy: the"
            " figures of every node move all the time.",
            f"known: from a change of a layer range until the last node knows, with {LOSS:.0%} of"
            " the packets lost.",
        ),
        all(row[-1] is not False for row in rows),
        samples,
    )  # fmt: skip


def _seeds(wishes: Wishes, count: int) -> int:
    return wishes.seeds or (1 if count >= LARGE else SEEDS)


def _row(count: int, measured: list[GossipMeasure]) -> tuple[Cell, ...]:
    changes = [seconds for m in measured for seconds in m.changes_s]
    idle = max(m.idle_bytes_s for m in measured)
    busy = max(m.busy_bytes_s for m in measured)
    p99 = quantile(changes, 0.99)
    bytes_aim, change_aim = _aim(BYTES_AIMS, count), _aim(CHANGE_AIMS, count)
    is_met = (bytes_aim is None or busy <= bytes_aim) and (change_aim is None or p99 <= change_aim)
    joined = max(m.joined_s for m in measured)
    return (count, idle, busy, bytes_aim, quantile(changes, 0.5), p99, max(changes), change_aim,
            joined, is_met)  # fmt: skip


def _aim(aims: tuple[tuple[int, float], ...], count: int) -> float | None:
    """That of the next larger size with one."""
    return next((aim for size, aim in aims if count <= size), None)


KINDS = (Kind("gossip", "bytes per node and convergence against the number of nodes", gossip),)
