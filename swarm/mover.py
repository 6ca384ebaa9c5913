"""When this node gives up the layers that it chose for others, and how. Pure.

    RESTING ──named──► INTENDING ──► FETCHING ──► PARTING ──► LOADING ──► RESTING
       ▲                   │  rival      │ short      │ others lost what it gives up
       └───────────────────┴─────────────┴────────────┘

`routing.moves` names moves from what everybody is told, so that nodes with one view name the same.
The one that is named tells its intention, looks once more beside those of smaller ids, and gets
the weights that it lacks while it serves on. Then others are told that it loads, whoever runs
through it is moved away as from a node that leaves, and only then is the old range given up. Lost
layers are loaded at once: the intention is told when their holder falls silent, the load begins
when it is suspected. What merely makes the whole faster must have paid for a while.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from zlib import crc32

from swarm.effects import Effect, Send, Tell
from swarm.hosted import Hosted, Rival, Stage
from swarm.hosting import Hosting
from swarm.moves_config import MovesConfig
from swarm.notes import Level, note
from swarm.routing.moves import Holder, Move, improvement, repairs
from swarm.routing.relay import Relay
from swarm.terms import LayerRange, ModelId, NodeId, ShardState, short

NEWS_PAUSE_S = 0.1
"""From news to a look: they come in swarms."""
LOOK_AGAIN_S = 0.25
"""While layers lack, and while something of a move is waited for."""
VERDICT_S = 0.05
"""How often a node that is ready to load looks whether whose layers lack is suspected by now."""
MEASURED_S = 1e-3
"""Decode time per layer of a node that has none yet."""


class Phase(Enum):
    RESTING = "resting"
    INTENDING = "intending"
    FETCHING = "fetching"
    PARTING = "parting"
    LOADING = "loading"


BEFORE_LOADING = (Phase.INTENDING, Phase.FETCHING, Phase.PARTING)


@dataclass(slots=True)
class _Plan:
    """Of one model. `since`: when the move, or the loss, was seen first."""

    phase: Phase = Phase.RESTING
    target: LayerRange | None = None
    is_repair: bool = False
    until: float = 0.0
    lost_since: float | None = None
    wanted: Move | None = None
    wanted_since: float = 0.0
    look_at: float = 0.0
    rests_until: float = 0.0
    barred_until: float | None = None


class Mover:
    def __init__(
        self, me: NodeId, hosting: Hosting, relay: Relay, config: MovesConfig, hand_over_s: float
    ) -> None:
        """`hand_over_s`: for so long at most sessions are waited for that move away."""
        self._me = me
        self._hosting = hosting
        self._relay = relay
        self._config = config
        self._hand_over_s = hand_over_s
        self._plans: dict[ModelId, _Plan] = {}
        self._named: dict[NodeId, float] = {}
        """Who should load lost layers, and since when."""
        self._due: float | None = None
        self._effects: list[Effect] = []

    @property
    def has_effects(self) -> bool:
        return bool(self._effects)

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float | None:
        return self._due

    # ------------------------------------------------------------ facts in

    def news(self, now: float) -> None:
        """Something of members, or of own shards, has changed."""
        if self._plans or any(self._hosting.room_layers(h) for h in self._hosting.all()):
            self._look_by(now + NEWS_PAUSE_S)

    def somebody_silent(self, now: float) -> None:
        """A peer is being probed: what only it holds may be lost."""
        if self._plans:
            self._look_by(now)

    def tick(self, rivals: Mapping[ModelId, Sequence[Rival]], now: float) -> None:
        self._due = None
        if self._relay.is_leaving:
            return
        for h in self._hosting.all():
            if h.inspected is None or h.wish.layers is not None:
                continue
            model_id = h.inspected.spec.model_id
            plan = self._plans.get(model_id)
            if plan is None:
                if h.stage is not Stage.SERVING:
                    continue
                plan = self._plans[model_id] = _Plan(look_at=now + self._config.look_s)
            self._tend(h, plan, rivals.get(model_id, ()), now)

    # ------------------------------------------------------------ one model

    def _tend(self, h: Hosted, plan: _Plan, rivals: Sequence[Rival], now: float) -> None:
        if plan.phase is Phase.LOADING and h.stage is Stage.SERVING:
            self._arrived(h, plan, now)
        elif plan.phase is not Phase.RESTING and (
            h.stage is not Stage.SERVING if plan.phase is not Phase.LOADING
            else h.stage in (Stage.FAILED, Stage.INSPECTING)
        ):  # fmt: skip
            self._rest(plan)  # its worker was lost, or could not load
        if h.stage is not Stage.SERVING:
            if plan.phase is Phase.LOADING:
                self._look_by(now + LOOK_AGAIN_S)
            return
        if self._hosting.departs_in_s and not plan.is_repair and plan.phase in BEFORE_LOADING:
            self._relay.stays(_id(h))
            self._withdraw(h, plan, "this node is about to leave")
        match plan.phase:
            case Phase.RESTING:
                self._look(h, plan, rivals, now)
            case Phase.INTENDING:
                self._confirm(h, plan, rivals, now)
            case Phase.FETCHING:
                self._await_weights(h, plan, rivals, now)
            case Phase.PARTING:
                self._await_sessions(h, plan, rivals, now)
            case Phase.LOADING:
                pass

    def _look(self, h: Hosted, plan: _Plan, rivals: Sequence[Rival], now: float) -> None:
        model_id = _id(h)
        if h.is_barred and plan.barred_until is None:  # it came back to what it had
            plan.barred_until = now + self._config.barred_s
        elif plan.barred_until is not None and now >= plan.barred_until:
            plan.barred_until = None
            self._hosting.bar(model_id, is_barred=False)
        move = self._repair(h, plan, rivals, now)
        if move is not None:
            is_lost = not self._is_held(h, _firm(rivals))
            self._intend(h, plan, move, now, is_repair=is_lost)
            return
        if plan.lost_since is None and now >= plan.look_at:
            plan.look_at = now + self._config.look_s
            self._consider(h, plan, rivals, now)
        if plan.phase is Phase.RESTING:
            self._look_by(plan.look_at if plan.lost_since is None else self._next_look(plan, now))
        if plan.barred_until is not None:
            self._look_by(plan.barred_until)

    def _next_look(self, plan: _Plan, now: float) -> float:
        """While layers lack."""
        due = (plan.lost_since or now) + self._config.repair_after_s
        return due if now < due else now + LOOK_AGAIN_S

    def _repair(self, h: Hosted, plan: _Plan, rivals: Sequence[Rival], now: float) -> Move | None:
        """This node's part of what brings lost layers back, once they lack for long enough; or of
        what keeps those that would lack once somebody departs, by moves that cost none. Layers of a
        doubtful holder are spoken for at once: no node that joins is about to take those."""
        moves = self._repairs(h, rivals, now)
        if not moves:
            plan.lost_since = None
            self._named.clear()
            return None
        if plan.lost_since is None:
            plan.lost_since = now
        is_in_doubt = len(_firm(rivals)) < len(rivals) and self._is_held(h, rivals)
        if now < plan.lost_since + self._config.repair_after_s and not is_in_doubt:
            return None
        for move in moves:
            self._named.setdefault(move.node, now)
        return next((move for move in moves if move.node == self._me), None)

    def _repairs(self, h: Hosted, rivals: Sequence[Rival], now: float) -> tuple[Move, ...]:
        count = _count(h)
        is_lost = not self._is_held(h, _firm(rivals))
        staying = [rival for rival in rivals if not rival.is_departing]
        holders = [self._but_silent(holder, now) for holder in self._holders(h, _firm(staying))]
        return repairs(count, holders, may_plan_anew=is_lost)

    def _but_silent(self, holder: Holder, now: float) -> Holder:
        """Who was named for long and has said nothing is not counted on."""
        since = self._named.get(holder.node)
        if since is None or holder.node == self._me:
            return holder
        if now < since + self._config.repair_patience_s or not holder.is_steady:
            return holder
        return Holder(holder.node, holder.layers, holder.decode_s_per_layer, is_steady=True)

    def _consider(self, h: Hosted, plan: _Plan, rivals: Sequence[Rival], now: float) -> None:
        """Whether a move of this node has paid for long enough."""
        staying = [rival for rival in rivals if not rival.is_departing]
        holders = self._holders(h, staying)
        copies = max(1, self._hosting.copies, *(rival.copies for rival in rivals))
        move = improvement(_count(h), holders, copies, self._config.gain)
        if move != plan.wanted:
            plan.wanted, plan.wanted_since = move, now
        if move is None or move.node != self._me or now < plan.rests_until:
            return
        if now >= plan.wanted_since + self._patience_s(move):
            self._intend(h, plan, move, now, is_repair=False)

    def _patience_s(self, move: Move) -> float:
        """The jitter is by node and target: the same for all who would know."""
        draw = crc32(f"{move.node} {move.layers}".encode()) / (1 << 32)
        return self._config.window_s * (1 + draw / 2)

    def _intend(self, h: Hosted, plan: _Plan, move: Move, now: float, *, is_repair: bool) -> None:
        plan.phase, plan.target, plan.is_repair = Phase.INTENDING, move.layers, is_repair
        plan.until = now + self._config.repair_intention_s
        if plan.lost_since is not None:
            plan.until = max(plan.until, plan.lost_since + self._config.repair_after_s)
        plan.wanted = None
        self._hosting.intend(_id(h), move.layers)
        self._tell("shard.move_intended", h, layers=str(move.layers), repair=is_repair)
        self._look_by(plan.until)

    def _confirm(self, h: Hosted, plan: _Plan, rivals: Sequence[Rival], now: float) -> None:
        """Nobody of a smaller id does it, and it is still called for?"""
        if now < plan.until:
            self._look_by(plan.until)
            return
        if plan.is_repair:
            moves = self._repairs(h, [self._unless_first(r) for r in rivals], now)
            move = next((move for move in moves if move.node == self._me), None)
            present = [rival for rival in rivals if not rival.is_suspect]
            if move is not None and self._is_held(h, present):
                self._look_by(now + VERDICT_S)
                return
        else:
            now_are = map(self._unless_first, rivals)
            is_free = not any(r.next or r.state is not ShardState.SERVING for r in now_are)
            move = Move(self._me, plan.target) if is_free and plan.target else None
        if move is None:
            self._withdraw(h, plan, "another node does it")
        elif move.layers != plan.target:
            self._intend(h, plan, move, now, is_repair=plan.is_repair)
        elif self._hosting.fetch_next(_id(h)):
            plan.phase = Phase.FETCHING
        else:
            self._part(h, plan, now)

    def _unless_first(self, rival: Rival) -> Rival:
        """An intention of a larger id gives way."""
        if rival.next is None or rival.node < self._me:
            return rival
        return replace(rival, next=None)

    def _await_weights(self, h: Hosted, plan: _Plan, rivals: Sequence[Rival], now: float) -> None:
        if h.next is None:
            plan.barred_until = now + self._config.barred_s
            self._hosting.bar(_id(h), is_barred=True)
            self._withdraw(h, plan, "its weights are not to be had")
            self._look_by(plan.barred_until)
        elif plan.is_repair and self._is_held(h, _firm(rivals)):
            self._withdraw(h, plan, "nothing lacks any more")
        elif not self._is_spared(h, plan, rivals):
            self._withdraw(h, plan, "what it serves has become rare")
        elif h.fetched == h.next:
            self._part(h, plan, now)

    def _part(self, h: Hosted, plan: _Plan, now: float) -> None:
        plan.phase, plan.until = Phase.PARTING, now + self._hand_over_s
        self._hosting.part(_id(h))
        farewells = self._relay.farewells(_id(h))
        self._effects += [Send(origin, failed) for origin, failed in farewells]
        self._look_by(now)

    def _await_sessions(self, h: Hosted, plan: _Plan, rivals: Sequence[Rival], now: float) -> None:
        """Whoever runs through here goes where the layers are served too, its KV warmed first."""
        if not self._is_spared(h, plan, rivals):
            self._relay.stays(_id(h))
            self._withdraw(h, plan, "what it serves has become rare")
            return
        if now < plan.until and self._relay.session_count(_id(h)) and not plan.is_repair:
            self._look_by(now + LOOK_AGAIN_S)
            return
        plan.phase = Phase.LOADING
        self._tell("shard.moves", h, layers=str(plan.target), repair=plan.is_repair)
        self._hosting.move(_id(h))
        self._look_by(now + LOOK_AGAIN_S)

    def _arrived(self, h: Hosted, plan: _Plan, now: float) -> None:
        if not plan.is_repair:
            plan.rests_until = now + self._config.pause_s
        self._rest(plan)

    def _withdraw(self, h: Hosted, plan: _Plan, why: str) -> None:
        self._tell("shard.move_withdrawn", h, reason=why)
        self._hosting.intend(_id(h), None)
        self._rest(plan)

    def _rest(self, plan: _Plan) -> None:
        plan.phase, plan.target, plan.wanted, plan.lost_since = Phase.RESTING, None, None, None

    # ------------------------------------------------------------ small parts

    def _is_spared(self, h: Hosted, plan: _Plan, rivals: Sequence[Rival]) -> bool:
        """Whether others serve all that it gives up. While the model lacks layers anyhow, what is
        given up for them may lack too."""
        if plan.is_repair:
            return True
        others = [r for r in rivals if r.state is ShardState.SERVING and not r.is_doubtful]
        held = {n for r in others if r.next is None for n in range(r.layers.start, r.layers.stop)}
        layers = h.layers
        return layers is not None and held.issuperset(range(layers.start, layers.stop))

    def _is_held(self, h: Hosted, rivals: Sequence[Rival]) -> bool:
        """Whether this node and `rivals` hold, or will hold, all layers."""
        held = {n for x in self._holders(h, rivals) for n in range(x.layers.start, x.layers.stop)}
        return held.issuperset(range(_count(h)))

    def _holders(self, h: Hosted, rivals: Sequence[Rival]) -> list[Holder]:
        """All who hold or will hold layers, this node included."""
        assert h.layers is not None
        decode_s = h.speed.decode_s_per_layer if h.speed else MEASURED_S
        room = self._hosting.room_layers(h)
        load_s = self._hosting.load_s(h)
        mine = Holder(self._me, h.layers, decode_s, is_steady=True, room_layers=room, load_s=load_s)
        found = [
            Holder(r.node, r.next or r.layers, r.decode_s_per_layer, _is_steady(r),
                   r.room_layers, r.load_s)
            for r in rivals
        ]  # fmt: skip
        return sorted([mine, *found], key=lambda holder: holder.node)

    def _look_by(self, moment: float) -> None:
        if self._due is None or moment < self._due:
            self._due = moment

    def _tell(self, event: str, h: Hosted, **fields: str | int | float) -> None:
        told = note(event, Level.INFO, model=h.wish.name, node=short(self._me), **fields)
        self._effects.append(Tell(told))


def _firm(rivals: Sequence[Rival]) -> list[Rival]:
    return [rival for rival in rivals if not rival.is_doubtful]


def _is_steady(rival: Rival) -> bool:
    return rival.state is ShardState.SERVING and rival.next is None and not rival.is_doubtful


def _id(h: Hosted) -> ModelId:
    assert h.inspected is not None
    return h.inspected.spec.model_id


def _count(h: Hosted) -> int:
    assert h.inspected is not None
    return h.inspected.spec.layer_count
