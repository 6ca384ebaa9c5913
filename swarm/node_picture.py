"""What a node says of itself and what it sees of the swarm: its records, views and snapshots.

Joins gossip, own shards, links and penalties for those who ask; decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from swarm.effects import Tell
from swarm.gossip.content import MODELS_MAX
from swarm.gossip.gossip import Gossip
from swarm.gossip.membership import Member
from swarm.gossip.records import DynamicRecord, StaticRecord
from swarm.hosted import Market
from swarm.hosting import Hosting, Rival
from swarm.messages import PROTOCOL_MAX, PROTOCOL_MIN
from swarm.node_view import (
    Atlas,
    Own,
    atlas,
    cover_view,
    link_views,
    model_view,
    node_view,
    rivals,
    swarm_view,
)
from swarm.notes import note
from swarm.routing.avoidance import PenaltyBox
from swarm.routing.cost import Candidate, SwarmView
from swarm.routing.origins import Origins
from swarm.routing.reach import Reach, Standing
from swarm.routing.relay import Relay
from swarm.shard.kv_blocks import KvPools
from swarm.snapshot import ModelView, Snapshot
from swarm.terms import (
    Address,
    HubShare,
    HubState,
    Incarnation,
    LinkKind,
    LinkSpeed,
    MemberState,
    ModelId,
    ModelSpec,
    NodeId,
    Way,
)

HOLDERS_DIALLED = 2
"""Of those that could hand out a model's text files, where none of them is linked."""


@dataclass(frozen=True, slots=True)
class About:
    """What this node says of itself, fixed for its life."""

    node: NodeId
    name: str
    version: str
    swarm_tag: str
    is_open: bool
    memory_bytes: int
    addresses: tuple[Address, ...]


class Picture:
    """`links`: all linked peers, with the speed measured last; its owner keeps it up to date."""

    def __init__(self, about: About, gossip: Gossip, hosting: Hosting, pools: KvPools) -> None:
        self._about = about
        self._gossip = gossip
        self._hosting = hosting
        self._pools = pools
        self.links: dict[NodeId, LinkSpeed | None] = {}
        self.relayed: dict[NodeId, NodeId] = {}
        """Of these, those that are not direct, and which other peer they go or were made by."""
        self.addresses = about.addresses
        self.leaving = False
        self.changed = True
        """Set when other peers than before are linked; whoever looks at it clears it."""
        self._links_revision = 0
        self._told: Hashable = None
        self._atlas: Atlas | None = None
        self._lives: dict[NodeId, Hashable] = {}
        self._cover_facts: dict[NodeId, Hashable] = {}

    # ------------------------------------------------------------ links

    def link_up(self, peer: NodeId, way: Way) -> None:
        self.links[peer] = None
        if way.via is not None:
            self.relayed[peer] = way.via
        self._links_revision += 1
        self.changed = True

    def link_down(self, peer: NodeId) -> None:
        self.links.pop(peer, None)
        self.relayed.pop(peer, None)
        self._links_revision += 1
        self.changed = True

    def middles(self, peer: NodeId) -> list[NodeId]:
        """Peers linked directly: first those that say they have a direct link to `peer`, by the
        sum of both round trips; then the others, which may have one since."""
        ranked = []
        for middle, own in self.links.items():
            member = self._gossip.member(middle)
            if middle in self.relayed or middle == peer or member is None:
                continue
            told = member.dynamic.links if member.dynamic is not None else ()
            theirs = next((link for link in told if link.peer == peer), None)
            if theirs is not None and theirs.kind is not LinkKind.DIRECT:
                continue
            rtt_s = (own.rtt_s if own else 0.0) + (theirs.rtt_s if theirs else 0.0)
            ranked.append((theirs is None, rtt_s, middle))
        return [middle for _, _, middle in sorted(ranked)]

    def link_measured(self, speed: LinkSpeed) -> None:
        if self.links[speed.peer] != speed:
            self.links[speed.peer] = speed
            self._links_revision += 1

    # ------------------------------------------------------------ records

    def static(self) -> StaticRecord:
        about = self._about
        return StaticRecord(
            name=about.name,
            version=about.version,
            protocol_min=PROTOCOL_MIN,
            protocol_max=PROTOCOL_MAX,
            addresses=self.addresses,
            device=self._hosting.device,
            memory_bytes=about.memory_bytes,
            models=self._hosting.models(),
            shards=self._hosting.shards(),
            leaving=self.leaving,
            departs_in_s=self._hosting.departs_in_s,
            hub=self._hub_shares(),
        )

    def _hub_shares(self) -> tuple[HubShare, ...]:
        """Own ones, and names by which others know what is hosted here: so a name outlives whoever
        brought the model."""
        own = self._hosting.hub_shares
        named, hosted = {share.name for share in own}, {s.model_id for s in self._hosting.models()}
        told = (share for each in self.hub_shares().values() for share in each)
        learned = {
            share.name: HubShare(share.name, HubState.HELD, share.model_id, 0)
            for share in told
            if share.model_id in hosted and share.name not in named
        }
        return (*own, *(learned[name] for name in sorted(learned)))[:MODELS_MAX]

    def hub_shares(self) -> dict[NodeId, tuple[HubShare, ...]]:
        """What other living members say of models of the hub."""
        return {
            member.node: member.static.hub
            for member in self._gossip.members()
            if member.node != self._about.node and member.static is not None and member.static.hub
            if member.state in (MemberState.ALIVE, MemberState.SUSPECT)
            if not member.static.leaving
        }

    def has_dynamic_moved(self) -> bool:
        """Whether `dynamic` may differ from what it was when this was asked last."""
        present = (
            self._links_revision,
            self._hosting.revision,
            self._pools.rooms,
            self._gossip.local_health,
        )
        if present == self._told:
            return False
        self._told = present
        return True

    def dynamic(self) -> DynamicRecord:
        links = tuple(speed for _, speed in sorted(self.links.items()) if speed is not None)
        return DynamicRecord(
            speeds=self._hosting.speeds(self._pools.room_bytes),
            links=links,
            local_health=self._gossip.local_health,
        )

    # ------------------------------------------------------------ the swarm

    def swarm(
        self, penalties: PenaltyBox, reach: Reach, now: float, *, desperate: bool = False
    ) -> SwarmView:
        """`desperate`: with members that are doubtful, and with those that were silent a moment
        ago and are heard again."""
        standing = self._standing_now(
            penalties, reach, now, with_doubtful=desperate, with_silent=desperate
        )
        return swarm_view(self._own(), self._known(), standing)

    def cover(self, penalties: PenaltyBox, reach: Reach, now: float) -> SwarmView:
        """What `models` needs of it: a model is covered by those that were silent too, since a
        route goes over them where it cannot do without."""
        standing = self._standing_now(penalties, reach, now, with_doubtful=False, with_silent=True)
        return cover_view(self._own(), self._known(), standing)

    def notices(self, candidates: Iterable[Candidate]) -> dict[NodeId, float]:
        """How soon each has said that it will leave; 0.0 of those that have not."""
        found = {}
        for candidate in candidates:
            member = self._gossip.member(candidate.node)
            told = member.static if member is not None else None
            found[candidate.node] = told.departs_in_s if told is not None else 0.0
        return found

    def _standing_now(
        self,
        penalties: PenaltyBox,
        reach: Reach,
        now: float,
        *,
        with_doubtful: bool,
        with_silent: bool,
    ) -> Callable[[Member], Standing]:
        def standing(member: Member) -> Standing:
            is_punished = penalties.remaining_s(member.node, member.incarnation, now) > 0.0
            if is_punished and not (with_silent and penalties.is_heard(member.node, now)):
                return Standing.UNREACHABLE
            how = self._standing(member, reach, now)
            if how is Standing.DOUBTFUL:
                return Standing.DIALABLE if with_doubtful else Standing.UNREACHABLE
            return how

        return standing

    def standing(self, node: NodeId, reach: Reach, now: float) -> Standing:
        """Of a node that is to be a neighbour of this one in a route."""
        if node == self._about.node or node in self.links:
            return Standing.LINKED
        member = self._gossip.member(node)
        return Standing.UNREACHABLE if member is None else self._standing(member, reach, now)

    def _standing(self, member: Member, reach: Reach, now: float) -> Standing:
        if member.state is not MemberState.ALIVE:
            return Standing.UNREACHABLE
        if member.node not in self.links and not (member.static and member.static.addresses):
            return Standing.UNREACHABLE
        return reach.standing(member.node, life_of(member), now)

    def begun_anew(self, changed: Iterable[NodeId]) -> list[NodeId]:
        """Those of the changed nodes whose life, or place, is not the one that was known."""
        lives = {node: self.life_of(node) for node in changed}
        moved = [node for node, life in lives.items() if life != self._lives.get(node)]
        for node in moved:
            if lives[node] is None:
                del self._lives[node]
            else:
                self._lives[node] = lives[node]
        return moved

    def has_cover_moved(self, changed: Iterable[NodeId]) -> bool:
        """Whether news of these nodes may change which layers are to be had."""
        has_moved = False
        for node in changed:
            member = self._gossip.member(node)
            if node == self._about.node:
                facts: Hashable = self._own_facts()
            else:
                facts = None if member is None else _cover_facts(member, node in self.links)
            if facts != self._cover_facts.get(node):
                has_moved = True
            if facts is None:
                self._cover_facts.pop(node, None)
            else:
                self._cover_facts[node] = facts
        return has_moved

    def _own_facts(self) -> Hashable:
        hosting = self._hosting
        speeds = tuple(speed.model_id for speed in hosting.speeds(lambda _: 0))
        return (self.leaving, hosting.models(), hosting.shards(), speeds)

    def known_models(self) -> dict[ModelId, ModelSpec]:
        return dict(self._known().specs)

    def rivals(self) -> dict[ModelId, list[Rival]]:
        return rivals(self._about.node, self._gossip.members(), self._gossip.silent())

    def market(self) -> Market:
        return Market(self.known_models(), self.rivals(), self.hub_shares())

    def models(
        self, view: SwarmView, token_at: dict[ModelId, float], now: float
    ) -> tuple[ModelView, ...]:
        """`token_at`: when a token of each model last came through a whole route.

        Their contexts end where this node's owner wants sequences to end.
        """
        most = self._hosting.model_len_max
        return tuple(
            model_view(
                view,
                replace(spec, context_length=min(spec.context_length, most or spec.context_length)),
                None if (at := token_at.get(model_id)) is None else now - at,
            )
            for model_id, spec in self.known_models().items()
        )

    def holders(self, model_id: ModelId) -> tuple[NodeId, ...]:
        """Linked members that can hand out the text files of a model."""
        return tuple(m.node for m in self._having(model_id) if m.node in self.links)

    def dialable_holders(self, model_id: ModelId, reach: Reach, now: float) -> tuple[NodeId, ...]:
        """The same of members without a link, as many as are worth a dial."""
        found = (
            member.node
            for member in self._having(model_id)
            if self._standing(member, reach, now) is Standing.DIALABLE
        )
        return tuple(islice(found, HOLDERS_DIALLED))

    def _having(self, model_id: ModelId) -> Iterator[Member]:
        for member in self._gossip.members():
            models = member.static.models if member.static else ()
            if any(spec.model_id == model_id for spec in models):
                yield member

    def life_of(self, node: NodeId) -> Hashable:
        """Changes when a node starts anew or can be found elsewhere."""
        return life_of(self._gossip.member(node))

    def incarnation_of(self, node: NodeId) -> Incarnation | None:
        member = self._gossip.member(node)
        return None if member is None else member.incarnation

    def snapshot(
        self, view: SwarmView, origins: Origins, relay: Relay, penalties: PenaltyBox, now: float
    ) -> Snapshot:
        about = self._about
        return Snapshot(
            node=about.node,
            name=about.name,
            version=about.version,
            swarm=about.swarm_tag,
            is_open=about.is_open,
            nodes=tuple(
                node_view(
                    member,
                    self.links.get(member.node),
                    is_self=member.node == about.node,
                    penalty_s=penalties.remaining_s(member.node, member.incarnation, now),
                )
                for member in self._gossip.members()
            ),
            models=self.models(view, origins.token_at, now),
            links=link_views(about.node, self.links, self._gossip.members()),
            sessions=origins.views(),
            recent=origins.recent(now),
            hops=relay.views(),
            kv_used_bytes=self._pools.used_bytes,
            kv_capacity_bytes=self._pools.capacity_bytes,
            foreign_swarms=(),
        )

    def _known(self) -> Atlas:
        """Made anew when some record or state has changed: gossip then shows other members."""
        members, models = self._gossip.members(), self._hosting.models()
        known = self._atlas
        if known is None or known.members is not members or known.models != models:
            known = self._atlas = atlas(self._about.node, models, members)
        return known

    def _own(self) -> Own:
        return Own(
            node=self._about.node,
            shards=self._hosting.shards(),
            speeds=self._hosting.speeds(self._pools.room_bytes),
            links={peer: speed for peer, speed in self.links.items() if speed is not None},
            leaving=self.leaving,
        )


class CoverNews:
    """Tells people when a model becomes whole, and when it no longer is."""

    def __init__(self) -> None:
        self._covered: dict[ModelId, bool] = {}

    def news(self, models: Iterable[ModelView]) -> list[Tell]:
        told = []
        for model in models:
            known = self._covered.get(model.spec.model_id)
            if known is model.covered:
                continue
            self._covered[model.spec.model_id] = model.covered
            missing = ",".join(str(layers) for layers in model.missing)
            if model.covered:
                told.append(Tell(note("model.covered", model=model.spec.name)))
            elif known is not None or missing:
                entry = note("model.uncovered", model=model.spec.name, missing=missing)
                told.append(Tell(entry))
        return told


def _cover_facts(member: Member, is_linked: bool) -> Hashable:
    """All of a member that decides which layers it serves, by what its records are made of."""
    static = member.static
    if static is None or not (static.models or static.shards):
        return None
    speeds = tuple(s.model_id for s in (member.dynamic.speeds if member.dynamic else ()))
    return (member.state, member.incarnation, static, speeds, is_linked)


def life_of(member: Member | None) -> Hashable:
    if member is None:
        return None
    return (member.incarnation, member.static.addresses if member.static else ())
