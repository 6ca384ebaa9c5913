"""The simulated side of `scripts/bench_reality`, and the comparison itself."""

from __future__ import annotations

from sims.reality import (
    BURIED,
    CASES,
    KILLED,
    SUSPECTED,
    UNPLUGGED,
    Comparison,
    Host,
    Samples,
    Setting,
    compare,
    quartiles,
    simulate,
)
from sims.worker import Speed

SPEED = Speed(decode_s=0.001, prefill_s=0.0003, head_s=0.004)
RUNS = 3


def setting(*teardowns_s: float, reactions_s: tuple[float, ...] = (0.001, 0.003)) -> Setting:
    hosts = (
        Host("origin"),
        Host("first", (0, 15), SPEED),
        Host("last1", (15, 30), SPEED),
        Host("last2", (15, 30), SPEED),
    )
    return Setting(30, hosts, ("first", "last1", "last2"), teardowns_s, reactions_s)


def test_every_loss_is_noticed_within_its_bounds() -> None:
    samples = simulate(setting(0.01, 0.02), RUNS, seed=1)
    assert set(samples) == set(CASES)
    assert [len(samples[case]) for case in CASES] == [RUNS, RUNS, 3 * RUNS, 3 * RUNS]
    assert all(10.0 <= ms <= 30.0 for ms in samples[KILLED])
    assert all(220.0 <= ms <= 400.0 for ms in samples[UNPLUGGED])
    assert all(1200.0 <= ms <= 2000.0 for ms in samples[SUSPECTED])
    assert all(2700.0 <= ms <= 5000.0 for ms in samples[BURIED])


def test_one_seed_gives_one_set_of_samples() -> None:
    assert simulate(setting(0.01, 0.02), 1, seed=7) == simulate(setting(0.01, 0.02), 1, seed=7)


def test_a_model_without_teardown_is_found_out() -> None:
    real = simulate(setting(0.015, 0.02), RUNS, seed=1)
    wrong = simulate(setting(0.0), RUNS, seed=2)
    apart = {entry.case for entry in compare(real, wrong) if not entry.agrees}
    assert apart == {KILLED}


def test_slow_reactions_tell() -> None:
    quick = simulate(setting(0.01, reactions_s=()), RUNS, seed=1)[KILLED]
    slow = simulate(setting(0.01, reactions_s=(0.004,)), RUNS, seed=1)[KILLED]
    assert all(10.0 <= ms <= 11.0 for ms in quick)
    assert all(10.0 <= ms <= 23.0 for ms in slow)
    assert max(slow) >= 12.0


def test_agreement_is_of_medians_within_the_tolerance() -> None:
    def agrees(simulated: float) -> bool:
        return Comparison(KILLED, (100.0,), (simulated,)).agrees

    assert agrees(114.9) and agrees(85.1)
    assert not agrees(115.1) and not agrees(84.9)


def test_quartile_ratios() -> None:
    real: Samples = {case: [1.0, 2.0, 3.0, 4.0, 5.0] for case in CASES}
    twice: Samples = {case: [2 * ms for ms in real[case]] for case in CASES}
    assert quartiles(real[KILLED]) == (2.0, 3.0, 4.0)
    assert all(entry.quartile_ratios == (2.0, 2.0, 2.0) for entry in compare(real, twice))
    assert quartiles([7.0]) == (7.0, 7.0, 7.0)
