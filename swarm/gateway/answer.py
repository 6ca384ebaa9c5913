"""What a client has got so far of one session, and how the way there went. Pure.

The answer belongs to the origin: text held back, tokens counted and pauses noted here survive
every new route.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, assert_never

from swarm.effects import (
    Failed,
    Finished,
    Generated,
    SessionEvent,
    SessionStats,
    Stalled,
    Started,
)
from swarm.errors import SwarmError
from swarm.gateway.json_calls import CallDelta
from swarm.gateway.stream_text import StopMatcher, detokenizer
from swarm.gateway.token_table import TokenTable
from swarm.gateway.tool_calls import ToolReader
from swarm.gateway.view import route_json
from swarm.terms import NumericClass, Order, Route, SampledToken


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event adds to the answer. `finish_reason` is set on the last one only."""

    text: str
    tokens: tuple[SampledToken, ...] = ()
    finish_reason: str | None = None
    calls: tuple[CallDelta, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens the client got, whatever had to be computed again on the way."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """Of the prompt, those that the hops had already."""


class Answer:
    """Folds the events of a session. Without `text` (no tokenizer) the answer is ids alone."""

    def __init__(
        self,
        text: TokenTable | None,
        order: Order,
        stops: tuple[str, ...],
        began: float,
        *,
        show_stop: bool = False,
        reader: ToolReader | None = None,
    ) -> None:
        """`began`: when the request came in, on the clock that `see` is given.

        `show_stop`: a stop string that ends the answer is given out with it.
        `reader`: tells tool calls from words, where tools are on offer.
        """
        self.order = order
        self.text_side = text
        self.route: Route | None = None
        self.error: SwarmError | None = None
        self.finish_reason: str | None = None
        self.token_count = 0
        self.stall_began: float | None = None
        """When the present pause began; None while tokens flow."""
        self._detokenizer = detokenizer(text, order.prompt_ids) if text else None
        self._matcher = StopMatcher(stops, show=show_stop)
        self._reader = reader
        self._began = began
        self._latest = began
        self._first_token: float | None = None
        self._starts = 0
        self._stalls_s: list[float] = []
        self._classes: dict[int | str, NumericClass] = {}
        self._one_class = True
        self._stats: SessionStats | None = None
        self._cached_tokens = 0

    @property
    def stop_string(self) -> str | None:
        """The one that ended the answer."""
        return self._matcher.found

    @property
    def first_token_s(self) -> float:
        """From the request to the first token; all of the time where none came."""
        return self.duration_s if self._first_token is None else self._first_token - self._began

    @property
    def duration_s(self) -> float:
        """From the request to the newest event."""
        return self._latest - self._began

    @property
    def is_over(self) -> bool:
        """True when nothing more may be given out: finished, stopped by a string, or failed."""
        return self.finish_reason is not None or self.error is not None

    def see(self, event: SessionEvent, now: float) -> Piece | None:
        """Take an event in; the piece it adds, if any. Nothing is added once the answer is over."""
        if self.is_over:
            return None
        self._latest = now
        match event:
            case Started():
                self._started(event.route)
                self._cached_tokens = event.cached_tokens
                return None
            case Stalled():
                self.stall_began = now if self.stall_began is None else self.stall_began
                return None
            case Generated():
                return self._token(event.token, now)
            case Finished():
                self._stats = event.stats
                rest = self._rest()
                self._finish("stop" if self._matcher.stopped else event.reason)
                return replace(rest, finish_reason=self.finish_reason)
            case Failed():
                self._stats = event.stats
                return self.fail(event.error)
            case _:
                assert_never(event)

    def fail(self, error: SwarmError) -> Piece:
        """End without a finish; text that was held back is still the client's."""
        self.error = error
        return self._rest()

    def usage(self) -> Usage:
        return Usage(len(self.order.prompt_ids), self.token_count, self._cached_tokens)

    def swarm(self) -> dict[str, Any]:
        """How the answer came about: the route last used, and what its losses cost."""
        stats = self._stats
        route = stats.route if stats and stats.route else self.route
        first = self._first_token
        return {
            "route": route_json(route),
            "reroutes": stats.reroutes if stats else max(0, self._starts - 1),
            "stall_ms": [_ms(s) for s in (stats.stall_s if stats else self._stalls_s)],
            "ttft_ms": None if first is None else _ms(first - self._began),
            "exact": stats.exact if stats else self._one_class,
        }

    def _started(self, route: Route) -> None:
        self.route = route
        self._starts += 1
        for hop in route.hops:
            roles = (["embed"] if hop.embed else []) + (["head"] if hop.head else [])
            for part in [*range(hop.layers.start, hop.layers.stop), *roles]:
                if self._classes.setdefault(part, hop.numeric_class) != hop.numeric_class:
                    self._one_class = False

    def _token(self, token: SampledToken, now: float) -> Piece:
        self.token_count += 1
        self._first_token = now if self._first_token is None else self._first_token
        if self.stall_began is not None:
            self._stalls_s.append(now - self.stall_began)
            self.stall_began = None
        if self._detokenizer is None or token.token_id in self.order.stop_ids:
            return Piece("", (token,))
        text = self._matcher.push(self._detokenizer.push(token.token_id))
        read = self._read(text, is_end=self._matcher.stopped)
        if self._matcher.stopped or (self._reader is not None and self._reader.is_complete):
            self._finish("stop")
        return replace(read, tokens=(token,), finish_reason=self.finish_reason)

    def _rest(self) -> Piece:
        """Text still held back; it may itself complete a stop string, which cuts it."""
        if self._detokenizer is None:
            return Piece("")
        text = self._matcher.push(self._detokenizer.flush()) + self._matcher.flush()
        return self._read(text, is_end=True)

    def _read(self, text: str, *, is_end: bool) -> Piece:
        """Text as words and tool calls."""
        if self._reader is None:
            return Piece(text)
        reads = [self._reader.push(text), *([self._reader.flush()] if is_end else [])]
        calls = tuple(delta for read in reads for delta in read.calls)
        return Piece("".join(read.text for read in reads), calls=calls)

    def _finish(self, reason: str) -> None:
        called = reason == "stop" and self._reader is not None and self._reader.count > 0
        self.finish_reason = "tool_calls" if called else reason


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
