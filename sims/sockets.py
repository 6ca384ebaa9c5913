"""What belongs to a simulated socket beside its bytes: names, options, keepalive."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Any

from sims.machine import SECOND_NS

if TYPE_CHECKING:
    from sims.loop import SimHandle
    from sims.stream import SimTransport

End = tuple[str, int]


def error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class SimSocket:
    """What `get_extra_info("socket")` gives: names, and options that matter here."""

    family = socket.AF_INET
    type = socket.SOCK_STREAM
    proto = socket.IPPROTO_TCP

    def __init__(self, local: End, remote: End | None, transport: SimTransport | None) -> None:
        self._local = local
        self._remote = remote
        self._transport = transport

    def getsockname(self) -> End:
        return self._local

    def getpeername(self) -> End:
        if self._remote is None:
            raise error(errno.ENOTCONN)
        return self._remote

    def fileno(self) -> int:
        return -1

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        if self._transport is not None:
            self._transport.set_option(level, option, int(value))


class Keepalive:
    """Probes of an idle connection, run only while something is wrong with its path.

    Linux: with TCP_USER_TIMEOUT set, that time counts instead of the number of probes.
    """

    def __init__(self, transport: SimTransport) -> None:
        self.is_on = False
        self.idle_ns = 7200 * SECOND_NS
        self.interval_ns = 75 * SECOND_NS
        self.count = 9
        self._transport = transport
        self._probes = 0
        self._event: SimHandle | None = None

    def watch(self) -> None:
        """Something may be wrong: look whether the other end still answers, when it is due."""
        transport = self._transport
        if self.is_on and self._event is None and not transport.is_shut:
            self._arm(transport.alive_ns + self.idle_ns)

    def cancel(self) -> None:
        if self._event is not None:
            self._event.cancel()
            self._event = None

    def _arm(self, at_ns: int) -> None:
        loop = self._transport.loop
        self._event = loop.post(max(at_ns, loop.now_ns), loop.world, self._probe)

    def _probe(self) -> None:
        self._event = None
        transport, out = self._transport, self._transport.out
        now_ns, path = transport.loop.now_ns, out.path
        idle_ns = now_ns - transport.alive_ns
        if idle_ns < self.idle_ns or out.recovery.unacked_ns >= 0 or not path.source.is_on_air:
            self._probes = 0
            self._arm(max(transport.alive_ns, now_ns - self.interval_ns) + self.idle_ns)
            return
        if not out.is_severed and path.is_passable and path.is_acknowledged:
            self._probes = 0
            transport.heard_ns = now_ns
            if out.is_refused:
                out.bounce()
            elif path.is_troubled:
                self._arm(now_ns + self.idle_ns)
            return
        if self._is_enough(idle_ns):
            transport.time_out()
            return
        self._probes += 1
        self._arm(now_ns + self.interval_ns)

    def _is_enough(self, idle_ns: int) -> bool:
        timeout_ns = self._transport.user_timeout_ns
        if timeout_ns:
            return self._probes > 0 and idle_ns >= timeout_ns
        return self._probes >= self.count
