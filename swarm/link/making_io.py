"""What connections of one node are made with: its credentials and keys, numbers, shared codecs."""

from __future__ import annotations

import dataclasses

from swarm.config import LinkConfig
from swarm.link.admission import ReplayCache
from swarm.link.connection_io import Connection, ConnectionOwner, ConnectionSetup
from swarm.link.dial_io import Destination
from swarm.link.frames import Encoder
from swarm.link.handshake import Credentials, Handshake
from swarm.link.instances import draw_instance
from swarm.link.keyring import KeyRing
from swarm.link.surroundings import Surroundings
from swarm.link.traffic import Traffic
from swarm.messages import Lane
from swarm.terms import Address, Incarnation, LinkKind, NodeId


class Maker:
    """`connections`: all that were made, by number; their owner drops those that are gone."""

    def __init__(
        self,
        credentials: Credentials,
        config: LinkConfig,
        surroundings: Surroundings,
        owner: ConnectionOwner,
    ) -> None:
        instance = credentials.instance or draw_instance(surroundings.entropy)
        self.credentials = dataclasses.replace(credentials, instance=instance)
        self.connections: dict[int, Connection] = {}
        self.traffic = Traffic()
        self._config = config
        self._lent = surroundings
        self._owner = owner
        self._ring: KeyRing | None = None
        self._replays = ReplayCache()
        self._encode = Encoder(surroundings.encode)
        self._last_number = 0

    def set_incarnation(self, incarnation: Incarnation) -> None:
        self.credentials = dataclasses.replace(self.credentials, incarnation=incarnation)

    def set_port(self, port: int) -> None:
        self.credentials = dataclasses.replace(self.credentials, listening_port=port)

    def set_keys(self, ring: KeyRing) -> None:
        self._ring, old = ring, self.credentials
        self.credentials = dataclasses.replace(old, swarm_key=ring.key, revoked=ring.revoked)

    def accepted(self) -> Connection:
        return self._accepter(Destination(Address("", 0)))

    def accepted_by_way_of(self, via: NodeId) -> Connection:
        """For a stream that a node in the middle passes on."""
        return self._accepter(Destination(Address("", 0), via, kind=LinkKind.RELAYED))

    def accepted_on_channel(self, via: NodeId) -> Connection:
        """For a lane of a channel that was agreed upon by way of `via`."""
        return self._accepter(Destination(Address("", 0), via, kind=LinkKind.WEBRTC))

    def dialled(self, lane: Lane, binding: bytes, destination: Destination) -> Connection:
        handshake = Handshake.dialler(self.credentials, self._lent.entropy, lane, binding)
        return self._make(handshake, destination.address, destination)

    def _accepter(self, source: Destination) -> Connection:
        def is_fresh(ephemeral: bytes) -> bool:
            return self._replays.is_fresh(ephemeral, self._lent.clock())

        older = () if self._ring is None else self._ring.accepted(self._lent.wall_clock())
        credentials = dataclasses.replace(self.credentials, older_keys=older)
        handshake = Handshake.accepter(credentials, self._lent.entropy, is_fresh)
        return self._make(handshake, None, source)

    def _make(
        self, handshake: Handshake, address: Address | None, other: Destination
    ) -> Connection:
        self._last_number += 1
        setup = ConnectionSetup(
            self._last_number,
            handshake,
            address,
            self._encode,
            self._lent.decode,
            self.traffic,
            via=other.via,
            target=other.target,
            kind=other.kind,
        )
        connection = Connection(setup, self._config, self._owner)
        self.connections[setup.number] = connection
        return connection
