"""Events folded into an answer: text, usage, pauses, routes; and models, senders, errors, state."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from fake_node import (
    CLASS,
    END,
    TABLE,
    TEXT,
    failed,
    finished,
    generated,
    model,
    route,
    snapshot,
    spec,
    spoken,
    started,
    stats,
)

from swarm.effects import Finished, Started
from swarm.effects import Stalled as Stall
from swarm.errors import (
    KvExhausted,
    LinkClosed,
    NoRoute,
    RequestError,
    RerouteLimitReached,
    SessionLimitReached,
    ShardError,
    SwarmError,
)
from swarm.gateway import catalog, guard
from swarm.gateway.answer import Answer, Usage
from swarm.gateway.openai_writer import usage_json
from swarm.gateway.responses import error_answer, sse, sse_comment
from swarm.gateway.view import note_json, shown_names, state_json
from swarm.notes import note
from swarm.terms import (
    LayerRange,
    MemberState,
    ModelId,
    NodeId,
    NumericClass,
    Order,
    Sampling,
    SessionId,
)

PROMPT = TEXT.encode("the", special=False)


def answer(*stops: str) -> Answer:
    order = Order(spec().model_id, PROMPT, 32, Sampling(), frozenset({END}))
    return Answer(TABLE, order, stops, began=10.0)


def read(into: Answer, *events: Any, at: float = 10.0) -> str:
    pieces = [into.see(event, at) for event in events]
    return "".join(piece.text for piece in pieces if piece is not None)


def test_usage_counts_the_tokens_that_the_client_got() -> None:
    got = answer()
    words = spoken(" dog and fox")
    read(got, started("a", "b"), *words[:2], Stall("b vanished"), started("a", "c", epoch=2))
    read(got, *words[2:], Finished("length", stats("a", "c", stalls=(0.1,))))
    assert got.usage() == Usage(len(PROMPT), len(words), cached_tokens=0)


def test_tokens_of_the_prompt_that_were_not_run_are_told() -> None:
    got = answer()
    read(got, replace(started("a"), cached_tokens=64), *spoken(" dog"))
    read(got, Finished("length", stats("a")))
    assert usage_json(got.usage())["prompt_tokens_details"] == {"cached_tokens": 64}


def test_tokens_that_were_not_run_are_told_also_where_a_stop_string_ends_the_answer() -> None:
    got = answer("dog")
    read(got, replace(started("a"), cached_tokens=64), *spoken(" dog"))
    assert got.finish_reason == "stop" and got.usage().cached_tokens == 64


def test_the_way_is_told_from_the_nodes_own_figures() -> None:
    got = answer()
    read(got, started("a", "b"), at=10.0)
    read(got, *spoken("x"), at=10.25)
    read(got, Finished("length", stats("a", "c", stalls=(0.5, 0.25), exact=False)))
    assert got.swarm() == {
        "route": [{"node": "a", "start": 0, "stop": 2}, {"node": "c", "start": 2, "stop": 4}],
        "reroutes": 2,
        "stall_ms": [500.0, 250.0],
        "ttft_ms": 250.0,
        "exact": False,
    }


def test_an_answer_ended_by_a_stop_string_tells_the_way_as_seen() -> None:
    got = answer(" fox")
    read(got, started("a", "b"), *spoken("the dog"), at=11.0)
    read(got, Stall("b vanished"), at=12.0)
    read(got, Stall("c refused"), at=12.5)
    read(got, started("a", "c", epoch=2), at=12.5)
    assert got.stall_began == 12.0
    read(got, *spoken(" fox"), at=13.0)
    assert got.is_over and got.finish_reason == "stop"
    told = got.swarm()
    assert (told["reroutes"], told["stall_ms"], told["exact"]) == (1, [1000.0], True)
    assert [hop["node"] for hop in told["route"]] == ["a", "c"]


@pytest.mark.parametrize(
    ("second", "exact"),
    [
        (route("a", "c"), True),
        (route("a", "c", numeric_class=NumericClass("cuda-bf16")), False),
        (route("a", "b"), True),
    ],
)
def test_another_numeric_class_makes_it_inexact(second: Any, exact: bool) -> None:
    got = answer("x")
    read(got, started("a", "b"), Stall("lost"), Started(second, 2), *spoken("x"))
    assert got.swarm()["exact"] is exact


def test_before_any_token_there_is_no_first_one() -> None:
    assert answer().swarm() == {
        "route": [], "reroutes": 0, "stall_ms": [], "ttft_ms": None, "exact": True,
    }  # fmt: skip


def test_the_end_token_is_counted_but_not_shown() -> None:
    got = answer()
    assert read(got, *spoken("a"), *generated([END]), finished("stop")) == "a"
    assert (got.finish_reason, got.usage().completion_tokens) == ("stop", 2)


def test_nothing_is_added_after_the_end() -> None:
    got = answer("b")
    assert read(got, *spoken("a b c"), finished()) == "a "
    assert got.see(spoken("x")[0], 1.0) is None
    assert got.finish_reason == "stop"


def test_a_failure_gives_out_what_was_held_back_and_has_no_finish() -> None:
    got = answer("STOP NOW")
    error = NoRoute(spec().model_id, (LayerRange(2, 4),), "gone")
    assert read(got, *spoken("go STOP"), failed(error)) == "go STOP"
    assert got.error is error and got.finish_reason is None


def test_text_held_back_comes_at_the_end() -> None:
    assert read(answer("STOP"), *spoken("go ST"), finished()) == "go ST"


def test_models_are_listed_while_covered() -> None:
    views = [model("one"), model("two", missing=(LayerRange(1, 2),))]
    assert [label for label, _ in catalog.listed(views)] == ["one"]


def test_two_models_of_one_name_are_told_apart() -> None:
    views = [model("one"), model("one", has_text=False)]
    labels = [label for label, _ in catalog.listed(views)]
    assert len(set(labels)) == 2 and all(label.startswith("one@") for label in labels)
    assert [catalog.find(views, label) for label in labels] == views
    assert catalog.find(views, views[1].spec.model_id) is views[1]
    with pytest.raises(RequestError, match="say which") as caught:
        catalog.find(views, "one")
    assert caught.value.status == 400


def test_a_covered_model_wins_over_a_namesake_that_is_not() -> None:
    views = [model("one", missing=(LayerRange(1, 2),)), model("one", has_text=False)]
    assert catalog.find(views, "one") is views[1]


def test_unknown_and_uncovered_models_differ() -> None:
    views = [model("one"), model("two", missing=(LayerRange(1, 2), LayerRange(3, 4)))]
    with pytest.raises(RequestError, match="covered now: one") as caught:
        catalog.find(views, "three")
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
    with pytest.raises(NoRoute) as uncovered:
        catalog.find(views, "two")
    assert "1:2, 3:4" in error_answer(uncovered.value).message


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "127.8.9.1", "[::1]:8000", "a.localhost",
     "localhost.:80", "[::ffff:127.0.0.1]:80"],
)  # fmt: skip
def test_names_of_loopback_pass(host: str) -> None:
    assert guard.refusal(host, None) is None
    assert guard.refusal(host, f"http://{host}") is None


@pytest.mark.parametrize(
    "host",
    [None, "", "evil.example", "evil.example:8000", "192.168.1.4:8000", "localhost.evil.example",
     "127.0.0.1.evil.example", "127.0.0.1@evil.example", "[::2]", "::1", "localhost:80:80", "0"],
)  # fmt: skip
def test_other_names_do_not(host: str | None) -> None:
    assert guard.refusal(host, None)


@pytest.mark.parametrize(
    "origin", ["null", "", "http://evil.example", "file://", "https://localhost.evil.example"]
)
def test_pages_from_elsewhere_do_not(origin: str) -> None:
    assert guard.refusal("localhost:8000", origin)


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("tower.lan:8000", None),
        (None, None),
        ("tower.lan:8000", "http://tower.lan:8000"),
        ("Tower.lan", "http://tower.lan"),
        ("tower.lan", "https://tower.lan:443"),
        ("tower.lan:80", "http://tower.lan"),
        ("[fd00::1]:8000", "http://[fd00::1]:8000"),
    ],
)
def test_an_opened_gateway_serves_programs_and_its_own_pages(
    host: str | None, origin: str | None
) -> None:
    assert guard.refusal_from_afar(host, origin) is None


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("tower.lan:8000", "http://evil.example"),
        ("tower.lan:8000", "http://tower.lan:9000"),
        ("tower.lan:8000", "http://tower.lan"),
        ("tower.lan", "https://tower.lan:80"),
        ("tower.lan:8000", "null"),
        ("tower.lan:8000", ""),
        ("tower.lan", "file://tower.lan"),
        (None, "http://tower.lan"),
    ],
)
def test_an_opened_gateway_refuses_pages_of_others(host: str | None, origin: str) -> None:
    assert guard.refusal_from_afar(host, origin)


@pytest.mark.parametrize(
    ("error", "status", "code", "retry"),
    [
        (RequestError("x", param="n"), 400, None, False),
        (RequestError("x", status=404, code="model_not_found"), 404, "model_not_found", False),
        (RequestError("x", status=429), 429, None, True),
        (NoRoute(ModelId("m"), (), "x"), 503, "no_route", True),
        (RerouteLimitReached("x"), 503, "reroute_limit", True),
        (KvExhausted("x"), 503, "capacity", True),
        (SessionLimitReached("x"), 503, "capacity", True),
        (LinkClosed("x"), 503, "link", True),
        (ShardError("x"), 500, "generation_failed", False),
    ],
)
def test_errors_have_a_status(error: SwarmError, status: int, code: str, retry: bool) -> None:
    told = error_answer(error)
    assert (told.status, told.code, told.retry) == (status, code, retry)
    assert set(told.json()["error"]) == {"message", "type", "param", "code"}


def test_missing_layers_are_named_once() -> None:
    missing = (LayerRange(1, 2), LayerRange(3, 4))
    told = error_answer(NoRoute(ModelId("m"), missing, "layers 1:2 are gone"))
    assert told.message == "layers 1:2 are gone (missing layers 3:4)"


def test_events_and_comments_cannot_be_broken_by_what_they_carry() -> None:
    assert sse({"a": "x\n\ndata: y"}).count(b"\n") == 2
    assert sse_comment("stalled:\n\ndata: [DONE]\r\n") == b": stalled: data: [DONE]\n\n"


def test_the_state_has_the_fields_that_maps_read() -> None:
    views = (model(missing=(LayerRange(2, 4),)),)
    state = json.loads(json.dumps(state_json(snapshot(views, SessionId("5" * 16)))))
    assert (state["node_id"], state["swarm"]) == ("a" * 32, "tag")
    anna, bert = state["nodes"]
    assert (anna["id"], anna["name"], anna["state"]) == ("a" * 32, "anna", "alive")
    assert anna["addresses"] == ["192.168.1.5:7000", "[fe80::1]:7000"]
    assert (anna["rtt_ms"], bert["rtt_ms"]) == (None, 1.2)
    shard = anna["shards"][0]
    assert (shard["model"], shard["start"], shard["stop"]) == ("tiny", 0, 2)
    assert (shard["embed"], shard["head"], shard["numeric_class"]) == (True, False, CLASS)
    assert shard["decode_s_per_layer"] is None
    (tiny,) = state["models"]
    assert (tiny["covered"], tiny["missing"]) == (False, [{"start": 2, "stop": 4}])
    (session,) = state["sessions"]
    assert (session["id"], session["position"]) == ("5" * 16, 17)
    assert (session["epoch"], session["reroutes"]) == (2, 1)
    assert session["route"][1] == {"node": "b" * 32, "start": 2, "stop": 4}


def test_nodes_of_one_name_are_told_apart() -> None:
    anna, bert = snapshot((), SessionId("5" * 16)).nodes
    host, other = replace(anna, name="host"), replace(bert, name="host")
    gone = replace(other, node=NodeId("c" * 32), state=MemberState.DEAD)
    assert shown_names([anna, bert]) == {"a" * 32: "anna", "b" * 32: "bert"}
    assert list(shown_names([host, other, gone]).values()) == [
        "host-aaaa",
        "host-bbbb",
        "host-cccc",
    ]
    assert list(shown_names([host, gone]).values()) == ["host", "host-cccc"]


def test_a_note_becomes_one_object() -> None:
    told = note_json(note("peer.dead", peer="b", after_s=0.5))
    assert told == {"event": "peer.dead", "level": "INFO", "peer": "b", "after_s": 0.5}
