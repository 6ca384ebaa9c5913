"""A machine whose battery runs down announces that it will leave. Pure; `battery_io` reads it."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.owner_config import OwnerConfig

MARGIN_S = 60.0
"""It goes so long before the system would switch the machine off, and after no less notice."""
RECOVERED = 2.0
"""Times what is little must be left before a notice is taken back without a charger: what systems
reckon wanders by as much as the load does."""
SOONER = 0.5
"""It is announced anew when no more than this part of the announced time is left after all."""


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
        self._leaves_at: float | None = None

    def see(self, charge: Charge, now: float) -> Notice | None:
        if self._leaves_at is None:
            return self._announce(charge, now) if self._is_low(charge, 1.0) else None
        if not self._is_low(charge, RECOVERED):
            self._leaves_at = None
            return Notice(None)
        if self._in_s(charge) < SOONER * (self._leaves_at - now) and charge.left_s is not None:
            return self._announce(charge, now)
        return None

    def _announce(self, charge: Charge, now: float) -> Notice:
        in_s = self._in_s(charge)
        self._leaves_at = now + in_s
        return Notice(in_s)

    def _in_s(self, charge: Charge) -> float:
        left_s = self._config.battery_notice_s if charge.left_s is None else charge.left_s
        return max(MARGIN_S, left_s - MARGIN_S)

    def _is_low(self, charge: Charge, factor: float) -> bool:
        """Whether less than `factor` times what is little is left."""
        if charge.is_plugged or not self._config.battery_notice_s:
            return False
        if charge.left_s is not None:
            return charge.left_s <= factor * self._config.battery_notice_s
        return charge.share <= factor * self._config.battery_share
