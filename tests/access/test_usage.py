"""Usage: what is charged for which event, what waits, and what a day has seen."""

from __future__ import annotations

from swarm.access.usage import OTHERS, Amount, Charge, Place, Tally, UsageLine, totals
from swarm.effects import Failed, Finished, Generated, SessionStats, Stalled, Started
from swarm.errors import LinkError
from swarm.terms import Route, SampledToken

ROUTE = Route((), 0.01, 0.01)


def test_a_prompt_is_charged_once_however_often_it_is_run() -> None:
    stats = SessionStats(ROUTE, 1, (0.2,), True, cached_tokens=16)
    events = [
        Started(ROUTE, 1, 16),
        Generated(SampledToken(20, 5)),
        Stalled("gone"),
        Started(ROUTE, 2, 16),
        Generated(SampledToken(21, 6)),
        Finished("length", stats),
    ]
    charge = Charge(20)
    amounts = [amount for event in events if (amount := charge.of(event)) is not None]
    assert sum(amounts, Amount()) == Amount(1, 20, 2, 16)


def test_what_never_began_costs_nothing() -> None:
    stats = SessionStats(None, 0, (), True)
    assert Charge(20).of(Failed(LinkError("gone"), stats)) is None


def test_what_waits_is_bounded_and_survives_a_failed_write() -> None:
    tally = Tally(rows_max=3)
    for number in range(10):
        tally.add(Place(7, "anna", f"model-{number}"), Amount(1, 2, 3))
    rows = tally.take()
    assert len(rows) == 4 and not tally.has_pending
    assert dict(rows)[Place(7, "anna", OTHERS)] == Amount(7, 14, 21)
    tally.add(Place(7, "anna", "model-1"), Amount(1))
    tally.put_back(rows)
    assert sum((amount for _, amount in tally.pending()), Amount()) == Amount(11, 20, 30)


def test_a_day_forgets_the_one_before() -> None:
    tally = Tally(rows_max=100)
    tally.begin_day(7, {"anna": 50})
    tally.add(Place(7, "anna", "m"), Amount(1, 10, 1))
    assert (tally.used("anna", 7), tally.used("bert", 7), tally.used("anna", 8)) == (61, 0, 0)
    tally.add(Place(8, "anna", "m"), Amount(1, 4, 0))
    assert (tally.used("anna", 8), tally.used("anna", 7)) == (4, 0)
    tally.add(Place(7, "anna", "m"), Amount(1, 9, 0))
    assert tally.used("anna", 8) == 4


def test_sums_over_days() -> None:
    lines = [
        UsageLine("2026-01-02", "b", "m", Amount(1, 2, 3, 4)),
        UsageLine("2026-01-01", "a", "m", Amount(1, 1, 1, 1)),
        UsageLine("2026-01-03", "b", "m", Amount(1, 2, 3, 4)),
    ]
    assert totals(lines) == (
        UsageLine("", "a", "m", Amount(1, 1, 1, 1)),
        UsageLine("", "b", "m", Amount(2, 4, 6, 8)),
    )
