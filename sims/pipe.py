"""One direction of a TCP connection: what its sender's kernel does with the bytes.

In the ordinary case a segment costs one event: it is drawn an arrival time and handed over in the
receiver's process. All else (a cut, a machine off the air, a closed socket at the other end, a busy
line) takes the slow way. What is behind a lost segment waits; acknowledgements are worked out only
where they do not come (see `recovery`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from sims.path import BOOKED_AHEAD_NS
from sims.recovery import LOST, Recovery
from sims.wire import PACKET_BYTES, TABLE_SIZE

if TYPE_CHECKING:
    from sims.loop import SimHandle, SimLoop
    from sims.path import Path
    from sims.stream import SimTransport

Chunk = bytes | memoryview

RECEIVE_BUFFER_BYTES = 256 * 1024
OUTSTANDING_BYTES_MAX = 2 * RECEIVE_BUFFER_BYTES
"""Handed to the kernel and not yet read at the other end: a send and a receive buffer."""
MERGED_NS_MAX = 20_000
"""Bytes that join a segment on its way may make it this much too early."""
DATA, FIN, RST = 0, 1, 2


class Segment:
    """`at_ns`: when it arrives. A FIN or RST has no chunks."""

    __slots__ = ("at_ns", "chunks", "kind", "size")

    def __init__(self, chunks: list[Chunk], size: int, at_ns: int, kind: int = DATA) -> None:
        self.chunks = chunks
        self.size = size
        self.at_ns = at_ns
        self.kind = kind


class Pipe:
    """`receiver` is set right after it is made: both directions are made together."""

    def __init__(self, loop: SimLoop, path: Path, sender: SimTransport, at_ns: int) -> None:
        self.loop = loop
        self.path = path
        self.sender = sender
        self.receiver: SimTransport = sender
        self.flying: deque[Segment] = deque()
        """In order. Only the first has an event, and none where it is lost."""
        self.recovery = Recovery(self)
        self.outstanding = 0
        self.bytes_sent = 0
        self.segments_sent = 0
        """Retransmissions count."""
        self.sent_ns = 0
        self.last_ns = at_ns
        """When the newest segment arrives; the next one is later."""
        self.room_ns = 0
        """When the receiver last read while the sender could not get rid of its bytes."""
        self.is_hard = False
        """Whether segments must take the slow way."""
        self.is_waiting = False
        """Whether it stands in the line's queue."""
        self.is_refused = False
        """Whether the other kernel knows this connection no more."""
        self.is_severed = False
        """Whether an address has gone: nothing gets through ever again."""
        self.is_over = False
        """Whether nothing is sent any more."""
        self._queued: deque[Chunk | int] = deque()
        """In the kernel, waiting for a turn on the line; the number is FIN."""
        self._event: SimHandle | None = None
        self._deliver = self._arrive
        self._is_room_told = False
        self._is_finished = False

    # ------------------------------------------------------------ sending

    def send(self, data: Chunk, size: int) -> None:
        """The kernel takes `data` (1 byte or more; the caller has looked that there is room)."""
        loop, path = self.loop, self.path
        now_ns, line = loop.now_ns, path.line
        self.outstanding += size
        if (
            self.is_hard
            or size > line.segment_bytes
            or path.is_troubled
            or line.free_ns > now_ns + BOOKED_AHEAD_NS
            or path.target.is_asleep
            or not path.target.is_powered
        ):
            self._send_hard(data, size)
            return
        if now_ns == self.sent_ns and self.flying and self._merge(data, size):
            return
        self.sent_ns = now_ns
        self.bytes_sent += size
        self.segments_sent += 1
        free_ns = line.free_ns
        free_ns = (free_ns if free_ns > now_ns else now_ns) + int(size * line.ns_per_byte)
        line.free_ns = free_ns
        path.until_loss -= 1 + size // PACKET_BYTES
        if path.until_loss < 0:
            path.plan_loss()
            self.recovery.lose_by_chance(Segment([data], size, LOST))
            return
        at_ns = free_ns + path.delays[int(path.random() * TABLE_SIZE)]
        if path.radios:
            at_ns = path.held(free_ns, at_ns)
        if at_ns <= self.last_ns:
            at_ns = self.last_ns + 1
        self.last_ns = at_ns
        self.flying.append(Segment([data], size, at_ns))
        if self._event is None:
            at_ns = self.flying[0].at_ns
            self._event = loop.post(at_ns, self.receiver.process, self._deliver)

    def finish(self) -> None:
        """FIN, behind all that is written; once."""
        if not self._is_finished:
            self._is_finished = True
            self._queue(FIN)

    def reset(self) -> None:
        """RST: what is lost stays lost, what is under way arrives first."""
        if self.is_over:
            return
        self.drop()
        path = self.path
        can_arrive = not self.is_severed and path.is_passable and not self.is_refused
        if can_arrive and not path.loses(0):
            self._fly(Segment([], 0, 0, RST), path.arrival_ns(self.loop.now_ns))
        else:
            self.receiver.keepalive.watch()

    def drop(self) -> None:
        """The sender's kernel forgets the connection. What is under way arrives."""
        self.is_over = self.is_hard = True
        self._queued.clear()
        flying = self.flying
        if self.recovery.lost_count:
            while any(segment.at_ns == LOST for segment in flying):
                flying.pop()
        self.recovery.cancel()

    def give_up(self) -> None:
        """The sender's kernel has tried long enough; the other end is told nothing."""
        self.drop()
        self.sender.time_out()

    def _merge(self, data: Chunk, size: int) -> bool:
        """Let `data` ride with what was sent at this very instant."""
        last, line = self.flying[-1], self.path.line
        if last.kind != DATA or last.size + size > line.segment_bytes:
            return False
        last.chunks.append(data)
        last.size += size
        self.bytes_sent += size
        cost_ns = int(size * line.ns_per_byte)
        line.free_ns += cost_ns
        if cost_ns > MERGED_NS_MAX:
            last.at_ns += cost_ns
            self.last_ns = last.at_ns
        return True

    def _send_hard(self, data: Chunk, size: int) -> None:
        limit = self.path.line.segment_bytes
        if size <= limit:
            self._queue(data)
            return
        view = memoryview(data)
        for start in range(0, size, limit):
            self._queue(view[start : start + limit])

    def _queue(self, item: Chunk | int) -> None:
        if self.is_over:
            return
        self._queued.append(item)
        self.is_hard = True
        if not self.is_waiting:
            self.path.line.join(self)

    def send_queued(self) -> bool:
        """One turn on the line. Whether more waits."""
        queued, limit = self._queued, self.path.line.segment_bytes
        chunks: list[Chunk] = []
        size = 0
        while queued:
            item = queued[0]
            if isinstance(item, int):
                if not chunks:
                    queued.popleft()
                    self._transmit(Segment([], 0, 0, item))
                break
            if size and size + len(item) > limit:
                break
            queued.popleft()
            chunks.append(item)
            size += len(item)
        if chunks:
            self._transmit(Segment(chunks, size, 0))
        self.soften()
        return bool(queued)

    def _transmit(self, segment: Segment) -> None:
        """The slow way: everything may be out of the ordinary."""
        now_ns, path, recovery = self.loop.now_ns, self.path, self.recovery
        self.sent_ns = now_ns
        self.bytes_sent += segment.size
        self.segments_sent += 1
        if recovery.is_backing_off or self.is_severed or not path.is_passable:
            recovery.lose(segment)
        elif self.is_refused:
            self._meet_refusal(segment)
        elif path.loses(segment.size):
            path.line.book(now_ns, segment.size)
            recovery.lose_by_chance(segment)
        else:
            self._fly(segment, path.arrival_ns(path.line.book(now_ns, segment.size)))
            recovery.sent(segment)

    def _fly(self, segment: Segment, at_ns: int) -> None:
        segment.at_ns = self.last_ns = max(at_ns, self.last_ns + 1)
        self.flying.append(segment)
        self.expect_head()

    def soften(self) -> None:
        """Back to the quick way, if nothing stands against it."""
        self.is_hard = bool(
            self._queued
            or self.recovery.is_busy
            or self.is_refused
            or self.is_severed
            or self.is_over
        )

    # ------------------------------------------------------------ arriving

    def expect_head(self) -> None:
        """See to it that the first segment has an event, if it arrives at all."""
        if self._event is None and self.flying and self.flying[0].at_ns != LOST:
            at_ns = max(self.flying[0].at_ns, self.loop.now_ns)
            self._event = self.loop.post(at_ns, self.receiver.process, self._deliver)

    def _arrive(self) -> None:
        """In the receiver's process: hand over the first segment, and all that came meanwhile."""
        loop, flying, receiver = self.loop, self.flying, self.receiver
        now_ns = loop.now_ns
        self._event = None
        while flying and flying[0].at_ns <= now_ns:
            segment = flying.popleft()
            receiver.heard_ns = now_ns
            if segment.kind == DATA:
                chunks = segment.chunks
                data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
                loop.mark(data)
                receiver.take(data, segment.size)
            else:
                receiver.take_end(segment.kind)
        if flying:
            self.expect_head()

    def read(self, size: int) -> None:
        """The receiving program has taken `size` bytes: there is room for more."""
        path = self.path
        if path.is_troubled and not path.is_acknowledged:
            self.recovery.read_in_vain(size)
            return
        self.outstanding -= size
        if self.sender.has_unsent:
            self._tell_room()

    def acknowledged(self, size: int) -> None:
        """News of `size` bytes read before gets through at last."""
        self.outstanding -= size
        if self.sender.has_unsent:
            self._tell_room()

    def _tell_room(self) -> None:
        self.room_ns = self.loop.now_ns
        if self._is_room_told or self.is_over:
            return
        self._is_room_told = True
        at_ns = self.loop.now_ns + self.path.back.typical_ns
        self.loop.post(at_ns, self.sender.process, self._use_room)

    def _use_room(self) -> None:
        self._is_room_told = False
        self.sender.flush()

    @property
    def has_unread(self) -> bool:
        """Whether bytes have arrived that the receiving program was not yet given."""
        now_ns = self.loop.now_ns
        return any(s.at_ns <= now_ns and s.kind == DATA for s in self.flying)

    # ------------------------------------------------------------ the other end

    def refuse(self) -> None:
        """The receiver's socket is closed: what comes now is answered with RST."""
        on_the_way = [s for s in self._in_flight() if s.kind == DATA]
        self._forget_arrivals()
        if on_the_way and not self.is_over and self.path.is_acknowledged:
            self.bounce(on_the_way[0].at_ns)

    def vanish(self) -> None:
        """The receiver's machine has lost all memory of it, without a word."""
        self.lose_in_flight()
        self._forget_arrivals()

    def lose_in_flight(self) -> None:
        """What is under way does not arrive: the receiver's machine has left the air."""
        missed = self._in_flight()
        if self._event is not None and self.flying[0].at_ns > self.loop.now_ns:
            self._cancel_event()
        if self.is_over:
            self._keep([s for s in self.flying if s not in missed])
        else:
            self.recovery.lose_all(missed)

    def sever(self) -> None:
        """An address has gone: nothing gets through ever again."""
        self.is_severed = self.is_hard = True
        self.lose_in_flight()

    def unclogged(self) -> None:
        """What was held comes at the path's ordinary pace."""
        now_ns, path = self.loop.now_ns, self.path
        last_ns = now_ns
        for segment in self._in_flight():
            last_ns = min(segment.at_ns, max(path.arrival_ns(now_ns), last_ns + 1))
            segment.at_ns = last_ns
        self.last_ns = last_ns
        if self._event is not None and self.flying[0].at_ns > now_ns:
            self._cancel_event()
            self.expect_head()
        self.recovery.unclogged(last_ns)

    def bounce(self, at_ns: int | None = None) -> None:
        """What arrives at `at_ns` (or is sent now) meets no socket: RST comes back."""
        self.drop()
        if at_ns is None:
            at_ns = self.path.arrival_ns(self.loop.now_ns)
        back_ns = self.path.back.arrival_ns(at_ns)
        self.loop.post(back_ns, self.sender.process, self.sender.take_end, RST)

    def _meet_refusal(self, segment: Segment) -> None:
        if segment.kind != DATA:
            self.drop()
        elif not self.path.is_acknowledged:
            self.recovery.lose(segment)
        else:
            self.bounce()

    def _in_flight(self) -> list[Segment]:
        now_ns = self.loop.now_ns
        return [segment for segment in self.flying if now_ns < segment.at_ns < LOST]

    def _forget_arrivals(self) -> None:
        self.is_refused = self.is_hard = True
        self._cancel_event()
        self._keep([s for s in self.flying if s.at_ns == LOST])
        if self.outstanding > RECEIVE_BUFFER_BYTES and not self.is_over:
            # Its window was shut: the sender's kernel asks for room again and again.
            self.recovery.wait_for_acknowledgement()

    def _keep(self, segments: list[Segment]) -> None:
        """In place: it may be delivering at this moment."""
        self.flying.clear()
        self.flying.extend(segments)

    def _cancel_event(self) -> None:
        if self._event is not None:
            self._event.cancel()
            self._event = None
