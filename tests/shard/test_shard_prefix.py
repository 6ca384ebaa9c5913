"""Real stages behind real relays and a real origin: what is reused, or dropped and replayed, gives
the ids of a run that nobody shared anything with."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest
from engine_chain import MODEL, engine, load, on_blocks, parts
from tiny_models import LAYERS, VOCAB, save_tiny

from swarm.config import RoutingConfig
from swarm.effects import Effect, Failed, Finished, Generated, Reply, Send, SessionEvent, ToWorker
from swarm.errors import NoRoute, SwarmError
from swarm.messages import (
    KV_BLOCK_TOKENS,
    Credit,
    Message,
    Open,
    Ran,
    Release,
    Resume,
    RunFailed,
    Step,
)
from swarm.routing.cost import PlanRequest
from swarm.routing.origins import Origins
from swarm.routing.reach import Standing
from swarm.routing.relay import Relay
from swarm.shard.engine import Engine
from swarm.shard.kv_blocks import KvPools, PoolShape
from swarm.shard.stage import Stage
from swarm.terms import (
    Hop,
    ModelSpec,
    NodeId,
    NumericClass,
    Order,
    PoolKind,
    Route,
    Sampling,
    SessionId,
    ShardInfo,
    ShardState,
)

ME = NodeId("me")
T = KV_BLOCK_TOKENS
UNIT = 2 * T
SPEC = ModelSpec(MODEL, "tiny", LAYERS, 32, VOCAB, 256, (), False)
CLASS = NumericClass("c")
WARM = Sampling(temperature=0.9, seed=5)
PROMPT = tuple(1 + (7 * i * i + i) % (VOCAB - 1) for i in range(100))


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> list[Stage]:
    folder = tmp_path_factory.mktemp("llama")
    save_tiny(folder, "llama")
    return [load(folder, part) for part in parts(LAYERS, [2])]


class OneRoute:
    """A planner that knows one way, unless some of it is to be avoided."""

    def __init__(self, route: Route) -> None:
        self.route = route

    def plan(self, request: PlanRequest) -> Route | None:
        return self.route if request.avoid.isdisjoint(self.route.nodes) else None

    def why_not(self, request: PlanRequest) -> SwarmError:
        return NoRoute(MODEL, (), "not now")


class Line:
    """One origin, and hops whose workers answer at once."""

    def __init__(self, stages: Sequence[Stage], blocks: int = 64, growth: int = 64) -> None:
        config = RoutingConfig(kv_growth_tokens=growth)
        names = [NodeId(f"hop{index}") for index in range(len(stages))]
        self.relays: dict[NodeId, Relay] = {}
        self.engines: dict[NodeId, Engine] = {}
        for name, stage in zip(names, stages, strict=True):
            self.engines[name] = plain_engine(on_blocks(stage, blocks))
            pools = KvPools()
            pools.serve([PoolShape(MODEL, 1, blocks, 1, PoolKind(True, UNIT, False))])
            self.relays[name] = Relay(name, config, pools)
            self.relays[name].serve([_shard(stage)])
        hops = [
            Hop(name, s.part.layers, s.part.embed, s.part.head, CLASS)
            for name, s in zip(names, stages, strict=True)
        ]
        self.origins = Origins(ME, config, OneRoute(Route(tuple(hops), 0.01, 0.1)))
        self.now = 0.0
        self.events: dict[SessionId, list[SessionEvent]] = {}
        self.sent: list[Message] = []

    def ask(self, ids: Sequence[int], count: int) -> SessionId:
        session = SessionId(f"{len(self.events):016x}")
        self.events[session] = []
        self.origins.start(
            session, Order(MODEL, tuple(ids), count, WARM, frozenset()), SPEC, self.now
        )
        return session

    def settle(self) -> None:
        """Deliver everything, in the order in which it was said."""
        queue: deque[tuple[NodeId, Effect]] = deque()
        while True:
            queue += ((ME, effect) for effect in self.origins.take_effects())
            for name, relay in self.relays.items():
                queue += ((name, effect) for effect in relay.take_effects())
            if not queue:
                return
            self._carry_out(*queue.popleft())

    def _carry_out(self, sender: NodeId, effect: Effect) -> None:
        if isinstance(effect, Reply):
            self.events[effect.session].append(effect.event)
        elif isinstance(effect, ToWorker):
            one = self.engines[sender]
            answers = one.handle(effect.message)  # type: ignore[arg-type]
            while one.has_work:
                answers += one.step()
            for answer in answers:
                self._answered(self.relays[sender], answer)
        elif isinstance(effect, Send):
            self.sent.append(effect.message)
            if effect.peer == ME:
                self.origins.receive(sender, effect.message, self.now)  # type: ignore[arg-type]
            else:
                self._hop(self.relays[effect.peer], sender, effect.message)

    def _answered(self, relay: Relay, answer: Message) -> None:
        if isinstance(answer, Ran):
            relay.ran(answer, self.now)
        elif isinstance(answer, RunFailed):
            raise AssertionError(answer.detail)

    def _hop(self, relay: Relay, sender: NodeId, message: Message) -> None:
        match message:
            case Open():
                relay.open(sender, message, lambda peer: Standing.LINKED, self.now)
            case Resume():
                relay.resume(sender, message)
            case Release():
                relay.release(sender, message)
            case Step():
                relay.step(sender, message, self.now)
            case Credit():
                relay.credit(sender, message)

    def ids(self, session: SessionId) -> list[int]:
        return [e.token.token_id for e in self.events[session] if isinstance(e, Generated)]

    def answer(self, ids: Sequence[int], count: int) -> tuple[list[int], int]:
        """The tokens of one whole answer, and how much of its prompt was not run."""
        session = self.ask(ids, count)
        self.settle()
        end = self.events[session][-1]
        assert isinstance(end, Finished), end
        return self.ids(session), end.stats.cached_tokens


def plain_engine(stage: Stage) -> Engine:
    """One that takes its blocks from its orders alone."""
    made = engine(stage)
    return Engine(stage, MODEL, made._tracker, made._limits, made._clock)


def _shard(stage: Stage) -> ShardInfo:
    part = stage.part
    return ShardInfo(
        MODEL, part.layers, part.embed, part.head, CLASS, ShardState.SERVING, 1, 1, stage.row_bytes
    )


def test_a_next_turn_has_the_ids_of_a_cold_start(stages: list[Stage]) -> None:
    line = Line(stages)
    first, cached = line.answer(PROMPT, 20)
    assert cached == 0
    longer = [*PROMPT, *first, 3, 1, 4, 1, 5, 9, 2, 6]
    warm, cached = line.answer(longer, 20)
    assert cached == UNIT  # of 100 positions whole pieces alone
    cold, cached = Line(stages).answer(longer, 20)
    assert (warm, cached) == (cold, 0)


def test_a_prompt_that_begins_alike_and_ends_otherwise(stages: list[Stage]) -> None:
    line = Line(stages)
    line.answer(PROMPT, 3)
    other = [*PROMPT[:UNIT], *reversed(PROMPT)]
    warm, cached = line.answer(other, 12)
    assert cached == UNIT
    assert warm == Line(stages).answer(other, 12)[0]
    changed = [PROMPT[0] + 1, *PROMPT[1:]]
    assert line.answer(changed, 3)[1] == 0


def test_who_made_room_goes_on_with_the_same_ids(stages: list[Stage]) -> None:
    prompts = [PROMPT[:40], PROMPT[20:70], PROMPT[5:45]]
    cold = [Line(stages).answer(prompt, 90)[0] for prompt in prompts]
    line = Line(stages, blocks=9, growth=16)
    sessions = [line.ask(prompt, 90) for prompt in prompts]
    for _ in range(40):
        line.settle()
        line.now += 1.0
        line.origins.tick(line.now)
    moved = [message for message in line.sent if type(message).__name__ == "HopFailed"]
    assert moved, "nobody had to make room"
    ends = [line.events[session][-1] for session in sessions]
    assert not [end for end in ends if isinstance(end, Failed)], ends
    assert [line.ids(session) for session in sessions] == cold
