"""Simulated mDNS: a multicast segment, and `SimMdns` in the place of `mdns_io.Mdns`.

The pauses are those of python-zeroconf 0.150, which the real one stands on: a browser asks after
20-120 ms and then 1, 4 and 9 s later; an entry is announced three times once probing for its name
is over, 1.2 s after the start. A browser tells of an entry when it is new to it or has changed, so
a node that comes back unchanged is not told of again by those who missed its goodbye.

Faults: loss (of the path, and `loss` of all), one-way hearing (`deafen`), goodbyes that get lost
(`goodbye_loss`), and caches of others that answer for machines long gone (`stale_share`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sims.loop import SimHandle, SimLoop
from sims.machine import SECOND_NS, Machine, Process
from sims.net import ANY_HOSTS, SimNet
from swarm.discovery.announcement import Announcement, read_entry

if TYPE_CHECKING:
    from swarm.discovery.mdns_io import DiscoveryEvents

FIRST_QUERY_S = (0.020, 0.120)
QUERY_PAUSES_S = (1.0, 4.0, 9.0)
PROBING_S = (1.150, 1.250)
ANNOUNCE_PAUSES_S = (0.225, 0.225)
ANSWER_S = (0.020, 0.120)
ANSWER_AGAIN_S = 1.0
"""An entry is multicast at most once in this time, whoever asks."""
TTL_S = 4500.0
REFRESH_S = 0.75 * TTL_S
FOREIGN_MAX = 64
"""Foreign swarms told apart, as in `mdns_io`."""
RESCAN_S = 5.0
"""How long a node takes at most to notice that its addresses have changed."""

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Entry:
    """What a node says of itself. `key` tells cloned identities on two machines apart."""

    key: Key
    properties: tuple[tuple[str, str], ...]
    hosts: tuple[str, ...]
    port: int


class Segment:
    """All machines of the network hear each other's multicast, except as said."""

    def __init__(self, loop: SimLoop, net: SimNet) -> None:
        self.loop = loop
        self.net = net
        self.random: Callable[[], float] = loop.random("mdns").random
        self.loss = 0.0
        """Of each packet for each hearer, beside the loss of the path: multicast is not sent
        again by Wi-Fi."""
        self.goodbye_loss = 0.0
        self.stale_share = 0.0
        """How often somebody's cache answers a query for a node that went without a goodbye."""
        self._members: dict[SimMdns, None] = {}
        self._last: dict[Key, tuple[Entry, Process, float]] = {}
        """What was announced last, by whom, and until when caches keep it. Not the member itself:
        with it all that its node was made of would outlive it."""
        self._deaf: set[tuple[int, int]] = set()
        net.move_listeners.append(self._moved)

    def deafen(self, a: Machine, b: Machine) -> None:
        """a hears nothing of what b multicasts."""
        self._deaf.add((a.number, b.number))

    def undeafen(self, a: Machine, b: Machine) -> None:
        self._deaf.discard((a.number, b.number))

    def between(self, low_s: float, high_s: float) -> float:
        return low_s + (high_s - low_s) * self.random()

    # ------------------------------------------------------------ what members do

    def join(self, member: SimMdns) -> None:
        self._members[member] = None

    def leave(self, member: SimMdns) -> None:
        self._members.pop(member, None)

    def ask(self, asking: SimMdns) -> None:
        """A query to all; who is already known to `asking` need not answer."""
        for member in self._living():
            if member is asking or member.entry is None:
                continue
            if not asking.knows(member.entry):
                self._carry(asking, member, member.asked)
        self._answer_from_caches(asking)

    def announce(self, member: SimMdns, entry: Entry) -> None:
        self._last[entry.key] = (entry, member.process, self.loop.now_s + TTL_S)
        for other in self._living():
            if other is not member and not other.knows(entry):
                self._carry(member, other, partial(other.heard, entry))

    def say_goodbye(self, member: SimMdns, entry: Entry) -> None:
        self._last.pop(entry.key, None)
        for other in self._living():
            if other is not member and self.random() >= self.goodbye_loss:
                self._carry(member, other, partial(other.forget, entry.key))

    # ------------------------------------------------------------ inside

    def _living(self) -> list[SimMdns]:
        for member in [m for m in self._members if not m.process.is_alive]:
            del self._members[member]
        return list(self._members)

    def _carry(self, source: SimMdns, target: SimMdns, act: Callable[[], None]) -> None:
        """One datagram: lost, late, or twice."""
        a, b = source.process.machine, target.process.machine
        path = self.net.path(a, b)
        if not path.is_passable or (b.number, a.number) in self._deaf:
            return
        if path.loses(0) or self.random() < self.loss:
            return
        copies = 2 if self.random() < path.profile.duplicates else 1
        for _ in range(copies):
            at_ns = path.arrival_ns(self.loop.now_ns)
            self.loop.post(at_ns, self.loop.world, self._arrive, target.process, act)

    def _arrive(self, process: Process, act: Callable[[], None]) -> None:
        if process.machine.is_on_air:
            self.loop.post(self.loop.now_ns, process, act)

    def _answer_from_caches(self, asking: SimMdns) -> None:
        if self.stale_share <= 0.0:
            return
        for entry, owner, until_s in list(self._last.values()):
            if owner.is_alive and owner.machine.is_on_air:
                continue
            if self.loop.now_s < until_s and self.random() < self.stale_share:
                at_ns = self.loop.now_ns + int(self.between(*ANSWER_S) * SECOND_NS)
                act = partial(asking.heard, entry)
                self.loop.post(at_ns, self.loop.world, self._arrive, asking.process, act)

    def _moved(self, machine: Machine) -> None:
        for member in self._living():
            if member.process.machine is machine:
                at_ns = self.loop.now_ns + int(self.between(0.0, RESCAN_S) * SECOND_NS)
                self.loop.post(at_ns, member.process, member.rescan)


class SimMdns:
    """One announcement and one browser, of the process in which `start` is called."""

    process: Process

    def __init__(
        self,
        segment: Segment,
        announcement: Announcement,
        events: DiscoveryEvents,
        *,
        announce: bool = True,
    ) -> None:
        """`announce` False: only listen."""
        self.entry: Entry | None = None
        """What it answers with; None until its name is probed for."""
        self._segment = segment
        self._announcement = announcement
        self._events = events
        self._announces = announce
        self._cache: dict[Key, tuple[Entry, float]] = {}
        self._foreign: set[tuple[str, str]] = set()
        self._timers: dict[str, SimHandle] = {}
        self._announced_s = float("-inf")
        self._is_started = False

    async def start(self) -> None:
        """Begin; a second call does nothing."""
        if not self._is_started:
            self._is_started = True
            self.process = self._segment.loop.current
            self._open()

    async def stop(self) -> None:
        """Say goodbye and close everything. Idempotent."""
        if self._is_started:
            self._is_started = False
            self._close()

    def rescan(self) -> None:
        """The machine's addresses have changed: all starts anew, with an empty cache."""
        if self._is_started:
            self._close()
            self._open()

    # ------------------------------------------------------------ what comes from the segment

    def knows(self, entry: Entry) -> bool:
        """Whether it would be no news."""
        kept = self._cache.get(entry.key)
        return kept is not None and kept[0] == entry and self._now_s < kept[1]

    def asked(self) -> None:
        """Answer soon, unless that is under way or was just done."""
        if self.entry is None or not self._is_started or "answer" in self._timers:
            return
        wait_s = max(
            self._segment.between(*ANSWER_S),
            self._announced_s + ANSWER_AGAIN_S - self._now_s,
        )
        self._after("answer", wait_s, self._announce)

    def heard(self, entry: Entry) -> None:
        if not self._is_started or self.knows(entry):
            return
        self._cache[entry.key] = (entry, self._now_s + TTL_S)
        properties: dict[bytes, bytes | None] = {
            key.encode(): value.encode() for key, value in entry.properties
        }
        found = read_entry(properties, entry.hosts, entry.port)
        own = self._announcement
        if found is None or found.node == own.node:
            return
        if found.tag == own.tag:
            self._events.peer_sighted(found.node, found.addresses)
        elif (found.tag, found.name) not in self._foreign and len(self._foreign) < FOREIGN_MAX:
            self._foreign.add((found.tag, found.name))
            self._events.foreign_swarm(found.tag, found.name)

    def forget(self, key: Key) -> None:
        """A goodbye."""
        self._cache.pop(key, None)

    # ------------------------------------------------------------ inside

    @property
    def _now_s(self) -> float:
        return self._segment.loop.now_s

    def _open(self) -> None:
        segment = self._segment
        self._cache.clear()
        segment.join(self)
        self._after("query", segment.between(*FIRST_QUERY_S), self._query, 0)
        if self._announces:
            self._after("register", segment.between(*PROBING_S), self._register, 0)

    def _close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self.entry is not None:
            self._segment.say_goodbye(self, self.entry)
        self.entry = None
        self._segment.leave(self)

    def _after(
        self, name: str, delay_s: float, callback: Callable[..., object], *args: object
    ) -> None:
        loop = asyncio.get_running_loop()
        self._timers[name] = loop.call_later(delay_s, callback, *args)  # type: ignore[assignment]

    def _query(self, sent: int) -> None:
        self._segment.ask(self)
        pause_s = QUERY_PAUSES_S[sent] if sent < len(QUERY_PAUSES_S) else REFRESH_S
        self._after("query", pause_s, self._query, sent + 1)

    def _register(self, sent: int) -> None:
        own, machine = self._announcement, self.process.machine
        bound = own.listen.host
        self.entry = Entry(
            key=(own.instance, machine.number),
            properties=tuple(own.properties().items()),
            hosts=machine.hosts if bound in ANY_HOSTS else (bound,),
            port=own.listen.port,
        )
        self._announce()
        if sent < len(ANNOUNCE_PAUSES_S):
            self._after("register", ANNOUNCE_PAUSES_S[sent], self._register, sent + 1)

    def _announce(self) -> None:
        self._timers.pop("answer", None)
        if self.entry is not None:
            self._announced_s = self._now_s
            self._segment.announce(self, self.entry)
