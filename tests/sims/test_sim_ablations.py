"""Every safeguard is missed when it is off: its known seed, or one of the first few, breaks the
invariant that it should.

The long form, over up to 500 seeds each, is `scripts/sim --ablations`.
"""

from __future__ import annotations

import pytest

from sims.mutants import MUTANTS
from sims.pool import Job, play
from sims.runner import ALL, Options

SEEDS = 60
"""Tried after the known one, which moves with every change of what a node does."""
SLIPS = ("TypeError", "AttributeError", "NameError", "KeyError")
"""What a replacement raises that no longer fits what it replaces: that proves nothing."""

ASKED_FOR = {
    "epoch check", "position trim", "gap refusal", "incarnation persistence", "confirmation rule",
    "loop-lag correction", "outbox budget", "replay window", "abandoned-session refusal",
    "credits", "tombstones", "refutation", "intention before load",
}  # fmt: skip


def test_every_safeguard_has_its_ablation() -> None:
    assert set(MUTANTS) >= ASKED_FOR


def test_every_invariant_is_known_to_see() -> None:
    proven = {mutant.catcher for mutant in MUTANTS.values()}
    assert {kind.name for kind in ALL} <= proven


@pytest.mark.parametrize("name", MUTANTS)
def test_a_safeguard_that_is_off_is_missed(name: str) -> None:
    mutant = MUTANTS[name]
    for seed in [mutant.seed, *range(1, SEEDS)]:
        violations = play(Job(mutant.scenario, seed, Options(), name)).violations
        told = " ".join(map(str, violations))
        assert not any(slip in told for slip in SLIPS), "it does not fit the code any more"
        if mutant.catcher in {violation.invariant for violation in violations}:
            return
    pytest.fail(f"{SEEDS} seeds of {mutant.scenario} break no {mutant.catcher!r}")


@pytest.mark.parametrize(
    ("scenario", "seed"), sorted({(m.scenario, m.seed) for m in MUTANTS.values()})
)
def test_with_all_safeguards_the_same_seed_passes(scenario: str, seed: int) -> None:
    assert play(Job(scenario, seed, Options())).passed
