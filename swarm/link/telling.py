"""What links tell the log: bounded, so that no peer can fill it. Pure."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import PurePath

from swarm.link.admission import NoteBudget
from swarm.link.lanes import CopySeen, LinkDown
from swarm.link.link_io import Peer
from swarm.notes import Level, NoteSink, note, printable
from swarm.terms import NodeId, short

_NOTES_PER_S = 5.0
_NOTES_BURST = 20.0
_FAULTS_PER_S = 1 / 60
_FAULTS_BURST = 10.0
"""Notes of own faults: what a peer sets off once it can set off again on its next link."""
_TEXT_MAX = 200


class Telling:
    def __init__(self, notes: NoteSink, clock: Callable[[], float]) -> None:
        self._notes = notes
        self._clock = clock
        self._note_budget = NoteBudget(_NOTES_PER_S, _NOTES_BURST)
        self._fault_budget = NoteBudget(_FAULTS_PER_S, _FAULTS_BURST)

    def up(self, peer: Peer) -> None:
        where = str(peer.address) if peer.via is None else f"via {short(peer.via)}"
        self._notes(
            note(
                "link.up",
                peer=short(peer.node),
                address=where,
                kind=peer.kind.text,
                dialled=peer.dialled,
                incarnation=peer.incarnation,
                protocol=peer.protocol,
            )
        )

    def down(self, down: LinkDown) -> None:
        self._notes(
            note(
                "link.down",
                Level.INFO if down.orderly else Level.WARNING,
                peer=short(down.peer),
                cause=down.cause,
                orderly=down.orderly,
            )
        )

    def refused(self, where: str, cause: str, *, dialled: bool) -> None:
        """A connection ended before its link was up."""
        suppressed = self._note_budget.take(self._clock())
        if suppressed is None:
            return
        event = "link.dial_failed" if dialled else "link.refused"
        level = Level.INFO if dialled else Level.WARNING
        self._notes(note(event, level, address=where, cause=cause, suppressed=suppressed))

    def no_channel(self, peer: NodeId, reason: str) -> None:
        """A data channel came to nothing; the relayed link stays."""
        if self._note_budget.take(self._clock()) is not None:
            self._notes(note("link.no_channel", peer=short(peer), reason=reason))

    def copied(self, seen: CopySeen) -> None:
        suppressed = self._note_budget.take(self._clock())
        if suppressed is None:
            return
        self._notes(
            note(
                "link.copied",
                Level.WARNING,
                peer=short(seen.standing_peer.node),
                address=str(seen.standing_peer.address),
                other=str(seen.newcomer_peer.address),
                suppressed=suppressed,
            )
        )

    def fault(self, peer: str, error: Exception) -> None:
        suppressed = self._fault_budget.take(self._clock())
        if suppressed is None:
            return
        last = traceback.extract_tb(error.__traceback__)[-1]
        self._notes(
            note(
                "link.fault",
                Level.ERROR,
                peer=peer,
                error=printable(f"{type(error).__name__}: {error}"[:_TEXT_MAX]),
                where=f"{PurePath(last.filename).name}:{last.lineno}",
                suppressed=suppressed,
            )
        )

    def close_incomplete(self, connection_count: int) -> None:
        self._notes(note("link.close_incomplete", Level.WARNING, connections=connection_count))
