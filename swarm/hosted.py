"""One checkpoint that a node hosts: what its owner wants, what is known of it, how far it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from swarm.config import ShardConfig
from swarm.devices import CPU
from swarm.messages import KV_BLOCK_TOKENS, Begin, Inspected, Loaded, RowType, Run, StepKind
from swarm.terms import (
    HubShare,
    LayerRange,
    ModelId,
    ModelSpec,
    NodeId,
    NumericClass,
    Parts,
    Sampling,
    SessionId,
    ShardInfo,
    ShardSpeed,
    ShardState,
)

POOL_BLOCKS_MAX = 1 << 15
"""Of one model's pool: a million positions. More would seldom be used, and counting them costs."""
ASSUMED_LOAD_S = 0.5
"""Of one layer, on a node that has loaded nothing yet."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A checkpoint the owner wants served. `layers` None: the node chooses."""

    path: str
    name: str
    layers: LayerRange | None
    fetched_id: ModelId | None = None
    """Of a model of the swarm: the weights of the layers chosen come from peers."""

    hub: str = ""
    """What the hub calls it, where what no peer has may come from there."""

    @property
    def is_fetched(self) -> bool:
        return self.fetched_id is not None


@dataclass(frozen=True, slots=True)
class Budget:
    """Memory of a device, bytes. `weights` and `kv` together stay under what the owner allows."""

    weights: int
    kv: int
    spills: bool = False
    """It takes no more than what the node's other devices cannot hold."""
    beside: tuple[Budget, ...] = ()
    """Of the node's other devices, in their order."""

    @staticmethod
    def of(memory_bytes: int, config: ShardConfig, *, spills: bool = False) -> Budget:
        usable = max(0, memory_bytes - config.activation_bytes)
        weights, kv = int(usable * (1 - config.kv_fraction)), int(usable * config.kv_fraction)
        return Budget(weights, kv, spills)

    @property
    def devices(self) -> tuple[Budget, ...]:
        return (self, *self.beside)

    @staticmethod
    def join(devices: Sequence[Budget]) -> Budget:
        """Of one node, whose devices these are."""
        return replace(devices[0], beside=tuple(devices[1:]))


def node_budget(workers: Sequence[ShardConfig], memory: Sequence[int]) -> Budget:
    """`memory`: bytes that each of the workers may take."""
    has_gpu = any(worker.device != CPU for worker in workers)
    return Budget.join([
        Budget.of(size, worker, spills=has_gpu and worker.device == CPU)
        for size, worker in zip(memory, workers, strict=True)
    ])  # fmt: skip


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
    sizes: tuple[Inspected, ...] = ()
    """The same as each device sees it: dtypes, and so sizes, may differ."""
    layers: LayerRange | None = None
    parts: Parts = ()
    """Where these lie, by device."""
    loaded: Loaded | None = None
    speed: ShardSpeed | None = None
    deadline: float | None = None
    turns: int = 0
    """Times that nodes of smaller id were let go first."""
    pools: tuple[int, ...] = ()
    """Bytes of the KV pool that was asked for with its layers, by device."""
    ordered: tuple[Parts, int] = ((), 0)
    """Where its layers lay in the last load, and the blocks of KV that were asked for with it."""
    loads: int = 0
    """Times that it was loaded."""
    obtainable: frozenset[int] | None = None
    """Layers whose weights are to be had; None: all."""
    fetched: LayerRange | None = None
    """Layers whose weights have come from peers."""
    next: LayerRange | None = None
    """Layers that it is to serve instead of those that it serves."""
    is_parting: bool = False
    """Others are told that it loads what is next; who uses it still is being moved away."""
    former: tuple[LayerRange, Parts] | None = None
    """What it served before those that are being loaded, and where these lay."""
    is_retiring: bool = False
    """Its owner wants it served no more: others are not told of it, sessions still run."""
    is_barred: bool = False
    """It stays with what it has for a while."""
    layer_load_s: float = ASSUMED_LOAD_S
    """One layer, as it took last."""

    @property
    def weight_bytes(self) -> int:
        """Of the layers chosen or loaded."""
        return sum(self.weight_bytes_on(device) for device in range(len(self.parts)))

    def weight_bytes_on(self, device: int) -> int:
        part = self.part_on(device)
        if self.layers is None or part is None or self.stage is Stage.FAILED:
            return 0
        return weight_bytes(self.sizes[device], part)

    def part_on(self, device: int) -> LayerRange | None:
        return self.parts[device] if device < len(self.parts) else None

    def pool_bytes_on(self, device: int) -> int:
        return self.pools[device] if device < len(self.pools) else 0

    def uses(self, device: int) -> bool:
        """Whether what it does or has depends on this device."""
        is_settled = self.stage in (Stage.LOADING, Stage.LOADED, Stage.SERVING)
        return not is_settled or self.part_on(device) is not None


DEPARTS_SOON_S = 600.0
"""From so long before an announced departure on others take over what would be lacking: loading
takes minutes where weights have to be fetched, and room is not given away hours ahead."""


@dataclass(frozen=True, slots=True)
class Rival:
    """Another node's shard of the same model, as gossip tells it."""

    node: NodeId
    layers: LayerRange
    state: ShardState
    decode_s_per_layer: float
    next: LayerRange | None = None
    room_layers: int = 0
    load_s: float = 0.0
    copies: int = 0
    """As in `ShardInfo`."""
    is_suspect: bool = False
    """Its node is suspected to be gone."""
    is_silent: bool = False
    """Nothing comes from its node, and a probe asks whether it lives."""
    is_departing: bool = False
    """Its node has said that it will soon be gone."""

    @property
    def is_doubtful(self) -> bool:
        return self.is_suspect or self.is_silent


@dataclass(frozen=True, slots=True)
class Market:
    """All models known, who holds or wants which of their layers, and what other living nodes say
    of models of the hub."""

    specs: Mapping[ModelId, ModelSpec]
    rivals: Mapping[ModelId, Sequence[Rival]]
    hub_shares: Mapping[NodeId, Sequence[HubShare]]


def shard_info(h: Hosted, inspected: Inspected, layers: LayerRange, state: ShardState) -> ShardInfo:
    """What is said of it to others, but for memory and plans."""
    loaded = h.loaded if state is ShardState.SERVING else None
    spec = inspected.spec
    return ShardInfo(
        model_id=spec.model_id,
        layers=layers,
        embed=layers.start == 0,
        head=layers.stop == spec.layer_count,
        numeric_class=loaded.numeric_class if loaded else NumericClass(""),
        state=state,
        kv_bytes_per_token_layer=(loaded or inspected).kv_bytes_per_token_layer,
        kv_capacity_bytes=0,
        row_bytes=loaded.row_bytes if loaded else spec.hidden_size * 4,
        guides=loaded is not None and loaded.guides,
        cuts=tuple(part.start for part in h.parts if part and part.start > layers.start)
        if layers == h.layers
        else (),
    )


def trial_orders(inspected: Inspected, loaded: Loaded, session: SessionId) -> tuple[Begin, Run]:
    """Orders that a worker which is well answers at once, by refusing a run without rows."""
    layers, embed = loaded.layers, loaded.layers.start == 0
    row_type = RowType.IDS if embed else loaded.row_type
    part = LayerRange(layers.start, layers.start + 1)
    model_id = inspected.spec.model_id
    head = part.stop == inspected.spec.layer_count
    return (
        Begin(session, 1, model_id, part, embed, head, 1, 1, Sampling(temperature=0.0)),
        Run(session, 1, 0, 1, StepKind.PREFILL, row_type, 0),
    )


def block_bytes(kv_bytes_per_token_layer: int, layers: LayerRange) -> int:
    return max(1, KV_BLOCK_TOKENS * len(layers) * kv_bytes_per_token_layer)


def weight_bytes(inspected: Inspected, layers: LayerRange) -> int:
    total = len(layers) * inspected.layer_weight_bytes
    if layers.start == 0:
        total += inspected.embed_weight_bytes
    if layers.stop == inspected.spec.layer_count:
        total += inspected.head_weight_bytes
    return total
