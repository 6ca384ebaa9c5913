"""News on its way through a partial mesh: each piece goes to a few peers every round.

A piece is passed on a bounded number of times, to nobody twice and to nobody who is known to have
it, so that news of many senders meets itself soon and dies out. All times are awake time.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from random import Random

from swarm.config import GossipConfig
from swarm.gossip.spread import BATCH_BYTES_MAX, RECORD_OVERHEAD_BYTES, Spread, batches
from swarm.messages import Message, SignedRecord, Suspicion, Verdict
from swarm.terms import NodeId

Rumour = SignedRecord | Suspicion | Verdict
PIECES_MAX = 4096
"""Pieces under way at one node; the oldest go first, and hashes mend what that costs."""
WORD_BYTES = 128
"""A suspicion or verdict with its frame."""


@dataclass(slots=True)
class _Piece:
    content: Rumour
    sends_left: int
    holders: set[NodeId]
    """Peers that sent it here, or that it was sent to."""

    @property
    def byte_count(self) -> int:
        if isinstance(self.content, SignedRecord):
            return len(self.content.body) + RECORD_OVERHEAD_BYTES
        return WORD_BYTES


class Rumours:
    def __init__(self, spread: Spread, config: GossipConfig, rng: Random) -> None:
        self._spread = spread
        self._config = config
        self._rng = rng
        self._pieces: dict[Hashable, _Piece] = {}
        self._round_at = 0.0
        """No round before."""

    def news(
        self, key: Hashable, content: Rumour, holders: Iterable[NodeId], member_count: int
    ) -> None:
        """Pass on what everybody must know soon. It replaces an older piece under its key."""
        self._add(key, content, holders, member_count, self._config.rumour_news_factor)

    def figures(
        self, key: Hashable, content: Rumour, holders: Iterable[NodeId], member_count: int
    ) -> None:
        """Pass on what may reach a few by anti-entropy only."""
        self._add(key, content, holders, member_count, self._config.rumour_figures_factor)

    def held_by(self, key: Hashable, content: Rumour, peer: NodeId) -> None:
        """`peer` has sent this very piece."""
        piece = self._pieces.get(key)
        if piece is not None and piece.content == content:
            piece.holders.add(peer)

    def drop(self, key: Hashable) -> None:
        self._pieces.pop(key, None)

    def clear(self) -> None:
        self._pieces.clear()

    def tick(self, now: float) -> None:
        if not self._pieces or now < self._round_at:
            return
        self._round_at = now + self._config.rumour_interval_s
        served = 0
        built: dict[tuple[Hashable, ...], list[Message]] = {}
        peers = self._spread.audience()
        for peer in self._rng.sample(peers, len(peers)):
            keys = self._lacking(peer)
            if not keys:
                continue
            for message in built.get(keys) or built.setdefault(keys, self._messages(keys)):
                self._spread.send(peer, message, now)
            self._given(peer, keys)
            served += 1
            if served == self._config.rumour_fanout:
                return
        self._drop_what_nobody_lacks(peers)

    def next_deadline(self) -> float | None:
        return self._round_at if self._pieces else None

    # ------------------------------------------------------------ inner moves

    def _drop_what_nobody_lacks(self, peers: list[NodeId]) -> None:
        """What did not fit into this round's messages waits for the next."""
        self._pieces = {
            key: piece
            for key, piece in self._pieces.items()
            if any(peer not in piece.holders for peer in peers)
        }

    def _add(
        self,
        key: Hashable,
        content: Rumour,
        holders: Iterable[NodeId],
        member_count: int,
        factor: float,
    ) -> None:
        sends = math.ceil(factor * math.log10(max(10, member_count)))
        self._pieces.pop(key, None)
        if len(self._pieces) >= PIECES_MAX:
            del self._pieces[next(iter(self._pieces))]
        self._pieces[key] = _Piece(content, sends, set(holders))

    def _lacking(self, peer: NodeId) -> tuple[Hashable, ...]:
        """What goes to a peer in one round: the newest pieces first, up to one frame's worth."""
        room = BATCH_BYTES_MAX
        keys = []
        for key in reversed(self._pieces):
            piece = self._pieces[key]
            if peer in piece.holders:
                continue
            room -= piece.byte_count
            if room < 0:
                break
            keys.append(key)
        return tuple(keys)

    def _messages(self, keys: tuple[Hashable, ...]) -> list[Message]:
        """Records before verdicts: who departs is believed by its own record."""
        contents = [self._pieces[key].content for key in keys]
        records = [content for content in contents if isinstance(content, SignedRecord)]
        words = [content for content in contents if not isinstance(content, SignedRecord)]
        return [*batches(records, self._config.records_per_message), *words]

    def _given(self, peer: NodeId, keys: tuple[Hashable, ...]) -> None:
        for key in keys:
            piece = self._pieces[key]
            piece.holders.add(peer)
            piece.sends_left -= 1
            if piece.sends_left <= 0:
                del self._pieces[key]
