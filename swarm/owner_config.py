"""The section of the config about a machine whose owner uses it for other things too."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OwnerConfig:
    yield_to_owner: bool = False
    """Give up all layers while other programs need the machine, and take some again afterwards."""
    look_s: float = 2.0
    """How often the machine is looked at."""
    memory_floor_share: float = 0.05
    """Of the memory, of the machine or of a CUDA device, that is to stay free; less of it and the
    system begins to throw out what others need."""
    memory_busy_s: float = 3.0
    """Memory must be short for so long: a program that starts takes it in seconds."""
    cpu_share: float = 0.5
    """Of all processors, taken by others' programs at normal priority. A browser takes less, a game
    or a build more."""
    busy_s: float = 10.0
    """Processors must be taken for so long: pages and updates take seconds."""
    quiet_s: float = 120.0
    """The machine must be left alone for so long before layers are taken again; twice that after
    each time that did not last."""
    quiet_max_s: float = 1800.0
    lasting_s: float = 3600.0
    """Who was left alone for so long since begins with the shortest wait again."""
    battery_notice_s: float = 900.0
    """A machine on battery announces its departure so long before the battery is empty: enough for
    others to fetch and load what only it holds. 0: it says nothing."""
    battery_share: float = 0.1
    """The same when so little of the battery is left, where the system tells no time."""
    battery_look_s: float = 30.0
