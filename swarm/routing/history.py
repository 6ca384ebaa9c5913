"""What a head must know of a sequence beside its rows: told by the origin, kept for the worker.

The origin has the ids and the guide, and tells them anew for every route, since nobody else knows
which head is a new one. Between `Open` and `Resume` a hop collects the pieces; the worker gets them
in one message, after it was told to begin.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from swarm.errors import RemoteProtocolError
from swarm.messages import GUIDE_BYTES_MAX, HISTORY_PIECE_BYTES, History, Open, Recall
from swarm.terms import Epoch, Order, SessionId

ID_BYTES = 4


def histories(session: SessionId, epoch: Epoch, order: Order, ids: Sequence[int]) -> list[History]:
    """What the head must hear before it starts; `ids`: of the whole sequence so far."""
    first = _first(order.sampling.needs_prompt, len(order.prompt_ids))
    pieces = []
    source = order.guide.source.encode() if order.guide is not None else b""
    for at in range(0, len(source), HISTORY_PIECE_BYTES):
        piece = source[at : at + HISTORY_PIECE_BYTES]
        pieces.append(History(session, epoch, piece, first, b""))
    told = ids[first:] if order.sampling.needs_history else ()
    count = HISTORY_PIECE_BYTES // ID_BYTES
    for at in range(0, len(told), count):
        some = told[at : at + count]
        packed = struct.pack(f"<{len(some)}i", *some)
        pieces.append(History(session, epoch, b"", first + at, packed))
    return pieces


class Told:
    """The pieces that came for one session since its last `Open`."""

    def __init__(self) -> None:
        self._guide = bytearray()
        self._ids = bytearray()

    def clear(self) -> None:
        self._guide.clear()
        self._ids.clear()

    def add(self, message: History, order: Open) -> None:
        """Raises RemoteProtocolError for what no honest origin tells a hop with this order."""
        first = _first(order.sampling.needs_prompt, order.prompt_count)
        known, rest = divmod(len(self._ids) + len(message.ids), ID_BYTES)
        problem = None
        if not order.head or not order.sampling.needs_history:
            problem = "for a hop that does not need it"
        elif message.position != first + len(self._ids) // ID_BYTES:
            problem = f"from {message.position} on"
        elif rest or first + known > order.position_limit:
            problem = f"of {len(message.ids)} bytes"
        elif message.guide and order.sampling.guide is None:
            problem = "with a guide that was not announced"
        elif len(self._guide) + len(message.guide) > GUIDE_BYTES_MAX:
            problem = f"with a guide of more than {GUIDE_BYTES_MAX} bytes"
        if problem is not None:
            raise RemoteProtocolError(f"history {problem}")
        self._guide += message.guide
        self._ids += message.ids

    def recall(self, session: SessionId, generation: int, order: Open) -> Recall | None:
        """For the worker; None where there is nothing to say."""
        if not self._guide and not self._ids:
            return None
        first = _first(order.sampling.needs_prompt, order.prompt_count)
        payload = bytes(self._guide + self._ids)
        return Recall(session, generation, len(self._guide), first, payload)


def _first(needs_prompt: bool, prompt_count: int) -> int:
    return 0 if needs_prompt else prompt_count
