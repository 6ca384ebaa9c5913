"""The simulated network: machines, the paths between them, connecting, and what befalls them.

One segment is one event of the receiver's process; kernels run as events of the loop's world. All
draws come from one stream, so that a seed gives one run.

    net = SimNet(loop)
    net.add(machine)
    net.partition([[a, b], [c]])
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sims.dial import Dial, Factory, SimServer
from sims.loop import Network, SimLoop
from sims.machine import SECOND_NS, Machine, Process
from sims.path import Line, Path
from sims.pipe import Pipe
from sims.sockets import End, error
from sims.stream import SimTransport
from sims.wire import LOOPBACK, WIRED, Profile, Radio, in_a_row

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
ANY_HOSTS = ("", "0.0.0.0", "::")  # noqa: S104
LISTENING_PORT_FIRST = 20_000
DIALLING_PORT_FIRST = 40_000


@dataclass(slots=True)
class Counters:
    """What one machine has sent, retransmissions included. Bytes are TCP payload."""

    bytes_sent: int = 0
    segments_sent: int = 0

    def add(self, pipe: Pipe) -> None:
        self.bytes_sent += pipe.bytes_sent
        self.segments_sent += pipe.segments_sent


class _Access:
    """A machine's own link to the network, shared by all its paths."""

    def __init__(self, net: SimNet, profile: Profile) -> None:
        self.profile = profile
        self.up = Line(net.loop, profile)
        self.down = Line(net.loop, profile)
        self.radios = net.radios(profile)


class _Host:
    """What the network keeps about a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.access: _Access | None = None
        self.ends: dict[SimTransport, None] = {}
        """Open sockets of its processes."""
        self.servers: dict[int, list[SimServer]] = {}
        self.dials: dict[Dial, None] = {}
        self.sent = Counters()
        """By connections that are closed."""
        self.last_listening_port = LISTENING_PORT_FIRST
        self.last_dialling_port = DIALLING_PORT_FIRST


class SimNet(Network):
    """See the module. Machines and processes are the loop's; the network knows no nodes."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self._profile = WIRED
        self.random: Callable[[], float] = loop.random("net").random
        self._loss = 0.0
        self._hosts: dict[int, _Host] = {}
        self._machines: dict[str, Machine] = {}
        self._paths: dict[tuple[int, int], Path] = {}
        self._profiles: dict[tuple[int, int], Profile] = {}
        self.move_listeners: list[Callable[[Machine], None]] = []
        """Told of changed addresses."""
        loop.network = self
        self.add(loop.world.machine)

    def add(self, machine: Machine) -> None:
        self._hosts[machine.number] = _Host(machine)
        self._machines.update(dict.fromkeys(machine.hosts, machine))

    # ------------------------------------------------------------ paths

    @property
    def profile(self) -> Profile:
        """Of all pairs for which nothing else is set."""
        return self._profile

    @profile.setter
    def profile(self, profile: Profile) -> None:
        self._profile = profile
        for path in list(self._paths.values()):
            self._configure(path)

    @property
    def loss(self) -> float:
        """Share of packets lost on every path between two machines, beside its profile's."""
        return self._loss

    @loss.setter
    def loss(self, share: float) -> None:
        self._loss = share
        for path in list(self._paths.values()):
            self._configure(path)

    def path(self, source: Machine, target: Machine) -> Path:
        key = (source.number, target.number)
        found = self._paths.get(key)
        if found is None:
            found = self._make_path(source, target)
        return found

    def set_profile(self, a: Machine, b: Machine, profile: Profile) -> None:
        """For both directions between two machines."""
        self._profiles[_pair(a, b)] = profile
        self._configure(self.path(a, b))

    def set_access(self, machine: Machine, profile: Profile) -> None:
        """For all paths from and to a machine that have no profile of their own."""
        self._hosts[machine.number].access = _Access(self, profile)
        for path in list(self._paths.values()):
            if path.source is machine:
                self._configure(path)

    def radios(self, profile: Profile) -> tuple[Radio, ...]:
        if profile.spikes_per_minute <= 0.0:
            return ()
        return (Radio(profile, self.random, self.loop.now_ns),)

    def _make_path(self, source: Machine, target: Machine) -> Path:
        there, back = Path(source, target, self.random), Path(target, source, self.random)
        if source is target:
            back = there
        there.back, back.back = back, there
        self._paths[source.number, target.number] = there
        self._paths[target.number, source.number] = back
        self._configure(there)
        return there

    def _configure(self, path: Path) -> None:
        """Both directions by what is set for the pair, its machines, or all."""
        a, b = self._hosts[path.source.number], self._hosts[path.target.number]
        own = self._profiles.get(_pair(path.source, path.target))
        if path.back is path:
            own = LOOPBACK
        links = [host.access for host in (a, b) if host.access is not None]
        if own is None and links:
            profile = links[0].profile
            if len(links) == 2:
                profile = in_a_row(profile, links[1].profile)
            narrow = min(links, key=lambda link: link.profile.bandwidth_bytes_s)
            lines = (narrow.up, narrow.down) if narrow is a.access else (narrow.down, narrow.up)
            radios = tuple(radio for link in links for radio in link.radios)
        else:
            profile = own or self._profile
            lines = (Line(self.loop, profile), Line(self.loop, profile))
            radios = self.radios(profile)
        if self._loss > 0.0 and path.back is not path:
            profile = profile.lossy(1.0 - (1.0 - profile.loss) * (1.0 - self._loss))
        path.configure(profile, lines[0], radios)
        if path.back is not path:
            path.back.configure(profile, lines[1], radios)

    # ------------------------------------------------------------ faults of paths

    def cut(self, a: Machine, b: Machine, *, one_way: bool = False) -> None:
        """What a sends to b from now on is lost without a word; both ways unless `one_way`."""
        self._cut(a, b)
        if not one_way:
            self._cut(b, a)
        self._watch((a, b))

    def heal(self, a: Machine, b: Machine) -> None:
        """Undo every cut between the two."""
        for path in (self.path(a, b), self.path(b, a)):
            path.is_cut = False
            path.changed()

    def partition(self, groups: Sequence[Sequence[Machine]]) -> None:
        """Cut every pair of machines in different groups. Machines in none keep their paths."""
        for number, group in enumerate(groups):
            others = [b for other in groups[number + 1 :] for b in other]
            for a in group:
                for b in others:
                    self._cut(a, b)
                    self._cut(b, a)
        self._watch(machine for group in groups for machine in group)

    def heal_all(self) -> None:
        """Undo all cuts and clogs."""
        for path in list(self._paths.values()):
            self._clog(path, 0)
            path.is_cut = False
            path.changed()

    def forbid_dial(self, a: Machine, b: Machine) -> None:
        """SYNs from a to b are dropped, as by a firewall; connections that b dials carry all."""
        self.path(a, b).is_dial_forbidden = True

    def allow_dial(self, a: Machine, b: Machine) -> None:
        self.path(a, b).is_dial_forbidden = False

    def clog(self, a: Machine, b: Machine, extra_s: float, *, one_way: bool = False) -> None:
        """What a sends to b is held this much longer; both ways unless `one_way`."""
        self._clog(self.path(a, b), int(extra_s * SECOND_NS))
        if not one_way:
            self._clog(self.path(b, a), int(extra_s * SECOND_NS))

    def unclog(self, a: Machine, b: Machine) -> None:
        """What was held comes now."""
        self._clog(self.path(a, b), 0)
        self._clog(self.path(b, a), 0)

    def reset(self, a: Machine, b: Machine) -> None:
        """All connections between the two die now, on both sides."""
        for end in self._ends(a):
            if end.out.path.target is b:
                end.inp.sender.break_with(errno.ECONNRESET)
                end.break_with(errno.ECONNRESET)

    def _cut(self, a: Machine, b: Machine) -> None:
        path = self.path(a, b)
        path.is_cut = True
        path.changed()

    def _clog(self, path: Path, extra_ns: int) -> None:
        is_less = extra_ns < path.extra_ns
        path.extra_ns = extra_ns
        path.changed()
        if is_less:
            for end in self._ends(path.source):
                if end.out.path is path:
                    end.out.unclogged()

    def _watch(self, machines: Iterable[Machine]) -> None:
        """Idle connections over bad paths begin to wonder."""
        for machine in machines:
            for end in self._ends(machine):
                if end.out.path.is_troubled:
                    end.keepalive.watch()
                    end.inp.sender.keepalive.watch()

    def _ends(self, machine: Machine) -> list[SimTransport]:
        return list(self._hosts[machine.number].ends)

    # ------------------------------------------------------------ faults of machines

    def process_ended(self, process: Process) -> None:
        """Killed: its kernel closes its sockets. What they had taken is still delivered."""
        host = self._hosts[process.machine.number]
        for servers in list(host.servers.values()):
            for server in list(servers):
                if server.process is process:
                    server.close()
        for end in list(host.ends):
            if end.process is process:
                end.shut()
        for dial in list(host.dials):
            if dial.process is process:
                dial.abandon()
                host.dials.pop(dial, None)

    def machine_vanished(self, machine: Machine) -> None:
        """Power cut: not a word, and no memory of its connections when it is back."""
        machine.is_powered = False
        host = self._hosts[machine.number]
        for end in list(host.ends):
            end.vanish()
        for servers in host.servers.values():
            for server in servers:
                server.is_open = False
        host.servers.clear()
        host.dials.clear()

    def machine_slept(self, machine: Machine) -> None:
        for end in self._ends(machine):
            end.inp.lose_in_flight()
            end.inp.sender.keepalive.watch()

    def machine_woke(self, machine: Machine) -> None:
        for end in self._ends(machine):
            end.out.recovery.wake()
            end.keepalive.watch()

    def move(self, machine: Machine, hosts: tuple[str, ...]) -> None:
        """Its addresses change; connections over those it lost go silent on both sides."""
        for host in machine.hosts:
            if self._machines.get(host) is machine:
                del self._machines[host]
        machine.hosts = hosts
        self._machines.update(dict.fromkeys(hosts, machine))
        for end in self._ends(machine):
            if end.local[0] not in (*hosts, *LOOPBACK_HOSTS):
                other = end.inp.sender
                for pipe in (end.out, end.inp):
                    pipe.sever()
                for each in (end, other):
                    each.keepalive.watch()
        for told in self.move_listeners:
            told(machine)

    def counters(self, machine: Machine) -> Counters:
        host = self._hosts[machine.number]
        total = Counters(host.sent.bytes_sent, host.sent.segments_sent)
        for end in host.ends:
            total.add(end.out)
        return total

    def open_count(self, machine: Machine) -> int:
        """Open sockets of its processes, listening ones aside."""
        return len(self._hosts[machine.number].ends)

    # ------------------------------------------------------------ connecting and listening

    async def connect(
        self, factory: Factory, host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        process = self.loop.current
        dial = Dial(self, process, (host, port))
        dials = self._hosts[process.machine.number].dials
        dials[dial] = None
        dial.send_syn()
        try:
            transport = await dial.future
        except asyncio.CancelledError:
            if dial.future.done() and not dial.future.cancelled():
                dial.future.result().shut(rudely=True)
            raise
        finally:
            dials.pop(dial, None)
        if transport.is_shut:
            raise error(errno.ECONNRESET)
        protocol = factory()
        transport.begin(protocol)
        return transport, protocol

    async def serve(self, factory: Factory, host: str | None, port: int) -> SimServer:
        """Raises OSError where the port is taken or the address is another's."""
        process = self.loop.current
        own = self._hosts[process.machine.number]
        where = "" if host is None or host in ANY_HOSTS else host
        if where and where not in (*process.machine.hosts, *LOOPBACK_HOSTS):
            raise error(errno.EADDRNOTAVAIL)
        if port == 0:
            port = own.last_listening_port + 1
            while port in own.servers:
                port += 1
            own.last_listening_port = port
        rivals = own.servers.setdefault(port, [])
        if any(not where or not rival.host or rival.host == where for rival in rivals):
            raise error(errno.EADDRINUSE)
        server = SimServer(self, process, factory, where, port)
        rivals.append(server)
        return server

    def machine_at(self, host: str, asking: Machine) -> Machine | None:
        return asking if host in LOOPBACK_HOSTS else self._machines.get(host)

    def listener(self, machine: Machine, remote: End) -> SimServer | None:
        """The server of `machine` that answers to this address and port."""
        for server in self._hosts[machine.number].servers.get(remote[1], ()):
            if not server.host or server.host == remote[0]:
                return server
        return None

    def stop_listening(self, server: SimServer) -> None:
        servers = self._hosts[server.process.machine.number].servers
        rivals = servers.get(server.port, [])
        if server in rivals:
            rivals.remove(server)
        if not rivals:
            servers.pop(server.port, None)

    def join(self, process: Process, server: SimServer, remote: End) -> SimTransport:
        """Make the connection; the dialling side's end of it."""
        path = self.path(process.machine, server.process.machine)
        own = self._hosts[process.machine.number]
        own.last_dialling_port += 1
        is_inside = remote[0] in LOOPBACK_HOSTS or not process.machine.hosts
        local = ("127.0.0.1" if is_inside else process.machine.hosts[0], own.last_dialling_port)
        dialled = SimTransport(self.loop, process, local, remote, self._forget)
        accepted = SimTransport(self.loop, server.process, remote, local, self._forget)
        now_ns = self.loop.now_ns
        known_ns = path.arrival_ns(now_ns)
        there = Pipe(self.loop, path, dialled, known_ns)
        back = Pipe(self.loop, path.back, accepted, now_ns)
        there.receiver, back.receiver = accepted, dialled
        dialled.out, dialled.inp = there, back
        accepted.out, accepted.inp = back, there
        own.ends[dialled] = None
        self._hosts[server.process.machine.number].ends[accepted] = None
        server.established(accepted, known_ns)
        return dialled

    def _forget(self, end: SimTransport) -> None:
        host = self._hosts[end.process.machine.number]
        if end in host.ends:
            del host.ends[end]
            host.sent.add(end.out)


def _pair(a: Machine, b: Machine) -> tuple[int, int]:
    return (min(a.number, b.number), max(a.number, b.number))
