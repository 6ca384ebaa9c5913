"""All scenarios, and how to find one by a name that a person typed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from sims import cafe, mixed, moves, remembered, scenarios, standbys, storms, turns, walls, whims
from sims.runner import Options
from sims.scenarios import REGISTRY, Scenario
from swarm.errors import ConfigError

FILES = (scenarios, mixed, storms, turns, standbys, walls, remembered, moves, cafe, whims)
"""Who imports this has every story in the registry."""


def names() -> list[str]:
    return sorted(REGISTRY)


def find(name: str) -> Scenario:
    """By its name, with blanks or dashes. Raises ConfigError with the nearest names."""
    plain = spoken(name)
    found = next((REGISTRY[known] for known in REGISTRY if spoken(known) == plain), None)
    if found is None:
        raise ConfigError(
            f"there is no scenario {name!r}; {nearest(plain, names())} `--list` shows all of them"
        )
    return found


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence with the names most like it."""
    pool = list(known)
    alike = difflib.get_close_matches(name, pool, n=3, cutoff=0.5)
    alike += [other for other in pool if name and name in other and other not in alike]
    return f"did you mean {' or '.join(map(repr, alike[:3]))}?" if alike else "no name is like it."


def spoken(name: str) -> str:
    return " ".join(name.lower().replace("-", " ").replace("_", " ").split())


def typed(name: str) -> str:
    """A name as one word of a command line."""
    return name.replace(" ", "-")


def check_wishes(scenario: Scenario, options: Options) -> None:
    """Raises ConfigError where a story would pass over a number that was asked for."""
    wishes = {"nodes": options.node_count, "minutes": options.minutes}
    for wish, value in wishes.items():
        if value is not None and wish not in scenario.takes:
            others = [s.name for s in REGISTRY.values() if wish in s.takes]
            raise ConfigError(
                f"the scenario {scenario.name!r} is always told with the same {wish};"
                f" --{wish} is for: {', '.join(sorted(others))}"
            )


def replay(scenario: str, seed: int, options: Options, without: str = "") -> str:
    """The command that plays this run again."""
    words = ["scripts/sim", "--scenario", typed(scenario), "--seed", str(seed)]
    if options.node_count is not None:
        words += ["--nodes", str(options.node_count)]
    if options.minutes is not None:
        words += ["--minutes", f"{options.minutes:g}"]
    if without:
        words += ["--without", typed(without)]
    return " ".join(words)
