"""One direction of a TCP connection: what its sender's kernel does with the bytes.

In the ordinary case a segment costs one event: it is drawn an arrival time and handed over in the
receiver's process. All else (loss, cuts, a machine off the air, a closed socket at the other end, a
busy line) takes the slow way, whose timers run in the world, since kernels go on while a process
stands still.

Loss is delay: after 200 ms, doubling, or about one round trip where later segments arrive. What is
behind a lost segment waits. Acknowledgements are worked out only where they do not come.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from sims.path import BOOKED_AHEAD_NS
from sims.wire import PACKET_BYTES, TABLE_SIZE

if TYPE_CHECKING:
    from sims.loop import SimHandle, SimLoop
    from sims.path import Path
    from sims.stream import SimTransport

Chunk = bytes | memoryview

OUTSTANDING_BYTES_MAX = 512 * 1024
"""Handed to the kernel and not yet read at the other end: two socket buffers of 256 KiB."""
RETRY_NS = 200_000_000
RETRY_NS_MAX = 120_000_000_000
RETRIES_MAX = 15
"""Linux `tcp_retries2`: together about 15 minutes."""
USER_TIMEOUT_EXTRA_NS = 220_000_000
"""TCP_USER_TIMEOUT fires this much late (measured)."""
LOST = 1 << 62
"""The arrival time of what does not arrive."""
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
    """`receiver` may be set later than the rest: both directions are made together."""

    def __init__(self, loop: SimLoop, path: Path, sender: SimTransport, at_ns: int) -> None:
        self.path = path
        self.sender = sender
        self.receiver: SimTransport = sender
        self.flying: deque[Segment] = deque()
        """In order. Only the first has an event, and none where it is lost."""
        self.queued: deque[Chunk | int] = deque()
        """In the kernel, waiting for a turn on the line; numbers are FIN."""
        self.outstanding = 0
        self.bytes_sent = 0
        self.segments_sent = 0
        """Retransmissions count."""
        self.sent_ns = 0
        self.last_ns = at_ns
        """When the newest segment arrives; the next one is later."""
        self.unacked_ns = -1
        """Since when something has waited for its acknowledgement in vain; -1: nothing does."""
        self.is_waiting = False
        """Whether it stands in the line's queue."""
        self.is_refused = False
        """Whether the other kernel knows this connection no more."""
        self.is_severed = False
        """Whether an address has gone: nothing gets through ever again."""
        self.is_over = False
        """Whether nothing is sent any more."""
        self._loop = loop
        self._is_hard = False
        """Whether segments must take the slow way."""
        self._event: SimHandle | None = None
        self._deliver = self._arrive
        self._lost_count = 0
        self._unacked_size = 0
        """Bytes read at the other end whose acknowledgement did not come."""
        self._retry_count = 0
        self._retry: SimHandle | None = None
        self._retry_ns = 0
        self._parked_ns = 0
        self._is_room_told = False
        self._is_finished = False

    # ------------------------------------------------------------ sending

    def send(self, data: Chunk, size: int) -> None:
        """The kernel takes `data` (1 byte or more; the caller has looked that there is room)."""
        loop, path = self._loop, self.path
        now_ns, line = loop.now_ns, path.line
        self.outstanding += size
        if (
            self._is_hard
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
            self._lose_by_chance(Segment([data], size, LOST))
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
            self._fly(Segment([], 0, 0, RST), path.arrival_ns(self._loop.now_ns))

    def drop(self) -> None:
        """The sender's kernel forgets the connection. What is under way arrives."""
        self.is_over = self._is_hard = True
        self.queued.clear()
        self._cancel_retry()
        self.unacked_ns = -1
        flying = self.flying
        if self._lost_count:
            while flying and any(segment.at_ns == LOST for segment in flying):
                flying.pop()
            self._lost_count = 0

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
        self.queued.append(item)
        self._is_hard = True
        if not self.is_waiting:
            self.path.line.join(self)

    def send_queued(self) -> bool:
        """One turn on the line. Whether more waits."""
        queued, limit = self.queued, self.path.line.segment_bytes
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
        self._soften()
        return bool(queued)

    def _transmit(self, segment: Segment) -> None:
        """The slow way: everything may be out of the ordinary."""
        now_ns, path, size = self._loop.now_ns, self.path, segment.size
        self.sent_ns = now_ns
        self.bytes_sent += size
        self.segments_sent += 1
        if self._retry_count or self.is_severed or not path.is_passable:
            self._lose(segment)
        elif self.is_refused:
            self._refused(segment)
        elif path.loses(size):
            path.line.book(now_ns, size)
            self._lose_by_chance(segment)
        else:
            self._fly(segment, path.arrival_ns(path.line.book(now_ns, size)))
            if self._lost_count:
                self._retry_by(segment.at_ns + path.back.typical_ns)
            if path.is_troubled:
                self._expect_acknowledgement(segment)

    def _fly(self, segment: Segment, at_ns: int) -> None:
        segment.at_ns = self.last_ns = max(at_ns, self.last_ns + 1)
        self.flying.append(segment)
        if self._event is None and self.flying[0] is segment:
            self._event = self._loop.post(segment.at_ns, self.receiver.process, self._deliver)

    # ------------------------------------------------------------ arriving

    def _arrive(self) -> None:
        """In the receiver's process: hand over the first segment, and all that came meanwhile."""
        loop, flying, receiver = self._loop, self.flying, self.receiver
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
        if flying and self._event is None and flying[0].at_ns != LOST:
            at_ns = max(flying[0].at_ns, now_ns + 1)
            self._event = loop.post(at_ns, receiver.process, self._deliver)

    def read(self, size: int) -> None:
        """The receiving program has taken `size` bytes: there is room for more."""
        path = self.path
        if path.is_troubled and not path.is_acknowledged:
            self._unacked_size += size
            self._await(self._loop.now_ns)
            return
        self.outstanding -= size
        if self.sender.has_unsent:
            self._tell_room()

    def _tell_room(self) -> None:
        if self._is_room_told or self.is_over:
            return
        self._is_room_told = True
        at_ns = self._loop.now_ns + self.path.back.typical_ns
        self._loop.post(at_ns, self.sender.process, self._room)

    def _room(self) -> None:
        self._is_room_told = False
        self.sender.flush()

    @property
    def has_unread(self) -> bool:
        """Whether bytes have arrived that the receiving program was not yet given."""
        now_ns = self._loop.now_ns
        return any(s.at_ns <= now_ns and s.kind == DATA for s in self.flying)

    # ------------------------------------------------------------ loss and retries

    def _lose(self, segment: Segment) -> None:
        now_ns = self._loop.now_ns
        segment.at_ns = LOST
        self.flying.append(segment)
        self._lost_count += 1
        self._is_hard = True
        self._await(now_ns)

    def _lose_by_chance(self, segment: Segment) -> None:
        self._lose(segment)
        if segment.size > 3 * PACKET_BYTES:
            path = self.path
            self._retry_by(path.line.free_ns + path.typical_ns + path.back.typical_ns)

    def _await(self, since_ns: int) -> None:
        """Something sent at `since_ns` is not acknowledged: try again, and give up in the end."""
        self._is_hard = True
        if self.unacked_ns < 0:
            self.unacked_ns = since_ns
        if self._retry is None:
            self._arm(self._loop.now_ns + RETRY_NS)

    def _expect_acknowledgement(self, segment: Segment) -> None:
        """The way back is cut, or so clogged that the sender's patience may end before."""
        path, now_ns = self.path, self._loop.now_ns
        if not path.is_acknowledged:
            self._await(now_ns)
            return
        due_ns = segment.at_ns + path.back.typical_ns
        timeout_ns = self.sender.user_timeout_ns
        if timeout_ns and due_ns > now_ns + timeout_ns + USER_TIMEOUT_EXTRA_NS:
            self._await(now_ns)

    def _retry_by(self, at_ns: int) -> None:
        if self._retry is not None and at_ns < self._retry_ns and not self._retry_count:
            self._cancel_retry()
            self._arm(at_ns)

    def _arm(self, at_ns: int) -> None:
        self._retry_ns = at_ns
        at_ns = max(self._loop.now_ns, min(at_ns, self._deadline_ns))
        self._retry = self._loop.post(at_ns, self._loop.world, self._try_again)

    def rearm(self) -> None:
        """The sender's options have changed."""
        if self._retry is not None:
            self._cancel_retry()
            self._arm(self._retry_ns)

    def _cancel_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    @property
    def _deadline_ns(self) -> int:
        timeout_ns = self.sender.user_timeout_ns
        if not timeout_ns or self.unacked_ns < 0:
            return LOST
        return self.unacked_ns + timeout_ns + USER_TIMEOUT_EXTRA_NS

    def _try_again(self) -> None:
        self._retry = None
        now_ns, path = self._loop.now_ns, self.path
        if not path.source.is_on_air:
            self._parked_ns = now_ns
            return
        if now_ns >= self._deadline_ns:
            self.sender.time_out()
        elif now_ns < self._retry_ns:
            self._arm(self._retry_ns)
        elif not self._resend():
            self._retry_count += 1
            if self._retry_count > RETRIES_MAX:
                self.sender.time_out()
            else:
                self._arm(now_ns + min(RETRY_NS << self._retry_count, RETRY_NS_MAX))

    def _resend(self) -> bool:
        """Send again what was lost. Whether all is acknowledged now."""
        path = self.path
        if self.is_severed or not path.is_passable or path.loses(0):
            return False
        if self.is_refused:
            if path.is_acknowledged:
                self._bounce(path.arrival_ns(self._loop.now_ns))
            return path.is_acknowledged
        if not path.is_acknowledged:
            if self._lost_count and not self._unacked_size:
                self._relaunch(1)
            return False
        if self._is_held_up():
            return False
        self._relaunch(self._lost_count)
        self._settle()
        return True

    def _is_held_up(self) -> bool:
        """Whether the acknowledgement of what is under way is not due yet (a clog)."""
        path = self.path
        if self._lost_count or not path.is_troubled or not self.flying:
            return False
        return self.flying[0].at_ns + path.back.extra_ns > self._loop.now_ns

    def _settle(self) -> None:
        self.unacked_ns = -1
        self._retry_count = 0
        self._cancel_retry()
        self.outstanding -= self._unacked_size
        self._unacked_size = 0
        self._soften()
        if self.sender.has_unsent:
            self._tell_room()

    def _soften(self) -> None:
        """Back to the quick way, if nothing stands against it."""
        self._is_hard = bool(
            self.queued
            or self._lost_count
            or self.unacked_ns >= 0
            or self.is_refused
            or self.is_severed
            or self.is_over
        )

    def _relaunch(self, count: int) -> None:
        """The first `count` lost segments go out again; all arrive in order."""
        now_ns, path = self._loop.now_ns, self.path
        before_ns = -1
        for segment in self.flying:
            if segment.at_ns == LOST:
                if count == 0:
                    break
                count -= 1
                self._lost_count -= 1
                self.bytes_sent += segment.size
                self.segments_sent += 1
                segment.at_ns = path.arrival_ns(path.line.book(now_ns, segment.size))
            segment.at_ns = before_ns = max(segment.at_ns, before_ns + 1)
        self.last_ns = max(self.last_ns, before_ns)
        head_ns = self.flying[0].at_ns if self.flying else LOST
        if self._event is None and head_ns != LOST:
            self._event = self._loop.post(head_ns, self.receiver.process, self._deliver)

    # ------------------------------------------------------------ the other end

    def refuse(self) -> None:
        """The receiver's socket is closed: what comes now is answered with RST."""
        now_ns = self._loop.now_ns
        on_the_way = [s for s in self.flying if now_ns < s.at_ns < LOST and s.kind == DATA]
        self._forget_arrivals()
        if on_the_way and not self.is_over and self.path.is_acknowledged:
            self._bounce(on_the_way[0].at_ns)

    def vanish(self) -> None:
        """The receiver's machine has lost all memory of it, without a word."""
        self.lose_in_flight()
        self._forget_arrivals()

    def _forget_arrivals(self) -> None:
        self.is_refused = self._is_hard = True
        if self._event is not None:
            self._event.cancel()
            self._event = None
        self._keep([s for s in self.flying if s.at_ns == LOST])

    def _keep(self, segments: list[Segment]) -> None:
        """In place: it may be delivering at this moment."""
        self.flying.clear()
        self.flying.extend(segments)

    def lose_in_flight(self) -> None:
        """The receiver's machine has left the air: what is under way does not arrive."""
        now_ns = self._loop.now_ns
        if self._event is not None and self.flying[0].at_ns > now_ns:
            self._event.cancel()
            self._event = None
        missed = [s for s in self.flying if now_ns < s.at_ns < LOST]
        if self.is_over:
            self._keep([s for s in self.flying if s.at_ns <= now_ns])
            return
        for segment in missed:
            segment.at_ns = LOST
        self._lost_count += len(missed)
        if missed:
            self._await(now_ns)

    def _refused(self, segment: Segment) -> None:
        if segment.kind != DATA:
            self.drop()
        elif not self.path.is_acknowledged:
            self._lose(segment)
        else:
            self._bounce(self.path.arrival_ns(self._loop.now_ns))

    def _bounce(self, at_ns: int) -> None:
        """What arrives at `at_ns` meets no socket: RST comes back."""
        self.drop()
        back_ns = self.path.back.arrival_ns(at_ns)
        self._loop.post(back_ns, self.sender.process, self.sender.take_end, RST)

    def bounce_probe(self) -> None:
        """A keepalive probe to a kernel that does not know this connection."""
        self._bounce(self.path.arrival_ns(self._loop.now_ns))

    def sever(self) -> None:
        """An address has gone: nothing gets through ever again."""
        self.is_severed = self._is_hard = True
        self.lose_in_flight()

    def wake(self) -> None:
        """The sender's machine is awake again; its timers stood still meanwhile."""
        if self._parked_ns and not self.is_over:
            now_ns = self._loop.now_ns
            self.unacked_ns += now_ns - self._parked_ns
            self._arm(now_ns + RETRY_NS)
        self._parked_ns = 0

    def unclogged(self) -> None:
        """What was held comes at the path's ordinary pace."""
        now_ns, path = self._loop.now_ns, self.path
        before_ns = now_ns
        for segment in self.flying:
            if now_ns < segment.at_ns < LOST:
                before_ns = min(segment.at_ns, max(path.arrival_ns(now_ns), before_ns + 1))
                segment.at_ns = before_ns
        self.last_ns = max((s.at_ns for s in self.flying if s.at_ns < LOST), default=now_ns)
        if self._event is not None and self.flying[0].at_ns > now_ns:
            self._event.cancel()
            head_ns = self.flying[0].at_ns
            self._event = self._loop.post(head_ns, self.receiver.process, self._deliver)
        if self._retry is not None and not self._lost_count:
            self._cancel_retry()
            self._retry_count = 0
            self._arm(self.last_ns + path.back.typical_ns)

    def after(self, delay_ns: int, callback: Any, *args: Any) -> SimHandle:
        """A kernel timer of the sender."""
        loop = self._loop
        return loop.post(loop.now_ns + delay_ns, loop.world, callback, *args)
