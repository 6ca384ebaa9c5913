"""What a node says of the shards that it hosts: models, layers, speeds, pools, room for others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from swarm.config import ShardConfig
from swarm.hosted import (
    ANNOUNCED,
    POOL_BLOCKS_MAX,
    UNDECIDED,
    Budget,
    Hosted,
    Stage,
    Wish,
    block_bytes,
    shard_info,
    trial_orders,
)
from swarm.messages import KV_BLOCK_TOKENS, Begin, Inspected, Loaded, Run
from swarm.shard.kv_blocks import PoolShape
from swarm.spread import Berth, fit_count, spread
from swarm.terms import (
    LayerRange,
    ModelId,
    ModelSpec,
    Parts,
    PoolKind,
    SessionId,
    ShardInfo,
    ShardSpeed,
    ShardState,
)

FETCH_BYTES_S = 12.5e6
"""What peers are taken to give of weights that are not here yet."""


class HostedShards:
    """`hosting.Hosting` without what moves it."""

    def __init__(self, wishes: Sequence[Wish], budget: Budget, config: ShardConfig) -> None:
        self._config = config
        self._budget = budget
        self._hosted = [Hosted(wish) for wish in {wish.path: wish for wish in wishes}.values()]
        self.departs_in_s = 0.0
        """As others are told, and as `StaticRecord` says; one that goes takes no other layers."""

    @property
    def device_count(self) -> int:
        return len(self._budget.devices)

    @property
    def model_len_max(self) -> int:
        """Positions of the longest sequence its owner wants served; 0: any."""
        return self._config.max_model_len

    @property
    def copies(self) -> int:
        """Of every layer, as its owner wishes; 0: no wish."""
        return self._config.copies

    def all(self) -> tuple[Hosted, ...]:
        return tuple(self._hosted)

    def of(self, model_id: ModelId) -> Hosted | None:
        return self._of_model(model_id)

    def models(self) -> tuple[ModelSpec, ...]:
        return tuple(h.inspected.spec for h in self._hosted if h.inspected is not None)

    def manifests(self) -> dict[ModelId, tuple[str, str]]:
        """Per model the checkpoint's path and the path of its manifest."""
        return {
            h.inspected.spec.model_id: (h.wish.path, h.inspected.manifest_path)
            for h in self._hosted
            if h.inspected is not None
        }

    def shards(self) -> tuple[ShardInfo, ...]:
        """As announced: intentions too."""
        return tuple(
            self._info(h, h.inspected, h.layers)
            for h in self._hosted
            if h.stage in ANNOUNCED and h.inspected is not None and h.layers is not None
            if not h.is_retiring
        )

    def served(self) -> tuple[ShardInfo, ...]:
        """What runs here, whatever others are told: from one that is parting sessions still go."""
        return tuple(
            replace(shard_info(h, h.inspected, h.layers, ShardState.SERVING),
                    kv_capacity_bytes=self.kv_capacity_bytes)
            for h in self._hosted
            if h.stage is Stage.SERVING and h.inspected is not None and h.layers is not None
        )  # fmt: skip

    def speeds(self, room_bytes: Callable[[ModelId], int]) -> tuple[ShardSpeed, ...]:
        """`room_bytes`: what a model's KV pool has left for new sessions."""
        return tuple(
            ShardSpeed(
                h.speed.model_id,
                h.speed.decode_s_per_layer,
                h.speed.decode8_s_per_layer,
                h.speed.prefill_s_per_token_layer,
                h.speed.head_s,
                h.speed.queue_s,
                room_bytes(h.speed.model_id),
            )
            for h in self._hosted
            if h.stage is Stage.SERVING and h.speed is not None
        )

    def layers_of(self, name: str) -> LayerRange | None:
        """Served under that name."""
        found = (h for h in self._hosted if h.wish.name == name and h.stage is Stage.SERVING)
        return next((h.layers for h in found), None)

    def speed_of(self, model_id: ModelId) -> ShardSpeed | None:
        h = self._of_model(model_id)
        return None if h is None else h.speed

    def weight_bytes_of(self, model_id: ModelId) -> int:
        """Of the layers chosen or loaded."""
        h = self._of_model(model_id)
        return 0 if h is None else h.weight_bytes

    def trial(self, session: SessionId) -> tuple[Begin, Run] | None:
        """Orders that show whether the worker is well: one whose device hangs answers none."""
        h = next((h for h in self._hosted if h.stage is Stage.SERVING), None)
        if h is None or h.inspected is None or h.loaded is None:
            return None
        return trial_orders(h.inspected, h.loaded, session)

    def parts_of(self, model_id: ModelId) -> Parts:
        """Where the layers of a model lie, by device."""
        h = self._of_model(model_id)
        return () if h is None else h.parts

    @property
    def kv_capacity_bytes(self) -> int:
        """What the owner's allowance leaves beside the weights that are loaded or chosen."""
        return sum(self._kv_room(device) for device in range(self.device_count))

    def _kv_room(self, device: int) -> int:
        weights = sum(h.weight_bytes_on(device) for h in self._hosted)
        budget = self._budget.devices[device]
        return max(0, budget.weights + budget.kv - weights)

    def pools(self) -> tuple[PoolShape, ...]:
        """The KV pool of each model that is served. Models for which the worker made none share, by
        the same rules, what memory the pools leave."""
        served = [h for h in self._hosted if h.stage is Stage.SERVING]
        found = [(h, h.loaded) for h in served if h.loaded is not None]
        prefixes = self._config.enable_prefix_caching
        return tuple(
            pool_shape(h, loaded, self._shared_blocks(h, loaded, found), prefixes=prefixes)
            for h, loaded in found
        )

    def _shared_blocks(
        self, h: Hosted, loaded: Loaded, served: Sequence[tuple[Hosted, Loaded]]
    ) -> int:
        """Blocks of a model for which the worker made none; of its devices the fullest counts."""
        blocks = POOL_BLOCKS_MAX
        for device, part in enumerate(h.parts):
            if part is None:
                continue
            here = [(o, told) for o, told in served if o.part_on(device)]
            made = sum(_block_bytes_on(o, told, device) * told.kv_blocks for o, told in here)
            unmade = sum(not told.kv_blocks for _, told in here)
            share = max(0, self._kv_room(device) - made) // max(1, unmade)
            blocks = min(blocks, share // _block_bytes_on(h, loaded, device))
        return blocks

    # ------------------------------------------------------------ parts

    def _of_model(self, model_id: ModelId) -> Hosted | None:
        return next(
            (h for h in self._hosted if h.inspected and h.inspected.spec.model_id == model_id),
            None,
        )

    def _weight_room(self, h: Hosted) -> int:
        """Bytes that its weights may take beside the weights and pools of the other models."""
        return sum(self._weight_rooms(h))

    def _weight_rooms(self, h: Hosted) -> list[int]:
        rooms = []
        for device, budget in enumerate(self._budget.devices):
            others = sum(o.weight_bytes_on(device) for o in self._hosted if o is not h)
            left = budget.weights + budget.kv - others
            if pools := self._pools_of_others(h, device):
                left = int((left - pools) * (1 - self._config.kv_fraction))
            rooms.append(max(0, min(budget.weights - others, left)))
        return rooms

    def _pools_of_others(self, h: Hosted, device: int) -> int:
        others = [o for o in self._hosted if o is not h and o.stage is not Stage.FAILED]
        return sum(o.pool_bytes_on(device) for o in others)

    def _rooms_beside_pools(self, h: Hosted) -> list[int]:
        """What is left of the allowance, with nothing kept for its own KV."""
        return [
            self._kv_room(device) + h.weight_bytes_on(device) - self._pools_of_others(h, device)
            for device in range(self.device_count)
        ]

    def _blocks_for(self, h: Hosted) -> int:
        """Blocks of a model's pool: an equal share of what is left beside all weights, the pools of
        others, and what is kept for models that are loaded later; while some have yet to choose
        their layers, of what is kept for KV alone. Of its devices the fullest counts."""
        others = [o for o in self._hosted if o is not h and o.stage is not Stage.FAILED]
        is_undecided = any(o.layers is None for o in others)
        blocks, sizes = POOL_BLOCKS_MAX, [0] * self.device_count
        for device, budget in enumerate(self._budget.devices):
            part = h.part_on(device)
            if part is None:
                continue
            room = self._kv_room(device)
            if is_undecided:
                room = min(room, budget.kv)
            room = max(0, room - self._pools_of_others(h, device))
            room = int(room * (1 - self._config.later_fraction))
            sizes[device] = block_bytes(h.sizes[device].kv_bytes_per_token_layer, part)
            sharing = 1 + sum(not o.pool_bytes_on(device) for o in others if _may_use(o, device))
            blocks = min(blocks, room // sharing // sizes[device])
        parts, before = h.ordered
        if self.device_count > 1 and before and parts == h.parts and self._fits(h, before, sizes):
            blocks = before  # devices that have their part still need not load it again
        h.pools, h.ordered = tuple(blocks * size for size in sizes), (h.parts, blocks)
        return blocks

    def _fits(self, h: Hosted, blocks: int, sizes: Sequence[int]) -> bool:
        return all(
            blocks * size <= self._kv_room(device) - self._pools_of_others(h, device)
            for device, size in enumerate(sizes)
        )

    def _berths(self, h: Hosted, weight_rooms: Sequence[int]) -> list[Berth]:
        rooms = self._rooms_beside_pools(h)
        return [
            Berth(
                weight_room=weight_rooms[device],
                room=rooms[device],
                layer=sizes.layer_weight_bytes,
                embed=sizes.embed_weight_bytes,
                head=sizes.head_weight_bytes,
                kv_per_token_layer=sizes.kv_bytes_per_token_layer,
                spills=self._budget.devices[device].spills,
            )
            for device, sizes in enumerate(h.sizes)
        ]

    def _is_tight(self, h: Hosted, device: int, room: int) -> bool:
        """Whether the weights there leave no room for one block of KV."""
        part = h.part_on(device)
        if part is None:
            return False
        block = block_bytes(h.sizes[device].kv_bytes_per_token_layer, part)
        return h.weight_bytes_on(device) + block > room

    def _place(self, h: Hosted, layers: LayerRange, *rooms: Sequence[int]) -> bool:
        """Choose these layers, and where they lie; False where they do not fit into any of the
        `rooms`, by device, that weights may take."""
        assert h.inspected is not None
        embed, head = layers.start == 0, layers.stop == h.inspected.spec.layer_count
        for weight_rooms in rooms:
            berths = self._berths(h, weight_rooms)
            parts = spread(layers, berths, embed=embed, head=head)
            if parts is not None:
                h.layers, h.parts = layers, parts
                return True
        return False

    def _info(self, h: Hosted, inspected: Inspected, layers: LayerRange) -> ShardInfo:
        state = ANNOUNCED[h.stage]
        if h.is_parting and h.next is not None:
            layers, state = h.next, ShardState.LOADING
        return replace(
            shard_info(h, inspected, layers, state),
            kv_capacity_bytes=self.kv_capacity_bytes,
            next=None if h.is_parting else h.next,
            room_layers=self.room_layers(h),
            load_s=self.load_s(h),
            copies=self.copies,
        )

    def room_layers(self, h: Hosted) -> int:
        """Layers that it could serve instead of what it serves; 0: it stays with these."""
        is_free = not h.is_barred and not self.departs_in_s
        may_move = self._config.rebalance and h.wish.layers is None and is_free
        if not may_move or h.stage is not Stage.SERVING or h.inspected is None:
            return 0
        return min(self._fit_count(h, h.inspected), h.inspected.spec.layer_count)

    def load_s(self, h: Hosted) -> float:
        """About how long it would take to serve so many others; few digits, so that it stays."""
        if h.inspected is None:
            return 0.0
        fetch_s = h.inspected.layer_weight_bytes / FETCH_BYTES_S if h.wish.is_fetched else 0.0
        return float(f"{self.room_layers(h) * (h.layer_load_s + fetch_s):.2g}")

    def _fit_count(self, h: Hosted, inspected: Inspected) -> int:
        """Layers of a model that fit beside the others hosted here.

        Those that have yet to choose get an equal share, unless that is not even one layer. What
        it has chosen fits: pools that were made since have left room for that.
        """
        rooms = self._weight_rooms(h)
        undecided = sum(
            o is not h and o.layers is None and o.stage in UNDECIDED for o in self._hosted
        )
        share = fit_count(self._berths(h, [room // (1 + undecided) for room in rooms]))
        chosen = len(h.layers) if h.layers is not None and h.stage is Stage.INTENDING else 0
        return max(chosen, share or fit_count(self._berths(h, rooms)))


def pool_shape(h: Hosted, loaded: Loaded, shared: int, *, prefixes: bool) -> PoolShape:
    """`shared`: blocks where the worker made no pool. `prefixes`: its owner wants them kept."""
    is_whole = loaded.prefix_unit % KV_BLOCK_TOKENS == 0
    unit = loaded.prefix_unit if is_whole and prefixes else 0
    return PoolShape(
        model_id=loaded.model_id,
        load=h.loads,
        capacity=loaded.kv_blocks or shared,
        block_bytes=block_bytes(loaded.kv_bytes_per_token_layer, loaded.layers),
        kind=PoolKind(loaded.kv_blocks > 0, unit, loaded.reuses_generated),
    )


def _block_bytes_on(h: Hosted, loaded: Loaded, device: int) -> int:
    """As the worker that has the layers counts them."""
    part = h.part_on(device)
    assert part is not None
    return block_bytes(loaded.kv_bytes_per_token_layer, part)


def _may_use(h: Hosted, device: int) -> bool:
    """Whether some of its layers lie, or may come to lie, on the device."""
    return not h.parts or h.part_on(device) is not None
