"""Which piece of a model is asked of which peer. Pure: facts in, orders out, time is an argument.

Pieces are asked for file by file, first those that the fewest peers hold, each node beginning at
another file, so that nodes that join at once soon have something to give to each other. A source
gets as many pieces at a time as it delivers within `PIPELINE_S`. One that lets a piece wait too
long is rested, twice as long each time; one whose bytes are not the model's is never asked again.
At the end, pieces that are under way at one source are asked of an idle one too, and the first
that comes counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from swarm.config import WeightsConfig
from swarm.terms import NodeId
from swarm.weights.layout import PieceSpec

PIPELINE_S = 0.5
"""A source is asked for what it delivers in this time: more hides longer round trips, and leaves
more to be asked again when it goes."""
COPIES_MAX = 2
"""Sources that one piece is asked of at a time, in the end."""
REST_MAX_S = 60.0


class Outcome(Enum):
    """What became of a piece that was asked for."""

    GOOD = "good"
    BAD = "bad"
    """Other bytes than the model's."""
    ABSENT = "absent"
    """The source has no such piece (any more)."""
    BUSY = "busy"
    """The source has too much to do now."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask `source` for the piece of this number."""

    source: NodeId
    piece: int


@dataclass(frozen=True, slots=True)
class Drop:
    """What still comes of this piece from `source` is of no use."""

    source: NodeId
    piece: int


Order = Ask | Drop


@dataclass(slots=True)
class _Source:
    held: frozenset[int]
    asked: dict[int, float] = field(default_factory=dict)
    """Piece -> when it was asked for."""
    due: float = 0.0
    """When it must have shown progress on any of these: it sends one after the other."""
    window: int = 2
    rate: float = 0.0
    """Bytes a second, while it had something to deliver."""
    rests_until: float = 0.0
    strikes: int = 0
    is_linked: bool = True
    is_liar: bool = False

    def has_room(self, now: float) -> bool:
        usable = self.is_linked and not self.is_liar and now >= self.rests_until
        return usable and len(self.asked) < self.window


class Fetch:
    """One set of pieces on its way here."""

    def __init__(self, pieces: Sequence[PieceSpec], config: WeightsConfig, salt: int = 0) -> None:
        """`salt`: another number begins at another file."""
        self._pieces = pieces
        self._config = config
        self._sources: dict[NodeId, _Source] = {}
        self._missing = set(range(len(pieces)))
        files = list(dict.fromkeys(piece.file for piece in pieces))
        turn = salt % len(files) if files else 0
        self._file_rank = {name: (i - turn) % len(files) for i, name in enumerate(files)}
        self._waiting: dict[int, list[int]] = {}
        """Tensor -> pieces that nobody was asked for, the next one last."""
        self._order: list[int] = []
        """Tensors with waiting pieces, the next one first."""
        self._asked_of: dict[int, list[NodeId]] = {}
        self._in_flight_bytes = 0
        self._orders: list[Order] = []
        self.done_bytes = 0
        self.total_bytes = sum(piece.byte_count for piece in pieces)
        for number in range(len(pieces) - 1, -1, -1):
            self._waiting.setdefault(pieces[number].tensor, []).append(number)
        self._sort()

    # ------------------------------------------------------------ views

    @property
    def is_done(self) -> bool:
        return not self._missing

    @property
    def is_starved(self) -> bool:
        """Whether nothing is under way though something is missing."""
        return bool(self._missing) and not self._asked_of

    @property
    def liars(self) -> tuple[NodeId, ...]:
        return tuple(node for node, source in self._sources.items() if source.is_liar)

    def take_orders(self) -> list[Order]:
        orders, self._orders = self._orders, []
        return orders

    def next_deadline(self) -> float | None:
        due = [source.due for source in self._sources.values() if source.asked]
        if self._missing:
            due += [s.rests_until for s in self._sources.values() if s.rests_until > 0]
        return min(due, default=None)

    # ------------------------------------------------------------ facts in

    def had(self, pieces: Iterable[int], now: float) -> None:
        """Pieces that were here already, proven."""
        for piece in pieces:
            self._take(piece)
        self._assign(now)

    def holds(self, node: NodeId, tensors: frozenset[int], now: float) -> None:
        """A linked peer says (again) which tensors it can hand out."""
        source = self._sources.get(node)
        if source is None:
            source = self._sources[node] = _Source(tensors)
        source.held, source.is_linked = tensors, True
        self._sort()
        self._assign(now)

    def lost(self, node: NodeId, now: float) -> None:
        """The link to a source is gone; what it was asked for is asked of others."""
        source = self._sources.get(node)
        if source is not None:
            source.is_linked = False
            for piece in list(source.asked):
                self._release(node, source, piece)
            self._assign(now)

    def progressed(self, node: NodeId, piece: int, now: float) -> None:
        """Some bytes of a piece came."""
        source = self._sources.get(node)
        if source is not None and piece in source.asked:
            source.due = now + self._config.piece_silence_s

    def ended(self, node: NodeId, piece: int, outcome: Outcome, now: float) -> None:
        """What `node` was asked for has come, or will not come."""
        source = self._sources.get(node)
        if source is None:
            return
        if piece not in source.asked:
            if outcome is Outcome.GOOD:
                self._take(piece)  # it was given up while it was proven
            return
        began, source.due = source.asked[piece], now + self._config.piece_silence_s
        self._release(node, source, piece)
        match outcome:
            case Outcome.GOOD:
                self._delivered(source, piece, now - began)
            case Outcome.BAD:
                source.is_liar = True
                for other in list(source.asked):
                    self._orders.append(Drop(node, other))
                    self._release(node, source, other)
            case Outcome.ABSENT:
                source.held -= {self._pieces[piece].tensor}
            case Outcome.BUSY:
                self._rest(source, now)
        self._assign(now)

    def tick(self, now: float) -> None:
        for node, source in self._sources.items():
            if source.asked and now >= source.due:
                self._rest(source, now)
                for piece in list(source.asked):
                    self._orders.append(Drop(node, piece))
                    self._release(node, source, piece)
            elif source.rests_until and now >= source.rests_until:
                source.rests_until = 0.0
        self._assign(now)

    # ------------------------------------------------------------ inside

    def _delivered(self, source: _Source, piece: int, took_s: float) -> None:
        size = self._pieces[piece].byte_count
        speed = size * (len(source.asked) + 1) / max(took_s, 1e-6)
        source.rate = speed if not source.rate else 0.75 * source.rate + 0.25 * speed
        source.strikes = 0
        wanted = int(source.rate * PIPELINE_S / max(size, 1)) + 2
        source.window = max(2, min(source.window + 1, wanted, self._config.pieces_per_source_max))
        if piece in self._missing:
            for other in self._asked_of.get(piece, ())[:]:
                self._orders.append(Drop(other, piece))
                self._release(other, self._sources[other], piece)
            self._take(piece)

    def _take(self, piece: int) -> None:
        """It is here."""
        if piece not in self._missing:
            return
        self._missing.discard(piece)
        self.done_bytes += self._pieces[piece].byte_count
        waiting = self._waiting.get(self._pieces[piece].tensor)
        if waiting is not None and piece in waiting:
            waiting.remove(piece)

    def _rest(self, source: _Source, now: float) -> None:
        pause_s = min(self._config.source_rest_s * 2**source.strikes, REST_MAX_S)
        source.rests_until = now + pause_s
        source.strikes = min(source.strikes + 1, 16)
        source.window = 2

    def _release(self, node: NodeId, source: _Source, piece: int) -> None:
        """The source is no longer asked for a piece, which waits again if it is still missing."""
        del source.asked[piece]
        self._in_flight_bytes -= self._pieces[piece].byte_count
        others = self._asked_of[piece]
        others.remove(node)
        if others:
            return
        del self._asked_of[piece]
        if piece in self._missing:
            self._waiting.setdefault(self._pieces[piece].tensor, []).append(piece)

    def _sort(self) -> None:
        """Tensors by how few hold them, then by file."""
        first = {tensor: pieces[-1] for tensor, pieces in self._waiting.items() if pieces}
        spread = {
            tensor: sum(tensor in s.held and not s.is_liar for s in self._sources.values())
            for tensor in self._waiting
        }
        rank = {
            tensor: self._file_rank[self._pieces[first[tensor]].file] if tensor in first else 0
            for tensor in self._waiting
        }
        self._order = sorted(self._waiting, key=lambda t: (spread[t], rank[t], t))

    def _assign(self, now: float) -> None:
        """Give every source with room something to do, one piece each in turn."""
        idle = dict.fromkeys(n for n, s in self._sources.items() if s.has_room(now))
        while idle:
            for node in list(idle):
                source = self._sources[node]
                piece = self._next_for(source)
                if piece is None:
                    del idle[node]
                    continue
                self._ask(node, source, piece, now)
                if not source.has_room(now):
                    del idle[node]

    def _next_for(self, source: _Source) -> int | None:
        """A piece that nobody was asked for; in the end one that is under way elsewhere."""
        if self._in_flight_bytes >= self._config.in_flight_bytes_max:
            return None
        for tensor in self._order:
            waiting = self._waiting.get(tensor)
            if waiting and tensor in source.held:
                return waiting.pop()
        if any(self._waiting.values()):
            return None
        doubles = (
            piece
            for piece, asked_of in self._asked_of.items()
            if len(asked_of) < COPIES_MAX
            and piece not in source.asked
            and self._pieces[piece].tensor in source.held
        )
        return next(doubles, None)

    def _ask(self, node: NodeId, source: _Source, piece: int, now: float) -> None:
        if not source.asked:
            source.due = now + self._config.piece_silence_s
        source.asked[piece] = now
        self._asked_of.setdefault(piece, []).append(node)
        self._in_flight_bytes += self._pieces[piece].byte_count
        self._orders.append(Ask(node, piece))
