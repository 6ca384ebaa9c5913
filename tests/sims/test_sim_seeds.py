"""Bad days in the suite: three hundred seeds of anything, every story twice, and every seed that
once found something wrong. A failure prints its own replay command.
"""

from __future__ import annotations

import pytest

from sims import catalogue
from sims.pool import Job, play
from sims.runner import Options

MIXED_SEEDS = 300
SEEDS_PER_TEST = 10
LONG = ("kill storm", "quiet hours", "big hall", "steady hour", "better split", "wanted copies",
        "cafe day")  # fmt: skip
"""Told for minutes or to dozens of machines: with a wish of their own below."""

FOUND = [
    ("mixed", 13, "rows were dropped before they were sent, and outboxes grew over their budget"),
    ("mixed", 21, "a closed socket of a sleeping machine retried without end"),
    ("mixed", 74, "a lost restart counter was called a copied identity"),
    ("mixed", 173, "a hop punished a neighbour that had been given another route"),
    ("mixed", 5028, "two retries at one instant stopped the clock"),
    ("mixed", 7033, "a token that the head still held acted as credit in a rebuild"),
    ("mixed", 1091, "rows that were held back left an outbox over its budget once they were sent"),
    ("mixed", 1352, "a node that leaves was counted as cover for its own answer"),
    ("mixed", 1386, "views were judged in the instant in which a fresh record went round"),
    ("mixed", 1032, "a request whose hop was out of reach was refused while others only rested"),
    ("mixed", 40100, "a pair that could not be joined was left out beyond the life of one of them"),
    ("mixed", 41733, "the last word of a life that had ended was taken for one of the next"),
    ("mixed", 41734, "refusals for want of a link ended a request that was to wait for cover"),
    ("mixed", 200008, "no way by a third node was sought while a dial hung"),
    ("mixed", 200757, "the speed of layers just taken was told two seconds after they served"),
    ("mixed", 201086, "an opening whose link broke is a vain one too"),
    ("mixed", 201643, "rows that a resumed session needs no more were kept beyond the budget"),
    ("mixed", 204804, "a token of a hop whose machine had lost its disk ended its reader"),
    ("mixed", 207430, "the only holder of layers was silent for a moment, and nobody asked it"),
    ("mixed", 209084, "a gap on the path of the origin itself takes all hops of a route"),
    ("mixed", 205347, "a worker that wedged just before a load was given the load's patience"),
    ("moved boundary", 1, "one late packet between two hops cost an answer its only route"),
    ("small outboxes", 1, "hops rebuild while a token that was sampled before is delivered"),
]
"""Scenario, seed, and what was wrong."""


def judge(scenario: str, seed: int, options: Options = Options()) -> None:  # noqa: B008
    result = play(Job(scenario, seed, options))
    command = f"scripts/sim --scenario '{scenario}' --seed {seed}"
    assert result.passed, f"{result.violations[0]}\nreplay: {command}"


@pytest.mark.parametrize("first", range(1, MIXED_SEEDS + 1, SEEDS_PER_TEST))
def test_anything_may_happen_to_anybody(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        judge("mixed", seed)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("scenario", [name for name in catalogue.names() if name not in LONG])
def test_every_story_ends_well(scenario: str, seed: int) -> None:
    judge(scenario, seed)


@pytest.mark.parametrize(("scenario", "seed", "found"), FOUND)
def test_what_was_found_once_stays_mended(scenario: str, seed: int, found: str) -> None:
    judge(scenario, seed)


def test_a_storm_and_quiet_hours_in_short() -> None:
    judge("kill storm", 1, Options(node_count=8, minutes=2.0))
    judge("quiet hours", 1, Options(node_count=5, minutes=2.0))


def test_moves_in_short() -> None:
    judge("better split", 1, Options(minutes=3.0))
    judge("steady hour", 1, Options(minutes=4.0))


@pytest.mark.slow
def test_moves() -> None:
    judge("wanted copies", 1)
    judge("cafe day", 1)
    judge("better split", 2)
    judge("steady hour", 2)


@pytest.mark.slow
def test_a_hall_of_fifty_machines() -> None:
    judge("big hall", 1)
