"""Whether a machine is needed for something else by its owner. Pure; `owner_io` looks at it."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.asks import ComeBack, GiveWay
from swarm.owner_config import OwnerConfig

ROOM_MARGIN = 0.25
"""Of what the node had, or of what is beside that if it is less: so much more must be free before
it comes back, lest it gives way at once."""
NEEDED_SHARE_MAX = 0.85
"""More of a memory no node needs to have free: pages that processes share are counted for each."""
UNKNOWN_SHARE = 0.25
"""Of a memory of which is not known what the node had there."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of the machine, or of one device."""

    name: str
    free: int
    total: int
    own: int = 0
    """What of it this node has, as far as that is known."""
    is_card: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """The machine at one moment."""

    others_share: float
    """Of all processors, what others' programs have taken since the last look, 0 to 1."""
    memories: tuple[Memory, ...]
    """The machine's own first."""


class Owner:
    """Told of each reading; says when the node is to give way, and when it may come back."""

    def __init__(self, config: OwnerConfig) -> None:
        self._config = config
        self._short_since: float | None = None
        self._taken_since: float | None = None
        self._quiet_since: float | None = None
        self._gave_way = False
        self._had: dict[str, int] = {}
        """What the node had of each memory when it gave way, and would need again."""
        self._quiet_s = config.quiet_s
        self._came_back_at: float | None = None

    def see(self, reading: Reading, now: float) -> GiveWay | ComeBack | None:
        """What the node is to do from now on; None: what it does."""
        if self._gave_way:
            return self._may_come_back(reading, now)
        short = next((m for m in reading.memories if self._is_short(m)), None)
        is_taken = reading.others_share >= self._config.cpu_share
        self._short_since = _since(self._short_since, short is not None, now)
        self._taken_since = _since(self._taken_since, is_taken, now)
        reason = ""
        if short is not None and _lasts(self._short_since, self._config.memory_busy_s, now):
            reason = f"{short.free >> 20} MiB of {short.name} are left free"
        elif _lasts(self._taken_since, self._config.busy_s, now):
            reason = f"other programs take {reading.others_share:.0%} of the processors"
        return self._give_way(reason, reading, now) if reason else None

    def _give_way(self, reason: str, reading: Reading, now: float) -> GiveWay:
        config = self._config
        at = self._came_back_at
        if at is not None and now - at < config.lasting_s:
            self._quiet_s = min(2 * self._quiet_s, config.quiet_max_s)
        else:
            self._quiet_s = config.quiet_s
        self._gave_way, self._quiet_since = True, None
        self._had = {memory.name: memory.own for memory in reading.memories}
        return GiveWay(reason)

    def _may_come_back(self, reading: Reading, now: float) -> ComeBack | None:
        is_calm = reading.others_share < self._config.cpu_share / 2 and all(
            map(self._has_room, reading.memories)
        )
        self._quiet_since = _since(self._quiet_since, is_calm, now)
        if not _lasts(self._quiet_since, self._quiet_s, now):
            return None
        self._gave_way, self._came_back_at = False, now
        self._short_since = self._taken_since = None
        return ComeBack()

    def _is_short(self, memory: Memory) -> bool:
        """A node that fills a card by itself takes nothing from anybody; the system always needs
        some of the machine's memory."""
        floor = self._config.memory_floor_share * memory.total
        is_shared = not memory.is_card or memory.total - memory.free - memory.own >= floor
        return memory.free < floor and is_shared

    def _has_room(self, memory: Memory) -> bool:
        floor = self._config.memory_floor_share * memory.total
        needed = self._had.get(memory.name, 0) or memory.total * UNKNOWN_SHARE
        needed = min(needed, NEEDED_SHARE_MAX * memory.total)
        spare = memory.total - floor - needed
        return memory.free >= floor + needed + ROOM_MARGIN * min(needed, spare)


def _since(since: float | None, holds: bool, now: float) -> float | None:
    if not holds:
        return None
    return now if since is None else since


def _lasts(since: float | None, for_s: float, now: float) -> bool:
    return since is not None and now - since >= for_s
