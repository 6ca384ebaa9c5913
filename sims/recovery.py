"""What a sender's kernel does about segments that nobody acknowledges.

Times are those measured on Linux 6.18 between two namespaces with the wire pulled. Several lost
segments go out again 0.2, 0.6, 1.4 ... s after the first was sent; a lone one is probed for after
0.2 s before that sequence begins, hence 0.2, 0.4, 0.8, 1.6 ... s. Where later segments arrive, a
round trip is enough. TCP_USER_TIMEOUT ends the connection, or else 15 tries.

Timers run in the world: a kernel goes on while its process stands still, and stops while its
machine sleeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sims.wire import PACKET_BYTES

if TYPE_CHECKING:
    from sims.loop import SimHandle
    from sims.pipe import Pipe, Segment

RETRY_NS = 200_000_000
RETRY_NS_MAX = 120_000_000_000
RETRIES_MAX = 15
"""Linux `tcp_retries2`: together about 15 minutes."""
USER_TIMEOUT_EXTRA_NS = 220_000_000
LONE_EXTRA_NS = 430_000_000
"""TCP_USER_TIMEOUT fires this much late: it counts from the first retransmission."""
ORPHAN_NS = 5_000_000_000
"""How often a closed socket of a sleeping machine looks whether it is awake."""
LOST = 1 << 62
"""The arrival time of what does not arrive."""
EASILY_FOLLOWED_BYTES = 3 * PACKET_BYTES
"""A lost packet of a segment this long is followed by others of the same segment."""


class Recovery:
    """Of one pipe. Idle, without a timer, as long as everything arrives."""

    __slots__ = (
        "_is_lone",
        "_loop",
        "_parked_ns",
        "_pipe",
        "_retry",
        "_retry_count",
        "_retry_ns",
        "_unacked_size",
        "lost_count",
        "unacked_ns",
    )

    def __init__(self, pipe: Pipe) -> None:
        self.lost_count = 0
        """Segments in flight that will not arrive unless they are sent again."""
        self.unacked_ns = -1
        """Since when something has waited for its acknowledgement in vain; -1: nothing does."""
        self._pipe = pipe
        self._loop = pipe.loop
        self._unacked_size = 0
        """Bytes read at the other end whose acknowledgement did not come."""
        self._retry: SimHandle | None = None
        self._retry_ns = 0
        self._retry_count = 0
        self._is_lone = False
        """Whether no more than one segment was missing when the first retry came."""
        self._parked_ns = 0
        """When the timer stopped with the machine; 0: it did not."""

    @property
    def is_busy(self) -> bool:
        return self.lost_count > 0 or self.unacked_ns >= 0

    @property
    def is_backing_off(self) -> bool:
        """Whether a retry was in vain: nothing new is sent before one succeeds."""
        return self._retry_count > 0

    # ------------------------------------------------------------ what goes wrong

    def lose(self, segment: Segment) -> None:
        """It was sent, and does not arrive."""
        segment.at_ns = LOST
        self._pipe.flying.append(segment)
        self.lost_count += 1
        self.wait_for_acknowledgement()

    def lose_by_chance(self, segment: Segment) -> None:
        self.lose(segment)
        if segment.size > EASILY_FOLLOWED_BYTES:
            path = self._pipe.path
            self._hasten(path.line.free_ns + path.typical_ns + path.back.typical_ns)

    def lose_all(self, segments: list[Segment]) -> None:
        """They were under way, and do not arrive."""
        for segment in segments:
            segment.at_ns = LOST
        self.lost_count += len(segments)
        if segments:
            self.wait_for_acknowledgement()

    def sent(self, segment: Segment) -> None:
        """A segment is under way on a path that is out of order, or behind a lost one."""
        path, now_ns = self._pipe.path, self._loop.now_ns
        if self.lost_count:
            self._hasten(segment.at_ns + path.back.typical_ns)
        if not path.is_troubled:
            return
        patience_ns = self._pipe.sender.user_timeout_ns + USER_TIMEOUT_EXTRA_NS
        due_ns = segment.at_ns + path.back.typical_ns
        is_too_late = self._pipe.sender.user_timeout_ns and due_ns > now_ns + patience_ns
        if is_too_late or not path.is_acknowledged:
            self.wait_for_acknowledgement()

    def read_in_vain(self, size: int) -> None:
        """The other end has read `size` bytes, and its acknowledgement is lost."""
        self._unacked_size += size
        self.wait_for_acknowledgement()

    def wait_for_acknowledgement(self) -> None:
        self._pipe.is_hard = True
        if self.unacked_ns < 0:
            self.unacked_ns = self._loop.now_ns
        if self._retry is None and not self._parked_ns:
            self._arm(self._loop.now_ns + RETRY_NS)

    # ------------------------------------------------------------ timers

    def cancel(self) -> None:
        """Nothing is sent any more."""
        self._cancel_retry()
        self.unacked_ns = -1
        self.lost_count = 0

    def wake(self) -> None:
        """The sender's machine is awake again; its timers stood still meanwhile."""
        if self._parked_ns and self.is_busy:
            now_ns = self._loop.now_ns
            self.unacked_ns += now_ns - self._parked_ns
            self._arm(now_ns + RETRY_NS)
        self._parked_ns = 0

    def rearm(self) -> None:
        """The sender's options have changed."""
        if self._retry is not None:
            self._cancel_retry()
            self._arm(self._retry_ns)

    def unclogged(self, last_ns: int) -> None:
        """What was held comes now, the last of it at `last_ns`."""
        if self._retry is not None and not self.lost_count:
            self._retry_count = 0
            self._cancel_retry()
            self._arm(last_ns + self._pipe.path.back.typical_ns)

    def _hasten(self, at_ns: int) -> None:
        """Later segments arrive: the other end says by then which one it lacks."""
        if self._retry is not None and at_ns < self._retry_ns and not self._retry_count:
            self._cancel_retry()
            self._arm(at_ns)

    def _arm(self, at_ns: int) -> None:
        self._retry_ns = at_ns
        at_ns = max(self._loop.now_ns, min(at_ns, self._deadline_ns))
        self._retry = self._loop.post(at_ns, self._loop.world, self._try_again)

    def _cancel_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    @property
    def _deadline_ns(self) -> int:
        timeout_ns = self._pipe.sender.user_timeout_ns
        if not timeout_ns or self.unacked_ns < 0:
            return LOST
        extra_ns = LONE_EXTRA_NS if self._is_lone else USER_TIMEOUT_EXTRA_NS
        return self.unacked_ns + timeout_ns + extra_ns

    # ------------------------------------------------------------ sending again

    def _try_again(self) -> None:
        self._retry = None
        now_ns, pipe = self._loop.now_ns, self._pipe
        if not pipe.path.source.is_on_air:
            self._stand_still()
        elif now_ns >= self._deadline_ns:
            pipe.give_up()
        elif now_ns < self._retry_ns:
            self._arm(self._retry_ns)
        else:
            if self._retry_count == 0:
                self._is_lone = self.lost_count <= 1
            if not self._resend():
                self._back_off()

    def _stand_still(self) -> None:
        """The machine sleeps, or lost power after the program had closed its socket."""
        if not self._pipe.path.source.is_powered:
            self._pipe.drop()
        elif self._pipe.sender.is_shut:
            self._retry_ns = self._loop.now_ns + ORPHAN_NS
            self._retry = self._loop.post(self._retry_ns, self._loop.world, self._try_again)
        else:
            self._parked_ns = self._loop.now_ns

    def _back_off(self) -> None:
        self._retry_count += 1
        doublings = self._retry_count - self._is_lone
        if doublings > RETRIES_MAX:
            self._pipe.give_up()
        else:
            pause_ns = min(RETRY_NS << doublings, RETRY_NS_MAX)
            self._arm(self._loop.now_ns + pause_ns)

    def _resend(self) -> bool:
        """Send again what was lost. Whether that ends the matter."""
        pipe, path = self._pipe, self._pipe.path
        if pipe.is_severed or not path.is_passable or path.loses(0):
            return False
        if pipe.is_refused:
            if path.is_acknowledged:
                pipe.bounce()
            return path.is_acknowledged
        if not path.is_acknowledged:
            if self.lost_count and not self._unacked_size:
                self._relaunch(1)
            return False
        if self._is_held_up():
            return False
        self._relaunch(self.lost_count)
        self._settle()
        return True

    def _is_held_up(self) -> bool:
        """Whether the acknowledgement of what is under way is not due yet (a clog)."""
        pipe = self._pipe
        if self.lost_count or not pipe.path.is_troubled or not pipe.flying:
            return False
        return pipe.flying[0].at_ns + pipe.path.back.extra_ns > self._loop.now_ns

    def _relaunch(self, count: int) -> None:
        """The first `count` lost segments go out again; all arrive in order."""
        now_ns, pipe, path = self._loop.now_ns, self._pipe, self._pipe.path
        before_ns = -1
        for segment in pipe.flying:
            if segment.at_ns == LOST:
                if count == 0:
                    break
                count -= 1
                self.lost_count -= 1
                pipe.bytes_sent += segment.size
                pipe.segments_sent += 1
                segment.at_ns = path.arrival_ns(path.line.book(now_ns, segment.size))
            segment.at_ns = before_ns = max(segment.at_ns, before_ns + 1)
        pipe.last_ns = max(pipe.last_ns, before_ns)
        pipe.expect_head()

    def _settle(self) -> None:
        """All is acknowledged, or soon will be."""
        self.unacked_ns = -1
        self._retry_count = 0
        self._is_lone = False
        self._cancel_retry()
        size, self._unacked_size = self._unacked_size, 0
        self._pipe.soften()
        self._pipe.acknowledged(size)
