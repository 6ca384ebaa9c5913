"""A battery that runs down, and a charger that comes in time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import psutil
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
    assert battery.see(charge, 0.0) == (None if in_s is None else Notice(in_s))
    assert battery.see(charge, 1.0) is None, "once"


def test_a_charger_takes_it_back_and_the_next_low_is_told_again() -> None:
    battery = Battery(CONFIG)
    assert battery.see(PLUGGED, 0.0) is None
    assert battery.see(on_battery(0.1, 300.0), 1.0) == Notice(240.0)
    assert battery.see(PLUGGED, 2.0) == Notice(None)
    assert battery.see(on_battery(0.1, 300.0), 3.0) == Notice(240.0)


def test_what_the_system_reckons_may_change() -> None:
    battery = Battery(CONFIG)
    assert battery.see(on_battery(0.3, 880.0), 0.0) == Notice(820.0)
    assert battery.see(on_battery(0.3, 1500.0), 30.0) is None, "it wanders"
    assert battery.see(on_battery(0.3, 500.0), 60.0) is None
    assert battery.see(on_battery(0.3, 7200.0), 90.0) == Notice(None), "the game is over"
    assert battery.see(on_battery(0.3, 880.0), 120.0) == Notice(820.0)
    assert battery.see(on_battery(0.1, 300.0), 150.0) == Notice(240.0), "the next one began"
    assert battery.see(on_battery(0.05, 90.0), 330.0) is None, "no less than a minute"


def test_an_owner_may_switch_it_off() -> None:
    assert Battery(OwnerConfig(battery_notice_s=0.0)).see(on_battery(0.01, 0.0), 0.0) is None
    assert Battery(OwnerConfig(battery_notice_s=0.0)).see(on_battery(0.01, None), 0.0) is None


def told(
    charges: list[Charge | None], *, owner_s: float | None = None, at_look: int = 0
) -> list[float | None]:
    """The notices of a node whose battery shows these, one after the other. `owner_s`: what its
    owner announces before that look."""
    node, left = FakeNode(), list(charges)

    async def scene() -> None:
        desk = DepartureDesk(node, 1.0, lambda: None, print)
        over, loop = asyncio.Event(), asyncio.get_running_loop()

        def read() -> Charge | None:
            if owner_s is not None and len(charges) - len(left) == at_look:
                asyncio.run_coroutine_threadsafe(announce(owner_s), loop).result()
            if not left:
                loop.call_soon_threadsafe(over.set)
            return left.pop(0) if left else None

        async def announce(in_s: float) -> None:
            desk.leave_in(in_s)

        watch = asyncio.create_task(watch_battery(CONFIG, desk, read))
        await asyncio.wait_for(over.wait(), 10.0)
        watch.cancel()
        await desk.close()

    asyncio.run(scene())
    return node.notices


LOW = on_battery(0.1, 300.0)


def test_the_node_is_told() -> None:
    assert told([on_battery(0.9, 9000.0), LOW, LOW, PLUGGED]) == [240.0, None]
    assert told([on_battery(0.9, 9000.0), None, LOW]) == [240.0], "one look may fail"
    assert told([]) == []


@pytest.mark.parametrize(("at_look", "notices"), [(0, [3600.0]), (1, [240.0, 3600.0])])
def test_what_its_owner_announces_stands(at_look: int, notices: list[float]) -> None:
    assert told([LOW, LOW, PLUGGED, LOW], owner_s=3600.0, at_look=at_look) == notices


@pytest.mark.parametrize(
    ("left_s", "expected"),
    [(600, 600.0), (psutil.POWER_TIME_UNKNOWN, None), (psutil.POWER_TIME_UNLIMITED, None)],
)
def test_what_the_system_says_is_read(
    left_s: int, expected: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = SimpleNamespace(percent=40.0, secsleft=left_s, power_plugged=False)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: said, raising=False)
    assert read_charge() == Charge(is_plugged=False, share=0.4, left_s=expected)


def test_a_machine_without_a_battery_that_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise OSError("no such file")

    monkeypatch.setattr(psutil, "sensors_battery", fails, raising=False)
    assert read_charge() is None
    monkeypatch.delattr(psutil, "sensors_battery")
    assert read_charge() is None
