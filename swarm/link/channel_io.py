"""Links over WebRTC data channels: who has a relayed link asks the other end for one over it.

A lane of a channel is a connection like any other: the handshake of links runs inside it, and its
socket happens to be a lane of a pipe. The pipe, once it stands, needs nobody in the middle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, assert_never

from swarm.config import LinkConfig
from swarm.link.channel_port import MakeWire, Wire
from swarm.link.channel_signals import Abandon, Answer, Connect, Say, SignalEffect, Signals
from swarm.link.connection_io import Connection
from swarm.link.dial_io import TIMEOUT_FACTOR
from swarm.link.live_io import LiveLink
from swarm.link.pipe_io import LaneTransport, Pipe, PipeEvents
from swarm.link.sockets_io import plain_error, printable
from swarm.messages import (
    TICKET_BYTES,
    ChannelAnswer,
    ChannelEnd,
    ChannelOffer,
    ChannelRefused,
    Lane,
)
from swarm.terms import LinkKind, NodeId

CHANNEL_MESSAGES = (ChannelOffer, ChannelAnswer, ChannelRefused)
NOT_HERE = "this node makes no WebRTC channels"
_LANE_NUMBERS = {Lane.CONTROL: 0, Lane.DATA: 1}


@dataclass(frozen=True, slots=True)
class ChannelPorts:
    """`accept`: a connection, not yet made, for a lane that a node begins, agreed on by `via`."""

    own: NodeId
    links: dict[NodeId, LiveLink]
    accept: Callable[[NodeId], Connection]
    entropy: Callable[[int], bytes]
    make_wire: MakeWire | None


class Channels:
    """Owns wires and pipes, and the tasks that make and end them."""

    def __init__(self, ports: ChannelPorts, config: LinkConfig) -> None:
        self._ports = ports
        self._config = config
        self._signals = Signals(ports.own)
        self._asked: dict[bytes, asyncio.Future[ChannelEnd]] = {}
        self._answering: dict[bytes, asyncio.Task[None]] = {}
        self._pipes: set[Pipe] = set()
        self._dialled: dict[NodeId, Pipe] = {}
        """By whom the last one was offered to; its data lane follows its control lane."""
        self._tasks: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------ the end that offers

    async def connect(self, connection: Connection) -> None:
        """Bring a lane about to `connection.target`. Raises OSError with the reason."""
        target, lane = connection.target, _LANE_NUMBERS[connection.lane]
        assert target is not None
        if lane:
            pipe = self._dialled.get(target)
            if pipe is None:
                raise OSError("the channel has ended")
        else:
            pipe = await self._offer(target)
        connection.adopt(pipe.lane(lane), b"")

    async def _offer(self, target: NodeId) -> Pipe:
        link, make_wire = self._ports.links.get(target), self._ports.make_wire
        if make_wire is None:
            raise OSError(NOT_HERE)
        if link is None or link.peer.kind is not LinkKind.RELAYED:
            raise OSError("there is no relayed link to agree over")
        wire = make_wire(True)
        ticket = self._ports.entropy(TICKET_BYTES)
        try:
            end = await wire.gather()
            if (cause := self._signals.objection(target)) is not None:
                raise OSError(cause)
            answered = self._asked[ticket] = asyncio.get_running_loop().create_future()
            self._apply(self._signals.offers(target, ticket, end))
            pipe = self._pipe(wire, link.peer.via)
            await wire.connect(await answered, pipe.wire_events)
        except BaseException:
            self._spawn(wire.close())
            raise
        finally:
            self._asked.pop(ticket, None)
            self._signals.over(ticket)
        if pipe.is_over:
            raise OSError("the channel has ended")
        self._dialled[target] = pipe
        self._open(pipe)
        return pipe

    # ------------------------------------------------------------ what links bring

    def received(
        self, link: LiveLink, message: ChannelOffer | ChannelAnswer | ChannelRefused
    ) -> None:
        peer = link.peer
        match message:
            case ChannelOffer():
                refusal = NOT_HERE if self._ports.make_wire is None else None
                is_relayed = peer.kind is LinkKind.RELAYED
                effects = self._signals.offered(
                    peer.node, message, is_relayed=is_relayed, refusal=refusal
                )
            case ChannelAnswer():
                effects = self._signals.answered(peer.node, message)
            case ChannelRefused():
                effects = self._signals.refused(peer.node, message)
        self._apply(effects)

    def link_gone(self, peer: NodeId) -> None:
        self._apply(self._signals.link_gone(peer))

    async def close(self) -> None:
        """End what is being made and what stands; lanes have been closed before."""
        for task in self._answering.values():
            task.cancel()
        for pipe in list(self._pipes):
            pipe.end("the node stops")
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    # ------------------------------------------------------------ inside

    def _apply(self, effects: list[SignalEffect]) -> None:
        for effect in effects:
            match effect:
                case Say(peer, message):
                    if (link := self._ports.links.get(peer)) is not None:
                        link.send(message)
                case Answer():
                    task = self._spawn(self._answer(effect))
                    self._answering[effect.ticket] = task
                case Connect(ticket, end):
                    if (asked := self._asked.get(ticket)) is not None and not asked.done():
                        asked.set_result(end)
                case Abandon(ticket, cause):
                    self._abandon(ticket, OSError(printable(cause)))
                case _:
                    assert_never(effect)

    def _abandon(self, ticket: bytes, error: OSError) -> None:
        asked, answering = self._asked.get(ticket), self._answering.get(ticket)
        if asked is not None and not asked.done():
            asked.set_exception(error)
        if answering is not None:
            answering.cancel()

    async def _answer(self, order: Answer) -> None:
        """The end that is asked: whatever goes wrong costs this attempt only."""
        link, make_wire = self._ports.links.get(order.peer), self._ports.make_wire
        assert link is not None
        assert make_wire is not None
        wire = make_wire(False)
        try:
            async with asyncio.timeout(self._config.dial_timeout_s * TIMEOUT_FACTOR):
                end = await wire.gather()
                self._apply(self._signals.gathered(order.ticket, end))
                pipe = self._pipe(wire, link.peer.via)
                await wire.connect(order.end, pipe.wire_events)
        except OSError as error:
            refused = ChannelRefused(order.ticket, plain_error(error))
            self._apply([Say(order.peer, refused)])
            self._spawn(wire.close())
        except BaseException:
            self._spawn(wire.close())
            raise
        else:
            if not pipe.is_over:
                self._open(pipe)
        finally:
            self._answering.pop(order.ticket, None)
            self._signals.over(order.ticket)

    def _pipe(self, wire: Wire, via: NodeId | None) -> Pipe:
        assert via is not None

        def arrives(lane: LaneTransport) -> None:
            self._ports.accept(via).adopt(lane, b"")

        return Pipe(wire, PipeEvents(arrives, self._gone))

    def _open(self, pipe: Pipe) -> None:
        self._pipes.add(pipe)
        pipe.open(self._config.handshake_timeout_s)

    def _gone(self, pipe: Pipe) -> None:
        self._pipes.discard(pipe)
        for target in [t for t, known in self._dialled.items() if known is pipe]:
            del self._dialled[target]
        self._spawn(pipe.wire.close())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(_done, self._tasks))
        return task


def _done(tasks: set[asyncio.Task[None]], task: asyncio.Task[None]) -> None:
    tasks.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": "a task of a channel failed", "exception": error, "task": task}
        )
