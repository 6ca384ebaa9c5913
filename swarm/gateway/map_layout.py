"""Which panes of the map are seen, and how large each is, by the size of the terminal. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

WIDE = 110
"""Columns from which answers and traces have links and events beside them."""
LEFT_SHARE = 0.6
"""Of a wide terminal, for answers and traces."""
BOTTOM_MIN = 4
"""Lines that the last panes keep, their title included ..."""
TRACE_MIN = 9
"""... more where it is a trace, which is whole or says little ..."""
SESSIONS_MIN = 3
"""... and those above them."""
NODES_SHARE = 0.4
"""Of the height that the nodes may take at most."""
MIDDLE_SHARE = 0.2
"""The same for answers, where there are many."""


class Bottom(Enum):
    """What a small terminal's last pane shows."""

    EVENTS = "events"
    LINKS = "links"
    TRACE = "trace"


@dataclass(frozen=True, slots=True)
class Place:
    """A pane's size in columns and lines, title included; `is_whole`: over the whole width."""

    width: int
    height: int
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    """Panes in reading order. In two columns, those that are not whole stand two in a row."""

    columns: int
    places: dict[str, Place]


def widths(width: int) -> tuple[int, int]:
    """Of the panes left and right; the same twice where there is one column."""
    if width < WIDE:
        return width, width
    left = int(width * LEFT_SHARE)
    return left, width - left - 1


def plan(width: int, height: int, wants: Mapping[str, int], bottom: Bottom) -> Plan:
    """`wants`: lines that each pane would fill, without its title. `height`: for all panes."""
    left, right = widths(width)
    is_wide = width >= WIDE
    middle_wants = max(wants["sessions"], wants["links"] if is_wide else 0) + 1
    middle = max(SESSIONS_MIN, min(middle_wants, int(height * MIDDLE_SHARE)))
    is_trace = bottom is Bottom.TRACE and not is_wide
    bottom_min = min(TRACE_MIN if is_trace else BOTTOM_MIN, height // 2)
    room = height - middle - bottom_min
    nodes = max(2, min(wants["nodes"] + 1, int(height * NODES_SHARE), room - 2))
    cover = max(2, min(wants["cover"] + 1, room - nodes))
    last = max(1, height - nodes - cover - middle)
    places = {"nodes": Place(width, nodes), "cover": Place(width, cover)}
    if not is_wide:
        places |= {"sessions": Place(width, middle), bottom.value: Place(width, last)}
        return Plan(1, places)
    places |= {"sessions": Place(left, middle, False), "links": Place(right, middle, False)}
    places |= {"trace": Place(left, last, False), "events": Place(right, last, False)}
    return Plan(2, places)
