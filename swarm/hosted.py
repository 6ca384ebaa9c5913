"""One checkpoint that a node hosts: what its owner wants, what is known of it, how far it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from swarm.config import ShardConfig
from swarm.messages import KV_BLOCK_TOKENS, Inspected, Loaded
from swarm.terms import LayerRange, NodeId, ShardSpeed, ShardState


@dataclass(frozen=True, slots=True)
class Wish:
    """A checkpoint the owner wants served. `layers` None: the node chooses."""

    path: str
    name: str
    layers: LayerRange | None
    is_fetched: bool = False
    """It is a model of the swarm: the weights of the layers chosen come from peers."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Memory of this node, bytes. `weights` and `kv` together stay under what the owner allows."""

    weights: int
    kv: int

    @staticmethod
    def of(memory_bytes: int, config: ShardConfig) -> Budget:
        usable = max(0, memory_bytes - config.activation_bytes)
        return Budget(int(usable * (1 - config.kv_fraction)), int(usable * config.kv_fraction))


class Stage(Enum):
    INSPECTING = "inspecting"
    SETTLING = "settling"
    INTENDING = "intending"
    FETCHING = "fetching"
    LOADING = "loading"
    LOADED = "loaded"
    SERVING = "serving"
    FAILED = "failed"


ANNOUNCED = {
    Stage.INTENDING: ShardState.INTENDED,
    Stage.FETCHING: ShardState.LOADING,
    Stage.LOADING: ShardState.LOADING,
    Stage.LOADED: ShardState.LOADING,
    Stage.SERVING: ShardState.SERVING,
}
UNDECIDED = (Stage.INSPECTING, Stage.SETTLING)
DONE = (Stage.LOADED, Stage.SERVING, Stage.FAILED)


@dataclass(slots=True)
class Hosted:
    wish: Wish
    stage: Stage = Stage.INSPECTING
    inspected: Inspected | None = None
    layers: LayerRange | None = None
    loaded: Loaded | None = None
    speed: ShardSpeed | None = None
    deadline: float | None = None
    turns: int = 0
    """Times that nodes of smaller id were let go first."""
    pool_bytes: int = 0
    """Of the KV pool that was asked for with its layers."""
    loads: int = 0
    """Times that it was loaded."""
    obtainable: frozenset[int] | None = None
    """Layers whose weights are to be had; None: all."""
    fetched: LayerRange | None = None
    """Layers whose weights have come from peers."""

    @property
    def weight_bytes(self) -> int:
        """Of the layers chosen or loaded."""
        if self.inspected is None or self.layers is None or self.stage is Stage.FAILED:
            return 0
        return weight_bytes(self.inspected, self.layers)


@dataclass(frozen=True, slots=True)
class Rival:
    """Another node's shard of the same model, as gossip tells it."""

    node: NodeId
    layers: LayerRange
    state: ShardState
    decode_s_per_layer: float


def block_bytes(kv_bytes_per_token_layer: int, layers: LayerRange) -> int:
    return max(1, KV_BLOCK_TOKENS * len(layers) * kv_bytes_per_token_layer)


def weight_bytes(inspected: Inspected, layers: LayerRange) -> int:
    total = len(layers) * inspected.layer_weight_bytes
    if layers.start == 0:
        total += inspected.embed_weight_bytes
    if layers.stop == inspected.spec.layer_count:
        total += inspected.head_weight_bytes
    return total
