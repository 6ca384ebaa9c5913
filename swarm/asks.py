"""What a node's owner may want of it while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swarm.terms import LayerRange, ModelId


@dataclass(frozen=True, slots=True)
class TakePart:
    """Get layers of some model of the swarm.

    cached  models whose files are on the disk, with their names, the one used last first
    """

    cached: Sequence[tuple[ModelId, str]]


@dataclass(frozen=True, slots=True)
class LoadModel:
    """Serve one more checkpoint of this machine. `layers` None: those that the node chooses."""

    path: str
    name: str
    layers: LayerRange | None


@dataclass(frozen=True, slots=True)
class UnloadModel:
    """Serve a model no more: its sessions move away first, as far as others hold its layers."""

    name: str


@dataclass(frozen=True, slots=True)
class Announce:
    """The machine will leave in so many seconds. None: it stays, after all."""

    in_s: float | None


@dataclass(frozen=True, slots=True)
class WantOfHub:
    """Serve a model of the Hugging Face hub, from there or from whoever of the swarm has it.

    hub   as `weights.hub.hub_name` reads it
    name  what it is called
    """

    hub: str
    name: str
    layers: LayerRange | None


@dataclass(frozen=True, slots=True)
class GiveWay:
    """The machine is needed for something else: give up all layers, and the memory with them."""

    reason: str


@dataclass(frozen=True, slots=True)
class ComeBack:
    """It is not any more."""


Ask = TakePart | LoadModel | UnloadModel | Announce | WantOfHub | GiveWay | ComeBack
