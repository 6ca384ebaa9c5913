"""From members, links and own shards to what the planner and people see. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from swarm.discovery.addresses import Interest
from swarm.gossip.membership import Member
from swarm.gossip.records import StaticRecord
from swarm.hosted import DEPARTS_SOON_S, Rival
from swarm.routing.cost import Candidate, SwarmView, Wire
from swarm.routing.planner import missing_layers
from swarm.routing.reach import Standing
from swarm.snapshot import LinkView, ModelView, NodeView, ShardView
from swarm.terms import (
    HubState,
    LinkSpeed,
    MemberState,
    ModelId,
    ModelSpec,
    NodeId,
    ShardInfo,
    ShardSpeed,
    ShardState,
)


@dataclass(frozen=True, slots=True)
class Own:
    """This node's part of the picture, fresher than its own records."""

    node: NodeId
    shards: tuple[ShardInfo, ...]
    speeds: tuple[ShardSpeed, ...]
    links: Mapping[NodeId, LinkSpeed]
    leaving: bool


@dataclass(slots=True)
class Atlas:
    """What other members' records say, whoever may be used now. `shards`: of those that serve."""

    me: NodeId
    members: Sequence[Member]
    models: tuple[ModelSpec, ...]
    """This node's own, which count more than what others say."""
    specs: Mapping[ModelId, ModelSpec]
    shards: tuple[tuple[Member, tuple[Candidate, ...]], ...]
    _wires: dict[tuple[NodeId, NodeId], Wire] | None = None

    @property
    def wires(self) -> Mapping[tuple[NodeId, NodeId], Wire]:
        """Read when first asked for: planners need them, and records come far more often."""
        if self._wires is None:
            self._wires = {
                (member.node, link.peer): Wire(link.rtt_s, link.goodput_bytes_s)
                for member in self.members
                if member.node != self.me and member.static and member.dynamic
                for link in member.dynamic.links
            }
        return self._wires


def atlas(me: NodeId, models: tuple[ModelSpec, ...], members: Sequence[Member]) -> Atlas:
    """Who says of a model what `known_models` does not hold for true serves some other model."""
    specs = known_models(me, models, members)
    shards: list[tuple[Member, tuple[Candidate, ...]]] = []
    for member in members:
        static, dynamic = member.static, member.dynamic
        if member.node == me or static is None or dynamic is None:
            continue
        if static.leaving or not static.shards:
            continue
        candidates = _candidates(member.node, _sound_shards(static, specs), dynamic.speeds)
        if candidates:
            shards.append((member, tuple(candidates)))
    return Atlas(me, members, models, specs, tuple(shards))


def swarm_view(own: Own, known: Atlas, standing: Callable[[Member], Standing]) -> SwarmView:
    """Shards that may be used now, all measured pairs. `standing` knows links and penalties."""
    view = cover_view(own, known, standing)
    wires = dict(known.wires)
    for peer, link in own.links.items():
        wires[(own.node, peer)] = Wire(link.rtt_s, link.goodput_bytes_s)
    ordered = tuple(sorted(view.candidates, key=lambda c: c.node))
    return SwarmView(ordered, wires, unlinked=view.unlinked)


def cover_view(own: Own, known: Atlas, standing: Callable[[Member], Standing]) -> SwarmView:
    """The same in no order and without pairs: enough to tell which layers are to be had."""
    candidates: list[Candidate] = []
    unlinked: set[NodeId] = set()
    for member, shards in known.shards:
        how = standing(member)
        if how is not Standing.UNREACHABLE:
            candidates += shards
        if how is Standing.DIALABLE:
            unlinked.add(member.node)
    if not own.leaving:
        candidates += _candidates(own.node, own.shards, own.speeds)
    return SwarmView(tuple(candidates), {}, unlinked=frozenset(unlinked))


def interest_in(member: Member) -> Interest:
    """What a link to the member is worth."""
    match member.state:
        case MemberState.DEAD:
            return Interest.ABSENT
        case MemberState.LEFT:
            return Interest.DEPARTED
        case _:
            return Interest.WANTED if member.wanted else Interest.RESTING


def known_models(
    me: NodeId, own_models: Sequence[ModelSpec], members: Sequence[Member]
) -> dict[ModelId, ModelSpec]:
    """Every model that a living member, or this node, has.

    The spec of an own checkpoint is true; of others, what most members say, then under the name
    that most of those give it. Ties go to whoever has the lowest NodeId.
    """
    said: dict[ModelId, dict[NodeId, ModelSpec]] = {}
    for member in members:
        living = member.state in (MemberState.ALIVE, MemberState.SUSPECT)
        if living and member.static is not None and member.node != me:
            for spec in member.static.models:
                said.setdefault(spec.model_id, {})[member.node] = spec
    models = {model_id: _agreed(specs) for model_id, specs in said.items()}
    models.update((spec.model_id, spec) for spec in own_models)
    return dict(sorted(models.items(), key=lambda item: (item[1].name, item[0])))


def model_view(view: SwarmView, spec: ModelSpec, probe_age_s: float | None) -> ModelView:
    missing = missing_layers(view, spec.layer_count, spec.model_id)
    mine = [c.shard for c in view.candidates if c.shard.model_id == spec.model_id]
    ends = any(shard.embed for shard in mine) and any(shard.head for shard in mine)
    return ModelView(spec, not missing and ends, missing, probe_age_s)


def rivals(
    me: NodeId, members: Sequence[Member], silent: Set[NodeId] = frozenset()
) -> dict[ModelId, list[Rival]]:
    """What others serve or intend to serve, per model."""
    result: dict[ModelId, list[Rival]] = {}
    for member in members:
        living = member.state in (MemberState.ALIVE, MemberState.SUSPECT)
        if member.node == me or not living or member.static is None or member.static.leaving:
            continue
        speeds = {s.model_id: s for s in (member.dynamic.speeds if member.dynamic else ())}
        for shard in member.static.shards:
            speed = speeds.get(shard.model_id)
            decode_s = speed.decode_s_per_layer if speed else UNMEASURED_DECODE_S
            result.setdefault(shard.model_id, []).append(
                Rival(
                    member.node,
                    shard.layers,
                    shard.state,
                    decode_s,
                    next=shard.next,
                    room_layers=shard.room_layers,
                    load_s=shard.load_s,
                    copies=shard.copies,
                    is_suspect=member.state is MemberState.SUSPECT,
                    is_silent=member.node in silent,
                    is_departing=0.0 < member.static.departs_in_s <= DEPARTS_SOON_S,
                )
            )
    return result


UNMEASURED_DECODE_S = 0.001
"""Assumed for a shard that is still loading, per layer and token."""


def node_view(
    member: Member, link: LinkSpeed | None, *, is_self: bool, penalty_s: float
) -> NodeView:
    static, dynamic = member.static, member.dynamic
    speeds = {s.model_id: s for s in (dynamic.speeds if dynamic else ())}
    return NodeView(
        node=member.node,
        name=static.name if static else "",
        state=member.state,
        incarnation=member.incarnation,
        is_self=is_self,
        linked=member.linked or is_self,
        addresses=static.addresses if static else (),
        device=static.device if static else "",
        memory_bytes=static.memory_bytes if static else 0,
        shards=tuple(
            ShardView(shard, speeds.get(shard.model_id))
            for shard in (static.shards if static else ())
        ),
        rtt_s=link.rtt_s if link else None,
        goodput_bytes_s=link.goodput_bytes_s if link else None,
        penalty_s=penalty_s,
        departs_in_s=static.departs_in_s if static else 0.0,
        wants=tuple(
            share for share in (static.hub if static else ()) if share.state is not HubState.HELD
        ),
    )


def link_views(
    me: NodeId, own: Mapping[NodeId, LinkSpeed | None], members: Sequence[Member]
) -> tuple[LinkView, ...]:
    """Each pair of living members that somebody measured, once; what this node measured first."""
    living = {m.node for m in members if m.state in (MemberState.ALIVE, MemberState.SUSPECT)}
    told = [(me, link) for link in own.values() if link is not None]
    for member in members:
        if member.dynamic is not None and member.node in living:
            told += [(member.node, link) for link in member.dynamic.links if link.peer in living]
    pairs: dict[tuple[NodeId, NodeId], LinkView] = {}
    for node, link in told:
        pair = (min(node, link.peer), max(node, link.peer))
        view = LinkView(node, link.peer, link.rtt_s, link.goodput_bytes_s, link.kind)
        pairs.setdefault(pair, view)
    return tuple(pairs[pair] for pair in sorted(pairs))


def _agreed(said: Mapping[NodeId, ModelSpec]) -> ModelSpec:
    first = next(iter(said.values()))
    if all(spec == first for spec in said.values()):
        return first
    alike = _largest_group(said, _facts)
    named = _largest_group(alike, lambda spec: spec.name)
    return named[min(named)]


def _largest_group(
    said: Mapping[NodeId, ModelSpec], key: Callable[[ModelSpec], Hashable]
) -> dict[NodeId, ModelSpec]:
    """Those who agree on `key`; of groups of one size, the one with the lowest NodeId."""
    groups: dict[Hashable, dict[NodeId, ModelSpec]] = {}
    for node in sorted(said):
        groups.setdefault(key(said[node]), {})[node] = said[node]
    return max(groups.values(), key=len)


def _facts(spec: ModelSpec) -> ModelSpec:
    """All that the ModelId stands for. The name is each owner's own, mostly that of a folder."""
    return replace(spec, name="")


def _sound_shards(
    static: StaticRecord, specs: Mapping[ModelId, ModelSpec]
) -> tuple[ShardInfo, ...]:
    """Shards of models that their own node describes as they are known, and within their layers."""
    theirs = {spec.model_id: spec for spec in static.models}
    sound = []
    for shard in static.shards:
        spec = specs.get(shard.model_id)
        if spec is None or not spec.layers.covers(shard.layers):
            continue
        said = theirs.get(shard.model_id, spec)
        if said == spec or _facts(said) == _facts(spec):
            sound.append(shard)
    return tuple(sound)


def _candidates(
    node: NodeId, shards: Sequence[ShardInfo], speeds: Sequence[ShardSpeed]
) -> list[Candidate]:
    by_model = {speed.model_id: speed for speed in speeds}
    return [
        Candidate(node, shard, by_model[shard.model_id])
        for shard in shards
        if shard.state is ShardState.SERVING and shard.model_id in by_model
    ]
