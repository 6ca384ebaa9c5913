"""Every figure that can be asked for by name."""

from __future__ import annotations

from sims import catalogue, figures_gossip, figures_recovery, figures_speed
from sims.figure import Kind, show
from sims.wishes import Wishes
from swarm.errors import ConfigError

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (*figures_speed.KINDS, *figures_gossip.KINDS, *figures_recovery.KINDS)
}
OK, FAILED = 0, 1


def find(name: str) -> Kind:
    """Raises ConfigError with the nearest names."""
    plain = catalogue.typed(catalogue.spoken(name))
    found = KINDS.get(plain)
    if found is None:
        near = catalogue.nearest(plain, KINDS)
        raise ConfigError(f"there is no figure {name!r}; {near} There are: {', '.join(KINDS)}")
    return found


def print_figure(wishes: Wishes, name: str) -> int:
    """Measure and print it; status 1 when its aim is missed."""
    figure = find(name).measure(wishes)
    show(wishes.console, figure)
    return FAILED if figure.is_met is False else OK
