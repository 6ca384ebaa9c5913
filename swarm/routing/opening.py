"""The orders that open a route, and the replacement that is reserved before it is needed."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.messages import Open
from swarm.routing.prefix import salted, salts_of
from swarm.terms import Epoch, NodeId, Order, Route, SessionId

RESERVE_S = 1.0
"""A replacement is kept for this long after a soft alarm; by then the alarm is over or hard."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """Nodes of the next best route that hold room for the session under the epoch to come."""

    nodes: tuple[NodeId, ...]
    epoch: Epoch
    until: float


@dataclass(frozen=True, slots=True)
class SoFar:
    """Of the sequence: its length, and its chain hashes; none where reuse is not wanted."""

    length: int
    chain: bytes = b""


def open_orders(
    session: SessionId, epoch: Epoch, order: Order, route: Route, me: NodeId, so_far: SoFar
) -> list[tuple[NodeId, Open]]:
    """One `Open` per hop of the route."""
    nodes = route.nodes
    salts = salts_of(route)
    return [
        (
            hop.node,
            Open(
                session=session,
                epoch=epoch,
                model_id=order.model_id,
                layers=hop.layers,
                embed=hop.embed,
                head=hop.head,
                previous=nodes[index - 1] if index else me,
                next=me if hop.head else nodes[index + 1],
                prompt_count=len(order.prompt_ids),
                position_limit=len(order.prompt_ids) + order.max_tokens,
                sampling=order.sampling,
                hop_count=len(nodes),
                prefix=salted(so_far.chain, salts[index]),
                length=so_far.length,
            ),
        )
        for index, hop in enumerate(route.hops)
    ]
