"""Looks at the machine's battery, and has the node announce its departure before it is empty."""

from __future__ import annotations

import asyncio
import time
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
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Until cancelled; at once where there is no battery. An owner's own notice stands."""
    battery, ours = Battery(config), None
    charge = await asyncio.to_thread(read)
    if charge is None:
        return
    while True:
        notice = None if charge is None else battery.see(charge, clock())
        with suppress(RequestError):  # it leaves already
            if notice is not None and notice.in_s is None and desk.notice is ours is not None:
                desk.stay()
            elif notice is not None and notice.in_s is not None and desk.notice in (None, ours):
                ours = desk.leave_in(notice.in_s)
        await asyncio.sleep(config.battery_look_s)
        charge = await asyncio.to_thread(read)  # None: it could not be read this time
