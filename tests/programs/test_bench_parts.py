"""What the benches count and compare, without a server."""

from __future__ import annotations

import json
from itertools import count

import pytest
from contest import Measured, Row, measure
from engine_profile import by_kind, kind_of
from streams import Streamed, aggregate_tokens_s, completion, parse

HEADERS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


def event(**body: object) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def token(text: str, *ids: int) -> bytes:
    return event(choices=[{"text": text, "token_ids": list(ids)}])


DONE = b"data: [DONE]\n\n"


def test_a_stream_is_timed_by_the_packets_that_carried_its_tokens() -> None:
    usage = event(choices=[], usage={"completion_tokens": 3})
    pieces = [
        (1.0, HEADERS + b"2c\r\n"),
        (2.0, token("a", 7)),
        (2.5, token("b", 8)[:9]),
        (3.0, token("b", 8)[9:] + token("", 9)),
        (4.0, usage + DONE),
    ]
    result = parse(Streamed(0.5), pieces)
    assert result.error is None
    assert result.status == 200
    assert result.arrivals == [2.0, 3.0, 3.0]
    assert result.ids == [7, 8, 9]
    assert result.ttft_s == 1.5
    assert result.gaps_s == [1.0, 0.0]
    assert result.tokens == 3
    assert result.tokens_s == 2.0


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (HEADERS + token("a"), "cut off"),
        (HEADERS + event(error={"message": "lost"}) + DONE, "lost"),
        (b"HTTP/1.1 503 Busy\r\n\r\n" + b'{"error": "no room"}', "no room"),
        (b"", "no answer"),
    ],
)
def test_a_stream_that_ends_badly_says_so(data: bytes, error: str) -> None:
    result = parse(Streamed(0.0), [(1.0, data)])
    assert result.error is not None
    assert error in result.error


def test_tokens_of_all_streams_count_from_the_first_request_to_the_last_token() -> None:
    early = parse(Streamed(1.0), [(3.0, HEADERS + token("a") + DONE)])
    late = parse(Streamed(2.0), [(4.0, HEADERS + token("a")), (6.0, token("b") + DONE)])
    assert aggregate_tokens_s([early, late]) == 3 / 5
    with pytest.raises(SystemExit, match="1 of 2 streams failed"):
        aggregate_tokens_s([early, parse(Streamed(2.0), [])])


def test_a_request_says_how_many_tokens_it_wants_whoever_is_asked() -> None:
    body = completion((5, 6), 12, seed=3)
    assert (body["prompt"], body["max_tokens"], body["ignore_eos"]) == ([5, 6], 12, True)
    assert body["seed"] == 3


def measured(less_is_better: bool, bar: float | None) -> Measured:
    """Ours counts 1, 2, 3, … (the first does not count), the other always gives 2."""
    values = count(1)
    row = Row("x", lambda: float(next(values)), lambda: 2.0, bar, less_is_better)
    return measure(row, rounds=3)


def test_sides_are_compared_round_by_round() -> None:
    result = measured(less_is_better=False, bar=1.5)
    assert result.ours.values == (2.0, 3.0, 4.0)
    assert result.ratios.values == (1.0, 1.5, 2.0)
    assert result.is_met
    assert result.cells()[-2:] == ["≥ 1.5", "yes"]


@pytest.mark.parametrize(
    ("less_is_better", "bar", "met"),
    [(False, 1.51, False), (True, 1.5, True), (True, 1.49, False), (False, None, None)],
)
def test_a_bar_is_met_on_its_side(less_is_better: bool, bar: float | None, met: bool) -> None:
    assert measured(less_is_better, bar).is_met is met


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::mm", "linear"),
        ("swarm::int8_linear", "linear"),
        ("swarm::paged_attention", "attention"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("swarm::attend", "attention"),
        ("swarm::write_rows", "cache and gather"),
        ("aten::index_select", "cache and gather"),
        ("aten::mul", "other operators"),
    ],
)
def test_operators_are_told_apart_by_name(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_times_of_a_kind_add_up() -> None:
    sums = by_kind([("aten::mm", 1.0, 3), ("aten::addmm", 2.0, 1), ("aten::mul", 0.5, 9)])
    assert sums["linear"] == 3.0
    assert sums["other operators"] == 0.5
    assert sum(sums.values()) == 3.5
