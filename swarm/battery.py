"""A machine whose battery runs down announces that it will leave. Pure; `battery_io` reads it."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.owner_config import OwnerConfig

MARGIN_S = 60.0
"""It goes so long before the system would switch the machine off, and after no less notice."""


@dataclass(frozen=True, slots=True)
class Charge:
    is_plugged: bool
    share: float
    """What is left of it, 0 to 1."""
    left_s: float | None
    """Until it is empty, as the system reckons; None: it does not say."""


@dataclass(frozen=True, slots=True)
class Notice:
    """The machine should leave in so many seconds. None: it may stay after all."""

    in_s: float | None


class Battery:
    """Told of each reading; says when there is something to announce, or to take back."""

    def __init__(self, config: OwnerConfig) -> None:
        self._config = config
        self._is_low = False

    def see(self, charge: Charge) -> Notice | None:
        if charge.is_plugged:
            was_low, self._is_low = self._is_low, False
            return Notice(None) if was_low else None
        notice_s = self._config.battery_notice_s
        if charge.left_s is not None:
            is_low = charge.left_s <= notice_s
        else:
            is_low = charge.share <= self._config.battery_share
        if self._is_low or not is_low or not notice_s:
            return None
        self._is_low = True
        left_s = notice_s if charge.left_s is None else charge.left_s
        return Notice(max(MARGIN_S, left_s - MARGIN_S))
