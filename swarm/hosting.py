"""The shards of this node: from a checkpoint's path to announced layers, through worker crashes.

    INSPECTING ──► SETTLING ──► INTENDING ──► LOADING ──► LOADED ──► SERVING
                                  ▲   │  │       ▲ │                    │
                                  └───┘  └ FETCHING └── FAILED          └── worker lost: INSPECTING
                            chooses again

A node that may choose its layers first listens for a while (SETTLING), then publishes what it
intends to serve (INTENDING). From then on the smaller NodeId goes first: a node chooses again by
what others serve, load, or intend with a smaller id, and loads once nobody of a smaller id only
intends. So nodes that join at once choose one after the other, each knowing what those before it
took, and together they cover whatever their memory can hold.

What is LOADED is served once nothing else waits for the same worker: a load keeps the worker from
all runs for seconds, and sessions would take that for a hop that is stuck.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from swarm.config import ShardConfig
from swarm.effects import Effect, FetchLayers, StartWorker, StopWorker, Tell, ToWorker
from swarm.hosted import ANNOUNCED, DONE, UNDECIDED, Hosted, Stage, block_bytes, weight_bytes
from swarm.hosted import Budget as Budget
from swarm.hosted import Rival as Rival
from swarm.hosted import Wish as Wish
from swarm.messages import (
    KV_BLOCK_TOKENS,
    Begin,
    Inspect,
    Inspected,
    Load,
    Loaded,
    LoadProgress,
    Message,
    RowType,
    Run,
    SpeedReport,
    StepKind,
    WorkerFailed,
)
from swarm.notes import Level, note
from swarm.routing.placement import (
    Capacity,
    Served,
    choose_layers,
    layers_that_fit,
    plan_layers,
)
from swarm.shard.kv_blocks import PoolShape
from swarm.terms import (
    LayerRange,
    ModelId,
    ModelSpec,
    NodeId,
    NumericClass,
    PoolKind,
    Sampling,
    SessionId,
    ShardInfo,
    ShardSpeed,
    ShardState,
)

PLANNED_TOGETHER_MAX = 6
"""Nodes whose layers are chosen in one plan; it takes some milliseconds of each one's loop."""
UNMEASURED_S = 0.001
"""Per layer and token, of a node that has loaded nothing yet."""
POOL_BLOCKS_MAX = 1 << 15
"""Of one model's pool: a million positions. More would seldom be used, and counting them costs."""


class Hosting:
    """What this node serves and is about to serve."""

    def __init__(
        self,
        me: NodeId,
        wishes: Sequence[Wish],
        budget: Budget,
        config: ShardConfig,
        cache_dir: str,
    ) -> None:
        """`budget` holds until the worker, which sees the device, says what it may take."""
        self._me = me
        self._config = config
        self._cache_dir = cache_dir
        self._budget = budget
        self._hosted = [Hosted(wish) for wish in {wish.path: wish for wish in wishes}.values()]
        self._restart_at: float | None = None
        self._restart_pause_s = config.restart_min_s
        self._effects: list[Effect] = []
        self.device = ""
        self.changed = False
        """Set when shards or models changed; whoever publishes them clears it."""
        self.revision = 0
        """Rises whenever shards or speeds may have changed."""

    # ------------------------------------------------------------ views

    @property
    def model_len_max(self) -> int:
        """Positions of the longest sequence its owner wants served; 0: any."""
        return self._config.max_model_len

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
        )

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

    def speed_of(self, model_id: ModelId) -> ShardSpeed | None:
        h = self._of_model(model_id)
        return None if h is None else h.speed

    def weight_bytes_of(self, model_id: ModelId) -> int:
        """Of the layers chosen or loaded."""
        h = self._of_model(model_id)
        return 0 if h is None else h.weight_bytes

    def trial(self, session: SessionId) -> tuple[Begin, Run] | None:
        """Orders that a worker which is well answers at once, by refusing a run without rows: one
        whose device hangs does not come to that."""
        h = next((h for h in self._hosted if h.stage is Stage.SERVING), None)
        if h is None or h.inspected is None or h.loaded is None:
            return None
        layers, embed = h.loaded.layers, h.loaded.layers.start == 0
        row_type = RowType.IDS if embed else h.loaded.row_type
        part = LayerRange(layers.start, layers.start + 1)
        model_id = h.inspected.spec.model_id
        head = part.stop == h.inspected.spec.layer_count
        return (
            Begin(session, 1, model_id, part, embed, head, 1, 1, Sampling(temperature=0.0)),
            Run(session, 1, 0, 1, StepKind.PREFILL, row_type, 0),
        )

    @property
    def kv_capacity_bytes(self) -> int:
        """What the owner's allowance leaves beside the weights that are loaded or chosen."""
        weights = sum(h.weight_bytes for h in self._hosted)
        return max(0, self._budget.weights + self._budget.kv - weights)

    def pools(self) -> tuple[PoolShape, ...]:
        """The KV pool of each model that is served. Models for which the worker made none share, by
        the same rules, what memory the pools leave."""
        served = [h for h in self._hosted if h.stage is Stage.SERVING]
        found = [(h, h.loaded) for h in served if h.loaded is not None]
        made = sum(_block_bytes_of(loaded) * loaded.kv_blocks for _, loaded in found)
        unmade = sum(not loaded.kv_blocks for _, loaded in found)
        share = max(0, self.kv_capacity_bytes - made) // max(1, unmade)
        return tuple(self._pool(h.loads, loaded, share) for h, loaded in found)

    def _pool(self, load: int, loaded: Loaded, share: int) -> PoolShape:
        size = _block_bytes_of(loaded)
        is_whole = loaded.prefix_unit % KV_BLOCK_TOKENS == 0
        unit = loaded.prefix_unit if is_whole and self._config.enable_prefix_caching else 0
        return PoolShape(
            model_id=loaded.model_id,
            load=load,
            capacity=loaded.kv_blocks or min(share // size, POOL_BLOCKS_MAX),
            block_bytes=size,
            kind=PoolKind(loaded.kv_blocks > 0, unit, loaded.reuses_generated),
        )

    def next_deadline(self) -> float | None:
        due = self._restart_at
        for h in self._hosted:
            if h.deadline is not None and (due is None or h.deadline < due):
                due = h.deadline
        return due

    @property
    def has_effects(self) -> bool:
        return bool(self._effects)

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    # ------------------------------------------------------------ facts in

    def start(self) -> None:
        if self._hosted:
            self._start_worker()

    def adopt(self, wish: Wish, obtainable: frozenset[int]) -> None:
        """Take part in a model of the swarm. `obtainable`: layers whose weights are to be had."""
        self._hosted.append(Hosted(wish, obtainable=obtainable))
        self._start_worker()

    def layers_fetched(self, model_id: ModelId, layers: LayerRange) -> None:
        h = self._of_model(model_id)
        if h is not None and h.stage is Stage.FETCHING and h.layers == layers and h.inspected:
            h.fetched = layers
            self._load(h, h.inspected, layers)

    def layers_short(self, model_id: ModelId, obtainable: frozenset[int], now: float) -> None:
        """Nobody has the weights of some layers any more: choose among those to be had."""
        h = self._of_model(model_id)
        if h is not None and h.stage is Stage.FETCHING:
            h.obtainable, h.layers, h.turns = obtainable, None, 0
            h.stage, h.deadline = Stage.SETTLING, now
            self.changed = True

    def fetch_failed(self, model_id: ModelId, reason: str) -> None:
        h = self._of_model(model_id)
        if h is not None and h.stage is Stage.FETCHING:
            self._give_up(h, reason)

    def worker_message(self, message: Message, now: float) -> None:
        if self._restart_at is not None:
            return  # the last words of a worker that was given up
        self.revision += 1
        match message:
            case Inspected():
                self._inspected(message, now)
            case Loaded():
                self._loaded(message)
            case LoadProgress():
                self._tell("shard.loading", Level.DEBUG, part=message.what,
                           percent=round(100 * message.fraction))  # fmt: skip
            case WorkerFailed():
                self._failed(message)
            case SpeedReport():
                self._measured(message)
            case _:
                pass

    def worker_lost(self, reason: str, now: float) -> tuple[ModelId, ...]:
        """The worker ended. Returns the models whose shards are gone with it."""
        self._tell("worker.lost", Level.ERROR, reason=reason, restart_s=self._restart_pause_s)
        return self._start_over(now)

    def worker_stuck(self, reason: str, now: float) -> tuple[ModelId, ...]:
        """The worker is wedged: it is ended and started anew. Returns the models that are gone."""
        self._effects.append(StopWorker())
        self._tell("worker.stuck", Level.ERROR, reason=reason, restart_s=self._restart_pause_s)
        return self._start_over(now)

    def _start_over(self, now: float) -> tuple[ModelId, ...]:
        self.revision += 1
        gone = tuple(s.model_id for s in self.shards() if s.state is ShardState.SERVING)
        for h in self._hosted:
            if h.stage is not Stage.FAILED:
                h.stage, h.loaded, h.speed, h.deadline = Stage.INSPECTING, None, None, None
        self._restart_at = now + self._restart_pause_s
        self._restart_pause_s = min(2 * self._restart_pause_s, self._config.restart_max_s)
        self.changed = True
        return gone

    def tick(self, rivals: dict[ModelId, list[Rival]], now: float) -> None:
        self.revision += 1
        if self._restart_at is not None and now >= self._restart_at:
            self._restart_at = None
            self._start_worker()
        for h in self._hosted:
            if h.deadline is None or now < h.deadline or h.inspected is None:
                continue
            others = rivals.get(h.inspected.spec.model_id, [])
            if h.stage is Stage.SETTLING:
                self._intend(h, h.inspected, others, now)
            elif h.stage is Stage.INTENDING:
                self._go_or_wait(h, h.inspected, others, now)

    # ------------------------------------------------------------ steps

    def _start_worker(self) -> None:
        self._effects.append(StartWorker())
        for h in self._hosted:
            if h.stage is Stage.INSPECTING:
                order = Inspect(h.wish.path, h.wish.name, self._cache_dir)
                self._effects.append(ToWorker(order))

    def _inspected(self, message: Inspected, now: float) -> None:
        h = next((h for h in self._hosted if h.wish.path == message.path), None)
        if h is None or h.stage is not Stage.INSPECTING:
            return
        same = self._of_model(message.spec.model_id)
        if same is not None and same is not h:
            self._give_up(h, f"it is the same model as {same.wish.path}")
            return
        h.inspected = message
        if message.memory_bytes:
            self._budget = Budget.of(message.memory_bytes, self._config)
        self.changed = True
        if h.layers is not None:
            self._load(h, message, h.layers)
        elif h.wish.layers is not None:
            self._take_fixed(h, message, h.wish.layers)
        else:
            settle_s = 0.0 if h.wish.is_fetched else self._config.settle_s
            h.stage, h.deadline = Stage.SETTLING, now + settle_s

    def _take_fixed(self, h: Hosted, inspected: Inspected, layers: LayerRange) -> None:
        count = inspected.spec.layer_count
        if layers.stop > count:
            self._give_up(h, f"layers {layers} asked for, but the model has layers 0:{count}")
            return
        needed = weight_bytes(inspected, layers)
        room = self._budget.weights + self._budget.kv - self._taken_by_others(h)
        if needed > room:
            self._give_up(h, f"layers {layers} need {needed >> 20} MiB for weights alone, "
                             f"{max(0, room) >> 20} MiB are left of what is allowed")  # fmt: skip
            return
        h.layers = layers
        self._load(h, inspected, layers)

    def _intend(self, h: Hosted, inspected: Inspected, others: Sequence[Rival], now: float) -> None:
        """Choose (again), and publish it."""
        layers = self._best(h, inspected, others)
        if layers is None:
            room = max(0, self._budget.weights - self._taken_by_others(h))
            nobody = h.obtainable is not None and not h.obtainable
            self._give_up(h, "no peer has its weights" if nobody else
                          f"not one layer fits into {room >> 20} MiB")  # fmt: skip
            return
        h.stage, h.deadline = Stage.INTENDING, now + self._config.intention_s
        if layers != h.layers:
            h.layers, self.changed = layers, True
            self._tell("shard.intended", Level.INFO, model=inspected.spec.name, layers=str(layers))

    def _go_or_wait(
        self, h: Hosted, inspected: Inspected, others: Sequence[Rival], now: float
    ) -> None:
        self._intend(h, inspected, others, now)
        if h.stage is not Stage.INTENDING or h.layers is None:
            return
        others_first = any(
            rival.state is ShardState.INTENDED and rival.node < self._me for rival in others
        )
        if others_first and h.turns < self._config.intention_turns_max:
            h.turns += 1
        else:
            self._load(h, inspected, h.layers)

    def _best(self, h: Hosted, inspected: Inspected, others: Sequence[Rival]) -> LayerRange | None:
        """The choice beside what is settled: this node's part of one plan for all that have yet to
        load, or, where those are many, beside the intentions of smaller ids."""
        count = inspected.spec.layer_count
        own = Capacity(self._fit_count(h, inspected), UNMEASURED_S)
        intending = [rival for rival in others if rival.state is ShardState.INTENDED]
        settled = [_served(rival) for rival in others if rival.state is not ShardState.INTENDED]
        has_all = h.obtainable is None or len(h.obtainable) == count
        if len(intending) >= PLANNED_TOGETHER_MAX or not has_all:
            settled += [_served(rival) for rival in intending if rival.node < self._me]
            return choose_layers(count, own, settled, h.obtainable)
        nodes = {r.node: Capacity(len(r.layers), r.decode_s_per_layer) for r in intending}
        nodes[self._me] = own
        plan = plan_layers(count, [nodes[node] for node in sorted(nodes)], settled)
        return plan[sorted(nodes).index(self._me)]

    def _fit_count(self, h: Hosted, inspected: Inspected) -> int:
        """Layers of a model that fit beside the others hosted here.

        Those that have yet to choose get an equal share, unless that is not even one layer.
        """
        room = self._budget.weights - self._taken_by_others(h)
        undecided = sum(
            o is not h and o.layers is None and o.stage in UNDECIDED for o in self._hosted
        )
        fixed = inspected.embed_weight_bytes + inspected.head_weight_bytes
        share = layers_that_fit(room // (1 + undecided), inspected.layer_weight_bytes, fixed)
        return share or layers_that_fit(room, inspected.layer_weight_bytes, fixed)

    def _load(self, h: Hosted, inspected: Inspected, layers: LayerRange) -> None:
        spec = inspected.spec
        embed, head = layers.start == 0, layers.stop == spec.layer_count
        if h.wish.is_fetched and h.fetched != layers:
            h.stage, h.deadline, self.changed = Stage.FETCHING, None, True
            self._effects.append(FetchLayers(spec.model_id, layers, embed, head))
            self._tell("shard.fetch", Level.INFO, model=spec.name, layers=str(layers))
            return
        h.stage, h.deadline = Stage.LOADING, None
        blocks = self._blocks_for(h, inspected, layers)
        load = Load(h.wish.path, spec.model_id, layers, embed, head, blocks)
        self._effects.append(ToWorker(load))
        self.changed = True
        self._tell("shard.load", Level.INFO, model=spec.name, layers=str(layers))

    def _blocks_for(self, h: Hosted, inspected: Inspected, layers: LayerRange) -> int:
        """Blocks of a model's pool: an equal share of what is left beside all weights and the pools
        of others; while some have yet to choose their layers, of what is kept for KV alone."""
        others = [o for o in self._hosted if o is not h and o.stage is not Stage.FAILED]
        room = self.kv_capacity_bytes
        if any(o.layers is None for o in others):
            room = min(room, self._budget.kv)
        room = max(0, room - sum(o.pool_bytes for o in others))
        size = block_bytes(inspected.kv_bytes_per_token_layer, layers)
        sharing = 1 + sum(not o.pool_bytes for o in others)
        blocks = min(room // sharing // size, POOL_BLOCKS_MAX)
        h.pool_bytes = blocks * size
        return blocks

    def _loaded(self, message: Loaded) -> None:
        h = self._of_model(message.model_id)
        if h is None or h.stage is not Stage.LOADING or h.layers != message.layers:
            return
        h.stage, h.loaded, h.speed = Stage.LOADED, message, message.speed
        h.loads += 1
        self.device = message.device
        self._restart_pause_s = self._config.restart_min_s
        self.changed = True
        self._serve_when_quiet()

    def _serve_when_quiet(self) -> None:
        """What is loaded is served as soon as nothing more is to be loaded."""
        if any(h.stage not in DONE for h in self._hosted):
            return
        for h in self._hosted:
            if h.stage is Stage.LOADED and h.loaded is not None:
                h.stage = Stage.SERVING
                self._tell("shard.serving", Level.INFO, model=h.wish.name,
                           layers=str(h.loaded.layers),
                           numeric_class=h.loaded.numeric_class)  # fmt: skip

    def _failed(self, message: WorkerFailed) -> None:
        h = next((h for h in self._hosted if h.wish.path == message.path), None)
        if h is not None:
            self._give_up(h, message.detail)

    def _give_up(self, h: Hosted, why: str) -> None:
        h.stage, h.deadline = Stage.FAILED, None
        self.changed = True
        self._tell("shard.failed", Level.ERROR, model=h.wish.name, reason=why)
        self._serve_when_quiet()

    def _measured(self, message: SpeedReport) -> None:
        h = self._of_model(message.speed.model_id)
        if h is not None and h.stage in (Stage.LOADED, Stage.SERVING):
            h.speed = message.speed

    # ------------------------------------------------------------ small parts

    def _of_model(self, model_id: ModelId) -> Hosted | None:
        return next(
            (h for h in self._hosted if h.inspected and h.inspected.spec.model_id == model_id),
            None,
        )

    def _taken_by_others(self, h: Hosted) -> int:
        """Bytes of weights of the other models hosted here."""
        return sum(other.weight_bytes for other in self._hosted if other is not h)

    def _info(self, h: Hosted, inspected: Inspected, layers: LayerRange) -> ShardInfo:
        loaded = h.loaded if h.stage is Stage.SERVING else None
        spec = inspected.spec
        return ShardInfo(
            model_id=spec.model_id,
            layers=layers,
            embed=layers.start == 0,
            head=layers.stop == spec.layer_count,
            numeric_class=loaded.numeric_class if loaded else NumericClass(""),
            state=ANNOUNCED[h.stage],
            kv_bytes_per_token_layer=(loaded or inspected).kv_bytes_per_token_layer,
            kv_capacity_bytes=self.kv_capacity_bytes,
            row_bytes=loaded.row_bytes if loaded else spec.hidden_size * 4,
            guides=loaded is not None and loaded.guides,
        )

    def _tell(self, event: str, level: Level, **fields: str | int | float) -> None:
        self._effects.append(Tell(note(event, level, **fields)))


def _block_bytes_of(loaded: Loaded) -> int:
    return block_bytes(loaded.kv_bytes_per_token_layer, loaded.layers)


def _served(rival: Rival) -> Served:
    return Served(rival.layers, rival.decode_s_per_layer)
