"""Models as people name them to commands: a folder, a GGUF file, or what the hub calls them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from swarm.weights.hub import hub_name


def told_apart(
    models: Sequence[str], names: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Paths of models on this machine, what they are called, and of those that only the hub may
    have, what it calls them and what they are called. Names beyond the models stay with the paths.
    """
    wanted = [None if Path(text).exists() else hub_name(text) for text in models]
    own = [str(w or Path(text).resolve().name) for w, text in zip(wanted, models, strict=True)]
    called = (*names, *own[len(names) :])
    given = list(zip(models, wanted, called, strict=False))
    if not any(wanted):
        return tuple(models), tuple(names), ()
    return (
        tuple(text for text, w, _ in given if w is None),
        (*(name for _, w, name in given if w is None), *names[len(models) :]),
        tuple((text, name) for text, w, name in given if w is not None),
    )


def on_this_machine(
    models: Sequence[str], names: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Paths of the models on this machine, and what they are called: those that are not here, and
    named as the hub names models, are fetched first. Raises ConfigError."""
    wanted = [None if Path(text).exists() else hub_name(text) for text in models]
    if not any(wanted):
        return tuple(models), tuple(names)
    from swarm.weights import hub_io

    own = [str(w or Path(text).resolve().name) for w, text in zip(wanted, models, strict=True)]
    paths = [
        text if w is None else str(hub_io.fetch(w, lambda line: print(line, file=sys.stderr)))
        for w, text in zip(wanted, models, strict=True)
    ]
    return tuple(paths), (*names, *own[len(names) :])
