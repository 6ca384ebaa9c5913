"""Announce this node on the LAN and hear others, by python-zeroconf.

mDNS only proposes. Goodbyes and expiries are not passed on: they are often late, lost or
spurious, and a link tells better who lives. Whatever fails here, the node runs on without it.
"""

from __future__ import annotations

import asyncio
from socket import has_ipv6
from typing import Any, Protocol

from zeroconf import Error as ZeroconfError
from zeroconf import IPVersion, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from swarm.config import DiscoveryConfig
from swarm.discovery.announcement import SERVICE_TYPE, Announcement, Heard, read_entry
from swarm.discovery.interfaces import announced_hosts, multicast_hosts, scoped_hosts
from swarm.discovery.interfaces_io import InterfaceReader, read_interfaces
from swarm.notes import Level, NoteSink, note
from swarm.terms import Address, NodeId, short

RESOLVE_TIMEOUT_MS = 3000
RESOLVES_MAX = 64
"""Entries looked up at one time: a LAN full of noise costs no more than this."""
FOREIGN_MAX = 64
"""Foreign swarms told apart."""
CLOSE_TIMEOUT_S = 2.0
ALONE_RESCAN_S = 1.0
LOOPBACK_ONLY = ("127.0.0.1",)


class DiscoveryEvents(Protocol):
    """Where sightings go; called on the event loop."""

    def peer_sighted(self, node: NodeId, addresses: tuple[Address, ...]) -> None:
        """A member of our swarm announces that it listens there."""

    def foreign_swarm(self, tag: str, name: str) -> None:
        """A node called `name` belongs to another swarm; told once for each pair."""


class Mdns:
    """One announcement and one browser, moved along as the machine's addresses change."""

    def __init__(
        self,
        announcement: Announcement,
        config: DiscoveryConfig,
        events: DiscoveryEvents,
        notes: NoteSink,
        read: InterfaceReader = read_interfaces,
        *,
        announce: bool = True,
    ) -> None:
        """`announce` False: only listen."""
        self._announcement = announcement
        self._announce = announce
        self._rescan_s = config.interface_rescan_s
        self._events = events
        self._notes = notes
        self._read = read
        self._task: asyncio.Task[None] | None = None
        self._resolves: set[asyncio.Task[None]] = set()
        self._zeroconf: AsyncZeroconf | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._multicast: tuple[str, ...] = ()
        self._announced: tuple[str, ...] = ()
        self._is_registered = False
        self._foreign: set[tuple[str, str]] = set()
        self._trouble = ""

    async def start(self) -> None:
        """Begin in the background; a second call does nothing."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Say goodbye and close everything. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._close()

    async def _run(self) -> None:
        try:
            while True:
                await self._refresh()
                await asyncio.sleep(self._pause_s())
        except Exception as error:  # noqa: BLE001  the root of the task: mDNS is dispensable
            self._notes(note("mdns.failed", Level.ERROR, error=repr(error)))

    def _pause_s(self) -> float:
        """A machine that has no network (yet) looks for one more often."""
        is_alone = not self._multicast or self._multicast == LOOPBACK_ONLY
        return min(ALONE_RESCAN_S, self._rescan_s) if is_alone else self._rescan_s

    async def _refresh(self) -> None:
        """Follow the machine's present addresses; trouble is told once and tried again later.

        A change starts everything anew, since a browser that is merely moved asks again only
        after its own long pauses.
        """
        interfaces = self._read()
        bound = self._announcement.listen.host
        scoped = scoped_hosts(interfaces, bound) if has_ipv6 else ()
        multicast = multicast_hosts(interfaces, bound) + scoped
        announced = announced_hosts(interfaces, bound) + scoped
        try:
            if not multicast:
                await self._close()
                self._tell_trouble("no network interface")
            elif self._zeroconf is None:
                await self._open(multicast, announced)
            elif (multicast, announced) != (self._multicast, self._announced):
                await self._close()
                await self._open(multicast, announced)
            elif not self._is_registered:
                await self._register(self._zeroconf, announced)
        except (OSError, ZeroconfError) as error:
            await self._close()
            self._tell_trouble(f"{type(error).__name__}: {error}")

    async def _open(self, multicast: tuple[str, ...], announced: tuple[str, ...]) -> None:
        has_v6 = any(":" in host for host in multicast)
        version = IPVersion.All if has_v6 else IPVersion.V4Only
        self._zeroconf = AsyncZeroconf(interfaces=list(multicast), ip_version=version)
        self._multicast = multicast
        self._browser = AsyncServiceBrowser(
            self._zeroconf.zeroconf, SERVICE_TYPE, handlers=[self._changed]
        )
        await self._register(self._zeroconf, announced)
        self._trouble = ""
        self._notes(note("mdns.started", interfaces=",".join(multicast)))

    async def _register(self, zeroconf: AsyncZeroconf, announced: tuple[str, ...]) -> None:
        """A second process with our identity makes zeroconf rename this entry: harmless, since
        the TXT record carries the id."""
        self._announced = announced
        if not self._announce:
            self._is_registered = True
            return
        info = self._info(announced)
        await (await zeroconf.async_register_service(info, allow_name_change=True))
        self._is_registered = True

    def _info(self, announced: tuple[str, ...]) -> AsyncServiceInfo:
        own = self._announcement
        return AsyncServiceInfo(
            SERVICE_TYPE,
            own.instance,
            port=own.listen.port,
            properties=own.properties(),
            server=own.server,
            parsed_addresses=list(announced),
        )

    async def _close(self) -> None:
        zeroconf, self._zeroconf = self._zeroconf, None
        browser, self._browser = self._browser, None
        self._is_registered, self._multicast = False, ()
        resolves = list(self._resolves)
        for task in resolves:
            task.cancel()
        await asyncio.gather(*resolves, return_exceptions=True)
        if zeroconf is None:
            return
        try:
            await asyncio.wait_for(_shut(zeroconf, browser), CLOSE_TIMEOUT_S)
        except (OSError, ZeroconfError, TimeoutError) as error:
            self._notes(note("mdns.close_failed", Level.WARNING, error=repr(error)))

    def _changed(
        self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
    ) -> None:
        """Called by zeroconf on the loop; the names of the arguments are part of its contract."""
        if state_change is ServiceStateChange.Removed:
            return
        info = AsyncServiceInfo(service_type, name)
        if info.load_from_cache(zeroconf):
            self._seen(info)
        elif len(self._resolves) < RESOLVES_MAX:
            task = asyncio.get_running_loop().create_task(self._resolve(zeroconf, info))
            self._resolves.add(task)
            task.add_done_callback(self._resolves.discard)

    async def _resolve(self, zeroconf: Zeroconf, info: AsyncServiceInfo) -> None:
        try:
            if await info.async_request(zeroconf, RESOLVE_TIMEOUT_MS):
                self._seen(info)
        except (OSError, ZeroconfError) as error:
            self._notes(note("mdns.unresolved", Level.DEBUG, error=repr(error)))

    def _seen(self, info: AsyncServiceInfo) -> None:
        properties: dict[bytes, Any] = dict(info.properties)
        heard = read_entry(properties, info.parsed_scoped_addresses(), info.port)
        own = self._announcement
        if heard is None or heard.addresses == self._own_addresses(heard):
            return
        if heard.tag != own.tag:
            pair = (heard.tag, heard.name)
            if pair not in self._foreign and len(self._foreign) < FOREIGN_MAX:
                self._foreign.add(pair)
                self._events.foreign_swarm(heard.tag, heard.name)
        elif heard.addresses:
            self._notes(note("mdns.sighted", Level.DEBUG, node=short(heard.node)))
            self._events.peer_sighted(heard.node, heard.addresses)

    def _own_addresses(self, heard: Heard) -> tuple[Address, ...] | None:
        """Where this node announced itself, when the entry is of its own id; its id anywhere else
        is a copy of it, or an entry that is out of date."""
        if heard.node != self._announcement.node:
            return None
        here = {Address(host, self._announcement.listen.port) for host in self._announced}
        return tuple(address for address in heard.addresses if address in here)

    def _tell_trouble(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            self._notes(note("mdns.unavailable", Level.WARNING, cause=trouble))


async def _shut(zeroconf: AsyncZeroconf, browser: AsyncServiceBrowser | None) -> None:
    if browser is not None:
        await browser.async_cancel()
    await zeroconf.async_unregister_all_services()
    await zeroconf.async_close()
