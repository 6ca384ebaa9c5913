"""The swarm's keys as a running node has them: kept in its home, told to its peers, put to use."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from swarm.errors import ConfigError, RemoteProtocolError
from swarm.home_io import Home
from swarm.link.keyring import GENERATION_LIMIT, OLDER_MAX, REVOKED_MAX, KeyRing
from swarm.link.link_io import Links
from swarm.messages import KEY_SECRET_BYTES, KeyNotice
from swarm.notes import Level, NoteSink, note
from swarm.terms import NodeId, short


@dataclass(frozen=True, slots=True)
class KeyPorts:
    """`changed`: puts a ring to use for handshakes and links."""

    links: Links
    changed: Callable[[KeyRing], None]
    notes: NoteSink
    clock: Callable[[], float] = time.time


class KeyDesk:
    def __init__(self, me: NodeId, home: Home, ring: KeyRing, ports: KeyPorts) -> None:
        self._me = me
        self._home = home
        self._ring = ring
        self._ports = ports
        ports.changed(ring)

    def link_up(self, peer: NodeId) -> None:
        if not self._ring.is_plain:
            self._ports.links.send(peer, self._ring.notice())

    def received(self, notice: KeyNotice) -> None:
        """Raises RemoteProtocolError. The open swarm's key is everybody's: it never changes."""
        if self._ring.key.is_open:
            return
        secrets = [notice.secret, *(old.secret for old in notice.older)]
        fits = (
            notice.tag == self._ring.key.tag
            and all(len(secret) == KEY_SECRET_BYTES for secret in secrets)
            and 0 <= notice.generation < GENERATION_LIMIT
            and len(notice.older) <= OLDER_MAX
            and len(notice.revoked) <= REVOKED_MAX
        )
        if not fits:
            raise RemoteProtocolError("a key notice that cannot be")
        if self._me in notice.revoked:
            self._ports.notes(note("key.put_out", Level.ERROR, detail="by a member of the swarm"))
            return
        self._take(self._ring.merged(notice, self._ports.clock()))

    def reload(self) -> None:
        """The owner has changed the keys in the home."""
        try:
            found = self._home.key_ring()
        except ConfigError as error:
            self._ports.notes(note("key.not_read", Level.ERROR, detail=str(error)))
            return
        if found is not None and found.key.tag == self._ring.key.tag and not found.key.is_open:
            self._take(self._ring.merged(found.notice(), self._ports.clock()), is_saved=True)

    def _take(self, ring: KeyRing, *, is_saved: bool = False) -> None:
        if ring == self._ring:
            return
        out = sorted(ring.revoked - self._ring.revoked)
        is_new = ring.key != self._ring.key
        self._ring = ring
        for node in out:
            self._ports.notes(note("key.revoked", Level.WARNING, node=short(node)))
        if is_new:
            self._ports.notes(note("key.rotated", generation=ring.generation))
        # First who is out hangs up: what follows is not for them.
        self._ports.changed(ring)
        for peer in self._ports.links.peers():
            if peer.node not in ring.revoked:
                self._ports.links.send(peer.node, ring.notice())
        if not is_saved:
            self._save(ring)

    def _save(self, ring: KeyRing) -> None:
        try:
            self._home.save_key_ring(ring)
        except ConfigError as error:
            self._ports.notes(note("home.not_saved", Level.WARNING, detail=str(error)))
