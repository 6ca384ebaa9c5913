"""Data channels by aiortc: ICE, DTLS and SCTP over one UDP socket. An extra: see `find_maker`.

The parts of the library are put together here without a session description (SDP): the few facts
that two ends must know of each other travel as a message of ours. No server is asked for anything,
unless the owner of the node has named one.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from contextlib import suppress
from typing import Any

from swarm.config import LinkConfig
from swarm.errors import ConfigError
from swarm.link.channel_port import LANES, MakeWire, Wire, WireEvents
from swarm.link.channel_signals import CANDIDATES_MAX
from swarm.messages import ChannelCandidate, ChannelEnd

_SCTP_PORT = 5000
_COMPONENT = 1
_ENDED = "the channel has ended"


def find_maker(config: LinkConfig) -> MakeWire | None:
    """What makes channels; None where they are switched off, or cannot be had and are not insisted
    on. Raises ConfigError."""
    if config.webrtc not in ("auto", "on", "off"):
        raise ConfigError(f"link.webrtc is auto, on or off, not {config.webrtc!r}")
    servers = _servers(config.stun_server)
    if config.webrtc == "off":
        return None
    if not is_installed():
        if config.webrtc == "on":
            raise ConfigError(
                "link.webrtc is on, but aiortc is not installed: pip install 'swarm[webrtc]'"
            )
        return None
    return lambda offers: _AiortcWire(servers, offers=offers)


def is_installed() -> bool:
    return importlib.util.find_spec("aiortc") is not None


def _servers(stun_server: str) -> tuple[str, ...]:
    host, _, port = stun_server.rpartition(":")
    if stun_server and not (host and port.isdecimal()):
        raise ConfigError(f"link.stun_server is HOST:PORT, not {stun_server!r}")
    return (f"stun:{stun_server}",) if stun_server else ()


class _AiortcWire(Wire):
    """Owns all that the library makes for it. Its layers are loaded when the first one is made."""

    def __init__(self, servers: tuple[str, ...], *, offers: bool) -> None:
        self._servers = servers
        self._offers = offers
        self._library: Any = None
        self._gatherer: Any = None
        self._gathering: asyncio.Task[None] | None = None
        self._ice: Any = None
        self._dtls: Any = None
        self._sctp: Any = None
        self._channels: list[Any] = []
        self._events: WireEvents | None = None
        self._is_open = False
        self._opened: asyncio.Future[None] | None = None

    async def gather(self) -> ChannelEnd:
        # It takes a tenth of a second and 40 MiB, and most nodes never need it.
        try:
            library = self._library = await asyncio.to_thread(importlib.import_module, "aiortc")
        except ImportError as error:
            raise OSError(f"aiortc is installed and cannot be loaded: {error}") from error
        # An empty list, and not none: that would stand for a server of a stranger.
        servers = [library.RTCIceServer(url) for url in self._servers]
        self._gatherer = library.RTCIceGatherer(iceServers=servers)
        # Cut short it would leave sockets behind that only it knows of.
        loop = asyncio.get_running_loop()
        self._gathering = loop.create_task(self._gatherer.gather())
        await asyncio.shield(self._gathering)
        self._ice = library.RTCIceTransport(self._gatherer)
        # Roles of both layers follow from who offers; the library has no public name for it.
        self._ice._connection.ice_controlling = self._offers
        certificate = library.RTCCertificate.generateCertificate()
        self._dtls = _lossy_dtls(library)(self._ice, [certificate])
        self._sctp = library.RTCSctpTransport(self._dtls, _SCTP_PORT)
        names = self._gatherer.getLocalParameters()
        (fingerprint,) = (
            print_.value
            for print_ in certificate.getFingerprints()
            if print_.algorithm == "sha-256"
        )
        candidates = [
            ChannelCandidate(c.ip, c.port, c.priority, reflexive=c.type == "srflx")
            for c in self._gatherer.getLocalCandidates()
            if c.protocol == "udp"
        ]
        if not candidates:
            raise OSError("this machine has no address for a channel")
        return ChannelEnd(
            names.usernameFragment, names.password, fingerprint, tuple(candidates[:CANDIDATES_MAX])
        )

    async def connect(self, other: ChannelEnd, events: WireEvents) -> None:
        try:
            await self._connect(other, events)
        except self._library.InvalidStateError as error:
            raise OSError(_ENDED) from error
        except ValueError as error:
            raise OSError(f"the other end's addresses are of no use here: {error}") from error

    async def _connect(self, other: ChannelEnd, events: WireEvents) -> None:
        library = self._library
        for index, candidate in enumerate(other.candidates):
            await self._ice.addRemoteCandidate(_candidate(library, index, candidate))
        await self._ice.addRemoteCandidate(None)
        await self._ice.start(library.RTCIceParameters(other.username, other.password))
        if self._ice.state != "completed":
            raise OSError("no datagram passes between the two")
        fingerprint = library.RTCDtlsFingerprint("sha-256", other.fingerprint)
        await self._dtls.start(library.RTCDtlsParameters([fingerprint]))
        if self._dtls.state != "connected":
            raise OSError("the other end is not who it said")
        self._opened = asyncio.get_running_loop().create_future()
        self._make_channels()
        self._dtls.on("statechange", self._state_changed)
        self._events, self._is_open = events, True
        await self._sctp.start(self._sctp.getCapabilities(), _SCTP_PORT)
        await self._opened

    @property
    def outstanding_bytes(self) -> int:
        return sum(channel.bufferedAmount for channel in self._channels)

    def send(self, lane: int, frame: bytes) -> None:
        if self._is_open and self._channels[lane].readyState == "open":
            self._channels[lane].send(frame)

    async def close(self) -> None:
        self._is_open, self._events = False, None
        for channel in self._channels:
            channel.remove_all_listeners()
        if self._gathering is not None:
            await asyncio.gather(self._gathering, return_exceptions=True)
        for layer in (self._sctp, self._dtls, self._ice):
            if layer is not None:
                with suppress(ConnectionError):
                    await layer.stop()
        if self._ice is None and self._gatherer is not None:
            await self._gatherer._connection.close()
        self._sctp = self._dtls = self._ice = self._gatherer = None

    def _make_channels(self) -> None:
        """Both ends know the channels beforehand, so that none is announced on the wire."""
        library = self._library
        for lane in range(LANES):
            about = library.RTCDataChannelParameters(label=str(lane), negotiated=True, id=lane)
            channel = library.RTCDataChannel(self._sctp, about)
            channel.on("message", lambda data, lane=lane: self._arrived(lane, data))
            channel.on("bufferedamountlow", self._drained)
            channel.on("close", self._ended)
            self._channels.append(channel)
        self._channels[-1].on("open", self._has_opened)

    def _has_opened(self) -> None:
        if self._opened is not None and not self._opened.done():
            self._opened.set_result(None)

    def _arrived(self, lane: int, data: bytes | str) -> None:
        if self._events is not None:
            # Text is no frame: as bytes it is refused like any other nonsense.
            self._events.arrived(lane, data if isinstance(data, bytes) else b"")

    def _drained(self) -> None:
        if self._events is not None:
            self._events.drained()

    def _state_changed(self) -> None:
        if self._dtls is not None and self._dtls.state in ("closed", "failed"):
            self._ended()

    def _ended(self) -> None:
        events, self._events, self._is_open = self._events, None, False
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(OSError(_ENDED))
        elif events is not None:
            events.lost(_ENDED)


def _candidate(library: Any, index: int, candidate: ChannelCandidate) -> Any:
    return library.RTCIceCandidate(
        component=_COMPONENT,
        foundation=str(index),
        ip=candidate.host,
        port=candidate.port,
        priority=candidate.priority,
        protocol="udp",
        type="srflx" if candidate.reflexive else "host",
    )


def _lossy_dtls(library: Any) -> Any:
    """SCTP sends from tasks that nobody awaits. When the way is gone, what it still sends is lost
    like any packet, instead of an error in a task."""

    class LossyDtls(library.RTCDtlsTransport):  # type: ignore[misc]
        async def _send_data(self, data: bytes) -> None:
            try:
                await super()._send_data(data)
            except ConnectionError:
                return

    return LossyDtls
