"""What a node lends to the part of it that fetches and hands out weights."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from swarm.fetch_facts import FetchFact
from swarm.link.link_io import Links
from swarm.messages import Message
from swarm.node import NodeCore
from swarm.notes import NoteSink
from swarm.terms import ModelId, NodeId
from swarm.weights.serve_io import ServePorts
from swarm.weights.weights_io import WeightPorts


def weight_ports(
    core: NodeCore,
    links: Callable[[], Links | None],
    clock: Callable[[], float],
    text: Callable[[ModelId, str], Awaitable[bytes]],
    tell: Callable[[FetchFact], None],
    sink: NoteSink,
) -> WeightPorts:
    """`links`: None until they are there."""

    def goodput(peer: NodeId) -> float:
        found = links()
        stats = found.stats(peer) if found is not None else None
        measured = stats.goodput_bytes_s if stats is not None else None
        return measured or core.config.routing.unknown_goodput_bytes_s

    def send(peer: NodeId, message: Message) -> bool:
        found = links()
        return found is not None and found.send(peer, message)

    def open_bulk(peer: NodeId) -> None:
        if (found := links()) is not None:
            found.open_bulk(peer)

    def bulk_has_room(peer: NodeId) -> bool:
        found = links()
        return found is not None and found.bulk_has_room(peer)

    serve = ServePorts(
        send=send,
        open_bulk=open_bulk,
        bulk_has_room=bulk_has_room,
        manifests=core.manifests,
        goodput=goodput,
        is_busy=lambda: not core.is_idle,
        clock=clock,
        effort=time.thread_time,
    )
    return WeightPorts(serve, text, core.holders, tell, sink)
