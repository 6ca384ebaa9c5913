"""`Links` over TCP, direct or by way of another node, and over data channels: listening, dialling,
and carrying out what the link table orders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import assert_never

from swarm.config import LinkConfig
from swarm.link.admission import Bucket, HandshakeGate
from swarm.link.bulk_io import BulkLanes, BulkPorts
from swarm.link.channel_io import CHANNEL_MESSAGES, ChannelPorts, Channels
from swarm.link.connection_io import (
    CLOSED_BY_MIDDLE,
    CLOSED_BY_PEER,
    Connection,
)
from swarm.link.dial_back_io import DialBacks
from swarm.link.dial_io import SLOWER, Dialler, DialPorts
from swarm.link.dial_round import DialRound
from swarm.link.handshake import Credentials, Established
from swarm.link.instances import must_yield
from swarm.link.keyring import REVOKED, KeyRing
from swarm.link.lanes import (
    Challenge,
    CloseConnection,
    CopySeen,
    LinkDown,
    LinkTable,
    LinkUp,
    OpenDataLane,
    TableEffect,
    TableLimits,
)
from swarm.link.link_io import (
    ALREADY_LINKED,
    COPY_MET,
    IDENTITY_TAKEN,
    LOOKED_ONLY,
    SELF_DIALLED,
    LinkEvents,
    LinkStats,
    Peer,
)
from swarm.link.live_io import ContestPorts, Contests, LiveLink, peer_of
from swarm.link.making_io import Maker
from swarm.link.quality import Upkeep
from swarm.link.relay_io import LOST, RELAY_MESSAGES, RelayPorts, Relays
from swarm.link.sockets_io import listen_on
from swarm.link.surroundings import Surroundings as Surroundings
from swarm.link.telling import Telling
from swarm.link.traffic import TrafficCounts
from swarm.messages import (
    DialBack,
    DialedBack,
    GoodputEcho,
    GoodputProbe,
    KeyInUse,
    Lane,
    Message,
    Ping,
    Pong,
    RelayLeg,
)
from swarm.terms import Address, Incarnation, LinkKind, NodeId, short

_CLOSE_TIMEOUT_S = 3.0
"""`close_all` waits no longer for sockets to go; a goodbye lingers for a second."""
_INQUIRIES_PER_S = 0.5
_INQUIRIES_BURST = 8.0
"""Dials that peers set off by telling of copies of this node."""
_QUIET = (SELF_DIALLED, ALREADY_LINKED, SLOWER, COPY_MET, IDENTITY_TAKEN, LOOKED_ONLY)
_UPKEEP = (Ping, Pong, GoodputProbe, GoodputEcho)
_DIAL_BACK = (DialBack, DialedBack)
_OWN = frozenset((*_UPKEEP, *_DIAL_BACK, *RELAY_MESSAGES, *CHANNEL_MESSAGES, KeyInUse, RelayLeg))
"""Messages that links do not hand on."""


class TcpLinks:
    """See `link_io.Links`. Owns every connection, timer and dialling task it makes."""

    def __init__(
        self,
        credentials: Credentials,
        config: LinkConfig,
        events: LinkEvents,
        surroundings: Surroundings,
    ) -> None:
        self._maker = Maker(credentials, config, surroundings, self)
        self._connections = self._maker.connections
        self._config = config
        self._events = events
        self._clock = surroundings.clock
        self._telling = Telling(surroundings.notes, surroundings.clock)
        self._table = LinkTable(
            credentials.identity.node_id, TableLimits(config.links_max, config.handshake_timeout_s)
        )
        self._gate = HandshakeGate(config.handshakes_half_open_max, config.handshakes_per_second)
        self._inquiries = Bucket(_INQUIRIES_PER_S, _INQUIRIES_BURST)
        self._dial_backs = DialBacks(surroundings.clock, surroundings.wall_clock)
        contests = ContestPorts(self._contest_answered, self._contest_unanswered)
        self._contests = Contests(contests, config.contest_s)
        self._links: dict[NodeId, LiveLink] = {}
        self._live: dict[int, LiveLink] = {}
        """The same by the number of either connection."""
        self._upkeep_timer: asyncio.TimerHandle | None = None
        ports = DialPorts(self._maker.dialled, self._round_failed, self.gone, self._connect_via)
        self._dialler = Dialler(ports, config.dial_timeout_s)
        shared = BulkPorts(self._links, self._live, self._table, self._dialler, events, self._clock)
        self._bulk = BulkLanes(shared, config.bulk_idle_s)
        accept, entropy = self._maker.accepted_by_way_of, surroundings.entropy
        self._relays = Relays(
            RelayPorts(self._links, self._table, self._dialler, accept, self._clock, entropy),
            config,
        )
        accept, make_wire = self._maker.accepted_on_channel, surroundings.make_wire
        own = credentials.identity.node_id
        self._channels = Channels(
            ChannelPorts(own, self._links, accept, entropy, make_wire), config
        )
        self._deferred: list[Callable[[], None]] = []
        self._servers: list[asyncio.Server] = []
        self._closing = False
        self._all_gone: asyncio.Future[None] | None = None

    # ------------------------------------------------------------ Links

    def set_incarnation(self, incarnation: Incarnation) -> None:
        """What handshakes say from now on; links that are up keep what they said."""
        self._maker.set_incarnation(incarnation)

    def set_keys(self, ring: KeyRing) -> None:
        """What handshakes use and accept from now on; who was put out loses its link."""
        self._maker.set_keys(ring)
        for node in sorted(ring.revoked):
            self.close(node, REVOKED)

    async def listen(self, host: str, port: int) -> Address:
        servers = await listen_on(self._maker.accepted, host, port)
        self._servers += servers
        bound = int(servers[0].sockets[0].getsockname()[1])
        self._maker.set_port(bound)
        return Address(host, bound)

    def dial(self, addresses: Sequence[Address], expected: NodeId | None) -> None:
        round_ = DialRound.start(tuple(dict.fromkeys(addresses)), expected)
        if round_.addresses and not self._closing:
            self._dialler.start(round_)
        else:
            self._defer(partial(self._events.dial_failed, (), expected, "no address to dial"))

    def dial_via(self, peer: NodeId, via: NodeId) -> None:
        if not self._closing:
            self._dialler.start(DialRound.by_way_of(via, peer))

    def open_channel(self, peer: NodeId) -> None:
        link = self._links.get(peer)
        if link is not None and link.peer.via is not None and not self._closing:
            self._dialler.start(DialRound.by_channel(link.peer.via, peer))

    def send(self, peer: NodeId, message: Message) -> bool:
        link = self._links.get(peer)
        return link is not None and link.send(message)

    def data_lane_busy(self, peer: NodeId) -> bool:
        link = self._links.get(peer)
        return link is None or link.data.busy

    def open_bulk(self, peer: NodeId) -> None:
        if not self._closing:
            self._bulk.open(peer)

    def bulk_has_room(self, peer: NodeId) -> bool:
        return self._bulk.has_room(peer)

    def close(self, peer: NodeId, reason: str) -> None:
        self._apply(self._table.close(peer, reason), defer=True)

    def stats(self, peer: NodeId) -> LinkStats | None:
        link = self._links.get(peer)
        return None if link is None else link.stats(self._clock())

    def traffic(self) -> TrafficCounts:
        return self._maker.traffic.counts

    def peers(self) -> tuple[Peer, ...]:
        return self._table.peers()

    async def close_all(self, reason: str) -> None:
        self._closing = True
        for server in self._servers:
            server.close()
        self._contests.close()
        self._relays.close()
        if self._upkeep_timer is not None:
            self._upkeep_timer.cancel()
        await self._dialler.close(reason)
        await self._dial_backs.close()
        for peer in self.peers():
            self.close(peer.node, reason)
        for connection in list(self._connections.values()):
            connection.fail(reason)
        if self._connections:
            self._all_gone = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await self._all_gone
            except TimeoutError:
                self._telling.close_incomplete(len(self._connections))
        await self._channels.close()
        self._flush()

    # ------------------------------------------------------------ what connections tell

    def opened(self, connection: Connection) -> bool:
        if self._closing:
            return False
        admission = self._gate.admit(connection.number, self._clock())
        evicted = self._connections.get(admission.evicted or 0)
        if evicted is not None:
            evicted.fail("made room for a newer connection")
        return admission.admitted

    def proven(self, connection: Connection) -> None:
        self._gate.proven(connection.number, self._clock())

    def objection(self, connection: Connection, found: Established) -> str | None:
        if found.node in self._maker.credentials.revoked:
            return REVOKED
        self._dialler.found(connection, found.node)
        objection = self._table.objection(
            found, dialled=connection.dialled, kind=connection.kind, now=self._clock()
        )
        return objection or self._dialler.objection(connection)

    def authenticated(self, connection: Connection, found: Established) -> None:
        self._gate.authenticated(connection.number)
        if found.is_copy:
            self._copy_met(connection, found)
            return
        number, now = connection.number, self._clock()
        if found.lane is Lane.BULK:
            self._bulk.authenticated(connection, found.node)
            return
        if found.lane is Lane.RELAY:
            self._relays.authenticated(connection, found.node)
            return
        if found.lane is Lane.DATA:
            effects = self._table.data_ready(number, found, dialled=connection.dialled, now=now)
        else:
            peer = peer_of(connection, found)
            effects = self._table.control_ready(number, peer, found.binding, now)
            self._dialler.authenticated(connection)
        self._apply(effects)

    def received(self, connection: Connection, message: Message) -> bool:
        link = self._live.get(connection.number)
        if link is not None and type(message) not in _OWN:
            self._events.message_received(link.peer.node, message)
            return True
        if isinstance(message, KeyInUse):
            self._copy_reported(message.address)
            if link is not None:
                self._events.heard(link.peer.node)
            return True
        if isinstance(message, RelayLeg):
            if connection.established is not None:
                self._relays.leg_named(connection, connection.established.node, message)
            return True
        if isinstance(message, _DIAL_BACK):
            if isinstance(message, DialBack):
                self._dial_backs.asked(connection, message.port)
            if link is not None:
                self._events.heard(link.peer.node)
            return True
        if link is None:
            self._apply(self._table.heard(connection.number, self._clock()))
            link = self._live.get(connection.number)
        if link is None:
            return False
        if isinstance(message, _UPKEEP):
            self._events.heard(link.peer.node)
            link.upkeep_received(message, self._clock())
            if link.challenges and isinstance(message, Pong):
                self._contests.pong_received(link, message)
        elif isinstance(message, RELAY_MESSAGES):
            self._events.heard(link.peer.node)
            self._relays.received(link, message)
        elif isinstance(message, CHANNEL_MESSAGES):
            self._events.heard(link.peer.node)
            self._channels.received(link, message)
        else:
            self._events.message_received(link.peer.node, message)
        return True

    def heard(self, connection: Connection) -> None:
        link = self._live.get(connection.number)
        if link is not None:
            self._events.heard(link.peer.node)

    def writable(self, connection: Connection) -> None:
        link = self._live.get(connection.number)
        if link is not None and link.data is connection:
            self._events.lane_writable(link.peer.node)
        else:
            self._bulk.writable(connection)

    def ended(self, connection: Connection, cause: str, orderly: bool) -> None:
        self._gate.gone(connection.number)
        if self._bulk.ended(connection) or self._relays.ended(connection, cause):
            return
        if connection.number not in self._live and not self._closing:
            self._note_refusal(connection, cause)
        self._contests.end(connection.number)
        self._apply(self._table.lost(connection.number, cause, orderly, self._clock()))
        self._dialler.ended(connection, cause)

    def broken(self, connection: Connection, error: Exception) -> None:
        found = connection.established
        self._telling.fault("" if found is None else short(found.node), error)

    def gone(self, connection: Connection) -> None:
        self._connections.pop(connection.number, None)
        if self._all_gone is not None and not self._connections and not self._all_gone.done():
            self._all_gone.set_result(None)

    # ------------------------------------------------------------ orders of the table

    def _apply(self, effects: list[TableEffect], *, defer: bool = False) -> None:
        """Carry out orders in order; `defer` keeps events for later, since a node is calling."""
        if not defer:
            self._flush()
        for effect in effects:
            match effect:
                case OpenDataLane(control, binding):
                    self._dialler.open_data_lane(self._connections[control], binding)
                case CloseConnection(number, reason, tell):
                    self._close_connection(number, reason, tell)
                case LinkUp():
                    self._link_up(effect)
                case LinkDown() if defer:
                    self._link_gone(effect)
                    self._defer(partial(self._tell_down, effect))
                case LinkDown():
                    self._link_gone(effect)
                    self._tell_down(effect)
                case Challenge(standing, newcomer):
                    self._contests.begin(self._live[standing], newcomer, self._clock())
                case CopySeen():
                    self._copy_seen(effect)
                case _:
                    assert_never(effect)

    def _close_connection(self, number: int, reason: str, tell: bool) -> None:
        connection = self._connections.get(number)
        if connection is not None:
            (connection.close if tell else connection.fail)(reason)

    def _link_up(self, up: LinkUp) -> None:
        control, data = self._connections[up.control], self._connections[up.data]
        link = LiveLink(up.peer, control, data, Upkeep(self._config, self._clock()))
        self._links[up.peer.node] = link
        self._live[up.control] = self._live[up.data] = link
        control.settled()
        data.settled()
        self._dialler.linked(control)
        self._telling.up(up.peer)
        # The first ping is also what tells the other side that this link was chosen.
        link.tick(self._clock())
        if self._upkeep_timer is None:
            self._start_upkeep()
        self._events.link_up(up.peer)
        control.release()
        data.release()

    def _link_gone(self, down: LinkDown) -> None:
        link = self._links.pop(down.peer)
        del self._live[link.control.number], self._live[link.data.number]
        self._bulk.link_gone(down.peer, down.cause)
        self._channels.link_gone(down.peer)
        self._telling.down(down)
        for relayed in self._relays.link_gone(down.peer):
            asyncio.get_running_loop().call_soon(relayed.fail, LOST)

    def _tell_down(self, down: LinkDown) -> None:
        self._events.link_down(down.peer, down.cause, down.orderly)

    def _start_upkeep(self) -> None:
        loop = asyncio.get_running_loop()
        self._upkeep_timer = loop.call_later(self._config.ping_interval_s, self._keep_up)

    def _keep_up(self) -> None:
        """One timer for all links. It rests while there are none."""
        self._upkeep_timer = None
        if self._links:
            self._start_upkeep()
        now = self._clock()
        for link in list(self._links.values()):
            link.tick(now)
        self._bulk.tick()

    # ------------------------------------------------------------ copies of a node

    def _contest_answered(self, newcomer: int) -> None:
        self._apply(self._table.answered(newcomer))

    def _contest_unanswered(self, newcomer: int) -> None:
        self._apply(self._table.unanswered(newcomer, self._clock()))

    def _copy_seen(self, seen: CopySeen) -> None:
        """Two others share a key: both are told, so that they can settle it between them."""
        for number, other in (
            (seen.standing, seen.newcomer_peer),
            (seen.newcomer, seen.standing_peer),
        ):
            connection = self._connections.get(number)
            if connection is not None:
                connection.send(KeyInUse(other.address))
        self._telling.copied(seen)

    def _copy_met(self, connection: Connection, found: Established) -> None:
        address = peer_of(connection, found).address
        connection.close(COPY_MET)
        self._events.copy_met(address, must_yield(self._maker.credentials.instance, found.instance))

    def _copy_reported(self, address: Address) -> None:
        if self._closing or not self._inquiries.take(self._clock()):
            return
        self._events.copy_reported(address)
        if address.port:
            self._dialler.start(DialRound.start((address,), None))

    # ------------------------------------------------------------ making connections

    async def _connect_via(self, connection: Connection) -> None:
        is_channel = connection.kind is LinkKind.WEBRTC
        await (self._channels if is_channel else self._relays).connect(connection)

    def _round_failed(self, round_: DialRound) -> None:
        if self._closing:
            return
        self._flush()
        if round_.kind is LinkKind.WEBRTC and round_.expected is not None:
            self._telling.no_channel(round_.expected, round_.reason)
        elif round_.via is not None and round_.expected is not None:
            self._events.relay_failed(round_.expected, round_.via, round_.reason)
        else:
            self._events.dial_failed(round_.addresses, round_.expected, round_.reason)

    # ------------------------------------------------------------ telling

    def _defer(self, event: Callable[[], None]) -> None:
        """Events never come from inside a call of the node's own; but before any later event."""
        self._deferred.append(event)
        asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        while self._deferred:
            self._deferred.pop(0)()

    def _note_refusal(self, connection: Connection, cause: str) -> None:
        """A connection ended before its link was up. Quiet where that is in the order of things."""
        is_closed = connection.proved and cause in (CLOSED_BY_PEER, CLOSED_BY_MIDDLE)
        if cause in _QUIET or is_closed or connection.via is not None:
            return
        where = str(connection.address) if connection.dialled else connection.address.host
        self._telling.refused(where, cause, dialled=connection.dialled)
