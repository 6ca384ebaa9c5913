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

from collections.abc import Sequence

from swarm.choosing import best_layers
from swarm.config import ShardConfig
from swarm.effects import DropModel, Effect, FetchLayers, StartWorker, StopWorker, Tell, ToWorker
from swarm.errors import RequestError
from swarm.hosted import (
    DONE,
    Hosted,
    Stage,
    block_bytes,
    weight_bytes,
)
from swarm.hosted import Budget as Budget
from swarm.hosted import Rival as Rival
from swarm.hosted import Wish as Wish
from swarm.hosted_shards import HostedShards
from swarm.messages import (
    Inspect,
    Inspected,
    Load,
    Loaded,
    LoadProgress,
    Message,
    SpeedReport,
    Unload,
    WorkerFailed,
)
from swarm.notes import Level, note
from swarm.routing.placement import Capacity
from swarm.terms import HubShare, LayerRange, ModelId, NodeId, ShardState

UNMEASURED_S = 0.001
"""Per layer and token, of a node that has loaded nothing yet."""


class Hosting(HostedShards):
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
        super().__init__(wishes, budget, config)
        self._me = me
        self._cache_dir = cache_dir
        self._running: set[int] = set()
        """Devices whose worker was started, and of whose end nothing was heard."""
        self._restarts: dict[int, float] = {}
        """When the workers of lost devices are started anew."""
        self._pauses_s = [config.restart_min_s] * self.device_count
        self._effects: list[Effect] = []
        self._given_up: list[ModelId] = []
        self.hub_shares: tuple[HubShare, ...] = ()
        """What others are told of models of the hub."""
        self.device = ""
        self.changed = False
        """Set when shards or models changed; whoever publishes them clears it."""
        self.revision = 0
        """Rises whenever shards or speeds may have changed."""

    def next_deadline(self) -> float | None:
        due = min(self._restarts.values(), default=None)
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
            self._start_workers()

    def adopt(self, wish: Wish, obtainable: frozenset[int] | None) -> None:
        """Take part in a model of the swarm. `obtainable`: layers whose weights are to be had;
        None: all."""
        self._hosted.append(Hosted(wish, obtainable=obtainable))
        self._start_workers()

    def load(self, wish: Wish) -> None:
        """One more model. Raises RequestError where it, or another of its name, is here already."""
        for h in self._hosted:
            if h.stage is Stage.FAILED and h.wish.path == wish.path:
                continue
            if wish.path == h.wish.path or wish.name == h.wish.name:
                another = "" if wish.path == h.wish.path else "another model called "
                how = "is just being unloaded here" if h.is_retiring else "is served here already"
                raise RequestError(f"{another}{wish.name} {how}", status=409)
        self._hosted = [h for h in self._hosted if h.wish.path != wish.path]
        self._hosted.append(Hosted(wish))
        self._start_workers()

    def has(self, name: str) -> bool:
        """Whether a model of that name is here to stay."""
        return any(h.wish.name == name and not h.is_retiring for h in self._hosted)

    def retire(self, name: str) -> ModelId | None:
        """Others are told no more of a model. None: it was not even looked at, and is gone now.

        Raises RequestError where there is none of that name.
        """
        h = next((h for h in self._hosted if h.wish.name == name), None)
        if h is None:
            raise RequestError(f"{name} is not served here", status=404)
        h.is_retiring = self.changed = True
        if h.inspected is None:
            self._forget(h)
            return None
        return h.inspected.spec.model_id

    def release(self, model_id: ModelId) -> None:
        """Its layers are given up, whatever they are doing."""
        h = self._of_model(model_id)
        if h is not None:
            self._effects.append(ToWorker(Unload(model_id)))
            self._forget(h)

    def rest(self) -> bool:
        """End the workers, which have nothing to serve; False where there are none."""
        if self._hosted or not (self._running or self._restarts):
            return False
        self._effects += [StopWorker(device) for device in sorted(self._running)]
        self._running.clear()
        self._restarts.clear()
        return True

    def _forget(self, h: Hosted) -> None:
        self._remove(h)
        self.changed = True
        self.revision += 1
        self._tell("shard.unloaded", Level.INFO, model=h.wish.name)
        self._serve_when_quiet()

    def _remove(self, h: Hosted) -> None:
        self._hosted.remove(h)
        if h.wish.fetched_id is not None:
            self._effects.append(DropModel(h.wish.fetched_id))

    def take_given_up(self) -> list[ModelId]:
        """Models that came from peers, cannot be served here after all, and are forgotten."""
        found, self._given_up = self._given_up, []
        return found

    def layers_fetched(self, model_id: ModelId, layers: LayerRange) -> None:
        h = self._of_model(model_id)
        if h is not None and h.stage is Stage.FETCHING and h.layers == layers and h.inspected:
            h.fetched = layers
            self._load(h, h.inspected, layers)
        elif h is not None and h.next == layers:
            h.fetched = layers

    def layers_short(self, model_id: ModelId, obtainable: frozenset[int], now: float) -> None:
        """Nobody has the weights of some layers any more: choose among those to be had."""
        h = self._of_model(model_id)
        if h is not None and h.stage is Stage.FETCHING and h.wish.layers is not None:
            self._give_up(h, f"no peer has layers {h.wish.layers}", "shard.unobtainable")
        elif h is not None and h.stage is Stage.FETCHING:
            h.obtainable, h.layers, h.parts, h.turns = obtainable, None, (), 0
            h.stage, h.deadline = Stage.SETTLING, now
            self.changed = True
        elif h is not None:
            self.intend(model_id, None)

    def fetch_failed(self, model_id: ModelId, reason: str) -> None:
        h = self._of_model(model_id)
        if h is not None and h.stage is Stage.FETCHING:
            self._give_up(h, reason)
        elif h is not None:
            self.intend(model_id, None)

    # ------------------------------------------------------------ moves, as `mover` decides

    def intend(self, model_id: ModelId, layers: LayerRange | None) -> None:
        """What is served now is to be given up for these; None: it is not, after all."""
        h = self._of_model(model_id)
        if h is not None and (h.next != layers or h.is_parting):
            h.next, h.is_parting, self.changed = layers, False, True

    def bar(self, model_id: ModelId, *, is_barred: bool) -> None:
        h = self._of_model(model_id)
        if h is not None and h.is_barred is not is_barred:
            h.is_barred, self.changed = is_barred, True

    def fetch_next(self, model_id: ModelId) -> bool:
        """Whether the weights of what is next have yet to come; they are ordered then."""
        h = self._of_model(model_id)
        if h is None or h.inspected is None or h.next is None or not h.wish.is_fetched:
            return False
        if h.fetched == h.next:
            return False
        spec = h.inspected.spec
        embed, head = h.next.start == 0, h.next.stop == spec.layer_count
        self._effects.append(FetchLayers(spec.model_id, h.next, embed, head, h.wish.hub))
        return True

    def part(self, model_id: ModelId) -> None:
        """From now on others are told that what is next is being loaded."""
        h = self._of_model(model_id)
        if h is not None and h.next is not None:
            h.is_parting = self.changed = True

    def move(self, model_id: ModelId) -> None:
        """Load what is next in the place of what is served."""
        h = self._of_model(model_id)
        if h is not None and h.inspected is not None and h.next is not None:
            assert h.layers is not None
            h.former, h.loaded, h.speed = (h.layers, h.parts), None, None
            layers, h.next, h.is_parting = h.next, None, False
            if self._place(h, layers, self._weight_rooms(h), self._rooms_beside_pools(h)):
                self._load(h, h.inspected, layers)
            else:
                self._go_back(h, h.inspected, "they do not fit beside what was loaded since")

    def load_took(self, model_id: ModelId, duration_s: float) -> None:
        h = self._of_model(model_id)
        if h is not None and h.layers is not None:
            h.layer_load_s = duration_s / len(h.layers)

    def worker_message(self, message: Message, now: float) -> None:
        if len(self._restarts) == self.device_count:
            return  # the last words of a worker that was given up
        self.revision += 1
        match message:
            case Inspected():
                self.inspected((message,), now)
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

    def worker_lost(self, reason: str, now: float, device: int = 0) -> tuple[ModelId, ...]:
        """A worker ended. Returns the models whose shards are gone with it."""
        self._tell_end("worker.lost", reason, device)
        return self._start_over(now, device)

    def worker_stuck(self, reason: str, now: float, device: int = 0) -> tuple[ModelId, ...]:
        """A worker is wedged: it is ended and started anew. Returns the models that are gone."""
        self._effects.append(StopWorker(device))
        self._tell_end("worker.stuck", reason, device)
        return self._start_over(now, device)

    def _tell_end(self, event: str, reason: str, device: int) -> None:
        which = {"device": device} if self.device_count > 1 else {}
        pause_s = self._pauses_s[device]
        self._tell(event, Level.ERROR, reason=reason, restart_s=pause_s, **which)

    def _start_over(self, now: float, device: int) -> tuple[ModelId, ...]:
        """What has nothing to do with the device goes on."""
        self.revision += 1
        lost = [h for h in self._hosted if h.stage is not Stage.FAILED and h.uses(device)]
        served = {shard.model_id for shard in self.served()}
        models = [h.inspected.spec.model_id for h in lost if h.inspected is not None]
        for h in lost:
            if h.former is not None:  # what it was to load may be what ended the worker
                (h.layers, h.parts), h.is_barred = h.former, True
            h.stage, h.loaded, h.speed, h.deadline = Stage.INSPECTING, None, None, None
            h.next, h.is_parting, h.former = None, False, None
        self._running.discard(device)
        self._restarts[device] = now + self._pauses_s[device]
        self._pauses_s[device] = min(2 * self._pauses_s[device], self._config.restart_max_s)
        self.changed = True
        return tuple(model_id for model_id in models if model_id in served)

    def tick(self, rivals: dict[ModelId, list[Rival]], now: float) -> None:
        self.revision += 1
        for device, due in list(self._restarts.items()):
            if now >= due:
                del self._restarts[device]
                self._start_workers()
        for h in tuple(self._hosted):
            if h.deadline is None or now < h.deadline or h.inspected is None:
                continue
            others = rivals.get(h.inspected.spec.model_id, [])
            if h.stage is Stage.SETTLING:
                self._intend(h, h.inspected, others, now)
            elif h.stage is Stage.INTENDING:
                self._go_or_wait(h, h.inspected, others, now)

    # ------------------------------------------------------------ steps

    def _start_workers(self) -> None:
        """Those that do not run, unless they were lost and are about to be started again; and have
        all look at what they have not seen yet, as soon as all are there."""
        for device in range(self.device_count):
            if device not in self._running and device not in self._restarts:
                self._effects.append(StartWorker(device))
                self._running.add(device)
        if self._restarts:
            return
        for h in self._hosted:
            if h.stage is Stage.INSPECTING:
                order = Inspect(h.wish.path, h.wish.name, self._cache_dir)
                self._effects.append(ToWorker(order))

    def inspected(self, found: tuple[Inspected, ...], now: float) -> None:
        """What the workers say of a checkpoint, in the order of their devices."""
        message = found[0]
        h = next((h for h in self._hosted if h.wish.path == message.path), None)
        if h is None or h.stage is not Stage.INSPECTING:
            return
        same = self._of_model(message.spec.model_id)
        if same is not None and same is not h:
            self._give_up(h, f"it is the same model as {same.wish.path}")
            return
        h.inspected, h.sizes = message, found
        self._budget = Budget.join([
            Budget.of(told.memory_bytes, self._config, spills=known.spills)
            if told.memory_bytes
            else known
            for told, known in zip(found, self._budget.devices, strict=True)
        ])  # fmt: skip
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
        rooms = self._rooms_beside_pools(h)
        if not self._place(h, layers, rooms):
            needed = weight_bytes(inspected, layers)
            many = f" on {self.device_count} devices" if self.device_count > 1 else ""
            self._give_up(h, f"layers {layers} need {needed >> 20} MiB for weights alone, "
                             f"{max(0, sum(rooms)) >> 20} MiB are left of what is allowed"
                             f"{many}")  # fmt: skip
            return
        if any(self._is_tight(h, device, room) for device, room in enumerate(rooms)):
            h.layers, h.parts = None, ()
            self._give_up(h, f"the weights of layers {layers} take all {sum(rooms) >> 20} MiB that "
                             "are left of what is allowed: none remain for their KV")  # fmt: skip
            return
        self._load(h, inspected, layers)

    def _intend(self, h: Hosted, inspected: Inspected, others: Sequence[Rival], now: float) -> None:
        """Choose (again), and publish it."""
        layers = self._best(h, inspected, others)
        is_new = layers != h.layers
        if layers is not None and is_new:
            rooms = [self._weight_rooms(h)]
            if h.layers is not None:  # pools that were made since have left room for as many
                rooms.append(self._rooms_beside_pools(h))
            if not self._place(h, layers, *rooms):
                layers = None
        if layers is None:
            room = self._weight_room(h)
            if h.obtainable is not None and not h.obtainable:
                self._give_up(h, "no peer has its weights", "shard.unobtainable")
            else:
                self._give_up(h, f"not one layer fits into {room >> 20} MiB")
            return
        h.stage, h.deadline = Stage.INTENDING, now + self._config.intention_s
        if is_new:
            self.changed = True
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
        count = inspected.spec.layer_count
        own = Capacity(self._fit_count(h, inspected), UNMEASURED_S)
        return best_layers(self._me, count, own, others, h.obtainable, self._config.copies)

    def _load(self, h: Hosted, inspected: Inspected, layers: LayerRange) -> None:
        spec = inspected.spec
        embed, head = layers.start == 0, layers.stop == spec.layer_count
        if h.wish.is_fetched and h.fetched != layers:
            h.stage, h.deadline, self.changed = Stage.FETCHING, None, True
            self._effects.append(FetchLayers(spec.model_id, layers, embed, head, h.wish.hub))
            self._tell("shard.fetch", Level.INFO, model=spec.name, layers=str(layers))
            return
        h.stage, h.deadline = Stage.LOADING, None
        blocks = self._blocks_for(h)
        load = Load(h.wish.path, spec.model_id, layers, embed, head, blocks)
        self._effects.append(ToWorker(load))
        self.changed = True
        self._tell("shard.load", Level.INFO, model=spec.name, layers=str(layers))

    def _loaded(self, message: Loaded) -> None:
        h = self._of_model(message.model_id)
        if h is None or h.stage is not Stage.LOADING or h.layers != message.layers:
            return
        h.stage, h.loaded, h.speed, h.former = Stage.LOADED, message, message.speed, None
        h.loads += 1
        if message.kv_blocks:
            each = message.kv_bytes_per_token_layer
            sizes = [block_bytes(each, part) if part else 0 for part in h.parts]
            h.pools = tuple(message.kv_blocks * size for size in sizes)
        self.device = message.device
        for device in range(self.device_count):
            if h.part_on(device) is not None:
                self._pauses_s[device] = self._config.restart_min_s
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
        if h is None:
            return
        if h.former is None or h.inspected is None:
            self._give_up(h, message.detail)
        else:
            self._go_back(h, h.inspected, message.detail)

    def _go_back(self, h: Hosted, inspected: Inspected, why: str) -> None:
        """To what it served before it was to move."""
        assert h.former is not None
        (h.layers, h.parts), h.former, h.is_barred = h.former, None, True
        self._tell("shard.not_moved", Level.WARNING, model=h.wish.name, reason=why)
        self._load(h, inspected, h.layers)

    def _give_up(self, h: Hosted, why: str, event: str = "shard.failed") -> None:
        h.stage, h.deadline = Stage.FAILED, None
        self.changed = True
        self._tell(event, Level.ERROR, model=h.wish.name, reason=why)
        if h.wish.fetched_id is not None:
            if h.inspected is not None:
                self._effects.append(ToWorker(Unload(h.inspected.spec.model_id)))
            self._remove(h)
            self._given_up.append(h.wish.fetched_id)
        self._serve_when_quiet()

    def _measured(self, message: SpeedReport) -> None:
        h = self._of_model(message.speed.model_id)
        if h is not None and h.stage in (Stage.LOADED, Stage.SERVING):
            h.speed = message.speed

    def _tell(self, event: str, level: Level, **fields: str | int | float) -> None:
        self._effects.append(Tell(note(event, level, **fields)))
