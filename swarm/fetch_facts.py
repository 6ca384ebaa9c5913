"""What a node is told of models and weights that it had fetched."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.terms import LayerRange, ModelId


@dataclass(frozen=True, slots=True)
class ModelFetched:
    """All but the weights is at `path`, proven. `obtainable`: layers that somebody can hand out."""

    model_id: ModelId
    path: str
    obtainable: frozenset[int]


@dataclass(frozen=True, slots=True)
class LayersFetched:
    """The weights are there, proven."""

    model_id: ModelId
    layers: LayerRange


@dataclass(frozen=True, slots=True)
class LayersShort:
    """Nobody has had what is missing for a while; these layers are to be had."""

    model_id: ModelId
    obtainable: frozenset[int]


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """`is_final`: trying again would not help."""

    model_id: ModelId
    reason: str
    is_final: bool


@dataclass(frozen=True, slots=True)
class HubProgress:
    """Of a model that is fetched from the hub, so many bytes have come."""

    hub: str
    done_bytes: int


@dataclass(frozen=True, slots=True)
class HubFetched:
    """All of it lies at `path`."""

    hub: str
    path: str


@dataclass(frozen=True, slots=True)
class HubFailed:
    """It is not here and did not come. `is_final`: trying again would not help."""

    hub: str
    reason: str
    is_final: bool


FetchFact = ModelFetched | LayersFetched | LayersShort | FetchFailed
HubFact = HubProgress | HubFetched | HubFailed
Fact = FetchFact | HubFact
