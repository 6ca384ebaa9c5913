"""A battery that runs down, and a charger that comes in time."""

from __future__ import annotations

import asyncio

import pytest
from fake_node import FakeNode

from swarm.battery import MARGIN_S, Battery, Charge, Notice
from swarm.battery_io import read_charge, watch_battery
from swarm.departure_io import DepartureDesk
from swarm.owner_config import OwnerConfig

CONFIG = OwnerConfig(battery_look_s=0.0)


def on_battery(share: float, left_s: float | None) -> Charge:
    return Charge(is_plugged=False, share=share, left_s=left_s)


PLUGGED = Charge(is_plugged=True, share=0.05, left_s=None)


@pytest.mark.parametrize(
    ("charge", "in_s"),
    [
        (on_battery(0.5, 7200.0), None),
        (on_battery(0.5, 901.0), None),
        (on_battery(0.5, 900.0), 840.0),
        (on_battery(0.01, 20.0), MARGIN_S),
        (on_battery(0.2, None), None),
        (on_battery(0.1, None), 840.0),
        (PLUGGED, None),
    ],
)
def test_it_is_announced_when_little_is_left(charge: Charge, in_s: float | None) -> None:
    battery = Battery(CONFIG)
    assert battery.see(charge) == (None if in_s is None else Notice(in_s))
    assert battery.see(charge) is None, "once"


def test_a_charger_takes_it_back_and_the_next_low_is_told_again() -> None:
    battery = Battery(CONFIG)
    assert battery.see(PLUGGED) is None
    assert battery.see(on_battery(0.1, 300.0)) == Notice(240.0)
    assert battery.see(PLUGGED) == Notice(None)
    assert battery.see(on_battery(0.1, 300.0)) == Notice(240.0)


def test_an_owner_may_switch_it_off() -> None:
    assert Battery(OwnerConfig(battery_notice_s=0.0)).see(on_battery(0.01, 0.0)) is None
    assert Battery(OwnerConfig(battery_notice_s=0.0)).see(on_battery(0.01, None)) is None


def told(charges: list[Charge], *, owner_s: float | None = None) -> list[float | None]:
    """The notices of a node whose battery shows these, one after the other, and is then gone."""
    node, left = FakeNode(), list(charges)

    async def scene() -> None:
        desk = DepartureDesk(node, 1.0, lambda: None, print)
        if owner_s is not None:
            desk.leave_in(owner_s)
        await watch_battery(CONFIG, desk, lambda: left.pop(0) if left else None)
        await desk.close()

    asyncio.run(scene())
    return node.notices


def test_the_node_is_told() -> None:
    low = on_battery(0.1, 300.0)
    assert told([on_battery(0.9, 9000.0), low, low, PLUGGED]) == [240.0, None]
    assert told([low, PLUGGED], owner_s=3600.0) == [3600.0], "what its owner said stands"
    assert told([]) == []


def test_this_machine_is_read() -> None:
    charge = read_charge()
    assert charge is None or 0.0 <= charge.share <= 1.0
