"""Every safeguard is missed when it is off: some seed among the first few breaks an invariant.

The long form, over up to 500 seeds each, is `scripts/sim --ablations`.
"""

from __future__ import annotations

import pytest

from sims.ablations import ABLATIONS
from sims.pool import Job, play
from sims.runner import Options

SEEDS = 60
SLIPS = ("TypeError", "AttributeError", "NameError", "KeyError")
"""What a replacement raises that no longer fits what it replaces: that proves nothing."""

ASKED_FOR = {
    "epoch check", "position trim", "gap refusal", "incarnation persistence", "confirmation rule",
    "loop-lag correction", "outbox budget", "replay window", "abandoned-session refusal",
    "credits", "tombstones", "refutation", "intention before load",
}  # fmt: skip


def test_every_safeguard_has_its_ablation() -> None:
    assert set(ABLATIONS) >= ASKED_FOR


@pytest.mark.parametrize("name", ABLATIONS)
def test_a_safeguard_that_is_off_is_missed(name: str) -> None:
    ablation = ABLATIONS[name]
    seeds = [ablation.seed, *range(1, SEEDS)]
    results = (play(Job(ablation.scenario, seed, Options(), name)) for seed in seeds)
    caught = next((result for result in results if not result.passed), None)
    assert caught is not None
    assert not any(slip in str(caught.violations[0]) for slip in SLIPS), "it does not fit the code"


@pytest.mark.parametrize("name", ABLATIONS)
def test_with_all_safeguards_the_same_seed_passes(name: str) -> None:
    ablation = ABLATIONS[name]
    assert play(Job(ablation.scenario, ablation.seed, Options())).passed
