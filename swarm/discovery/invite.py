"""The one line to type on the other machines."""

from __future__ import annotations

import shlex

from swarm.terms import Address


def invite_line(key: str, peers: tuple[Address, ...] = ()) -> str:
    """A shell command that joins this swarm; `peers` for networks without multicast."""
    words = ["swarm", "join", "--key", key]
    for peer in peers:
        words += ["--peer", str(peer)]
    return shlex.join(words)
