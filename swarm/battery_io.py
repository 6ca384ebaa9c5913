"""Looks at the machine's battery, and has the node announce its departure before it is empty."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil

from swarm.battery import Battery, Charge
from swarm.departure_io import DepartureDesk
from swarm.errors import RequestError
from swarm.owner_config import OwnerConfig


def read_charge() -> Charge | None:
    """None: there is no battery, or the system does not tell of it."""
    read = getattr(psutil, "sensors_battery", None)  # not on every system
    found: Any = None
    if read is not None:
        with suppress(OSError, NotImplementedError):
            found = read()
    if found is None:
        return None
    left_s = found.secsleft
    known = left_s is not None and left_s not in (
        psutil.POWER_TIME_UNKNOWN, psutil.POWER_TIME_UNLIMITED
    )  # fmt: skip
    return Charge(bool(found.power_plugged), found.percent / 100, float(left_s) if known else None)


async def watch_battery(
    config: OwnerConfig,
    desk: DepartureDesk,
    read: Callable[[], Charge | None] = read_charge,
) -> None:
    """Until cancelled, or until there is no battery. An owner's own notice stands."""
    battery, is_ours = Battery(config), False
    while (charge := await asyncio.to_thread(read)) is not None:
        notice = battery.see(charge)
        with suppress(RequestError):  # it leaves already, or its owner took the notice back
            if notice is not None and notice.in_s is None and is_ours:
                is_ours = False
                desk.stay()
            elif notice is not None and notice.in_s is not None and not desk.is_announced:
                desk.leave_in(notice.in_s)
                is_ours = True
        await asyncio.sleep(config.battery_look_s)
