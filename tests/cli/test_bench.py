"""`swarm bench`: what it counts, how it sums up, and that it runs against a real endpoint."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest
from background import gateway
from fake_node import FakeNode, model, saying, spoken

from swarm.cli import main
from swarm.commands.bench import (
    Chunk,
    Level,
    Sample,
    level_json,
    parse_levels,
    prompt,
    quantile,
    read_chunk,
)
from swarm.errors import ConfigError, LinkError, NoRoute

SLOW = Sample((0.5, 0.7, 1.1), 1.2, 5)
QUICK = Sample((0.1, 0.2), 0.25, 2)
BROKEN = Sample((), 0.0, 0, "503: full")
EMPTY = Sample((), 0.3, 0)


def test_a_level_is_summed_up() -> None:
    told = level_json(Level(2, 2.0, (SLOW, QUICK, BROKEN, EMPTY)))
    assert (told["requests"], told["failed"], told["tokens"]) == (4, 2, 7)
    assert told["tokens_per_s"] == 3.5 and told["requests_per_s"] == 1.0
    assert told["ttft_ms"] == {"p50": 100.0, "p95": 500.0, "p99": 500.0, "mean": 300.0}
    assert told["itl_ms"]["p50"] == 200.0 and told["itl_ms"]["p99"] == 400.0
    assert told["tpot_ms"]["p50"] == 100.0 and told["tpot_ms"]["p99"] == 150.0
    assert told["errors"] == {"503: full": 1, "the answer had no text": 1}


def test_a_level_without_answers_has_no_figures() -> None:
    told = level_json(Level(1, 0.0, (BROKEN,)))
    assert told["tokens_per_s"] is None and set(told["ttft_ms"].values()) == {None}
    assert Sample((0.1,), 0.2, 1).tpot_s is None


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.5, None), ([3.0], 0.99, 3.0), ([1.0, 2.0, 3.0, 4.0], 0.5, 2.0),
     ([float(i) for i in range(1, 101)], 0.95, 95.0)],
)  # fmt: skip
def test_quantiles(values: list[float], share: float, expected: float | None) -> None:
    assert quantile(values, share) == expected


def test_levels_as_typed() -> None:
    assert parse_levels("1, 4,16") == (1, 4, 16)
    for wrong in ("", "0", "1,,2", "-1", "1025", "9999999", "x"):
        with pytest.raises(ConfigError, match="concurrency"):
            parse_levels(wrong)


def test_prompts_differ_and_repeat_by_seed() -> None:
    first, again = Random(1), Random(1)
    texts = [prompt(first, 20) for _ in range(3)]
    assert texts == [prompt(again, 20) for _ in range(3)] and len(set(texts)) == 3


@pytest.mark.parametrize(
    ("line", "chunk"),
    [
        (b": comment\n", None),
        (b"\n", None),
        (b"data: [DONE]\n", Chunk(is_end=True)),
        (b'data: {"choices": [{"delta": {"role": "assistant"}}]}', Chunk()),
        (b'data: {"choices": [{"delta": {"content": "x"}}]}', Chunk(True)),
        (b'data: {"choices": [{"delta": {"reasoning_content": "x"}}]}', Chunk(True)),
        (b'data: {"choices": [{"text": "x"}]}', Chunk(True)),
        (b'data: {"choices": [], "usage": {"completion_tokens": 7}}', Chunk(False, 7)),
    ],
)
def test_lines_of_a_stream(line: bytes, chunk: Chunk | None) -> None:
    assert read_chunk(line) == chunk


@pytest.mark.parametrize(
    "data", [b'{"error": {"message": "full"}}', b"{", b"[]", b'{"choices": 3}']
)
def test_lines_that_end_an_answer(data: bytes) -> None:
    with pytest.raises(LinkError):
        read_chunk(b"data: " + data)


# ------------------------------------------------------------------ against an endpoint

LONG = replace(model(), spec=replace(model().spec, context_length=4096))


def test_an_endpoint_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    scripts = [saying("the quick fox")] * 5
    with gateway(lambda: FakeNode(views=(LONG,), scripts=list(scripts))) as (node, served):
        arguments = [served.url + "/v1/", "--concurrency", "1,3", "--requests", "2", "--json"]
        status = main(["bench", *arguments, "--max-tokens", "9"])
    told = json.loads(capsys.readouterr().out)
    assert status == 0 and told["model"] == "tiny" and told["url"] == served.url + "/v1"
    first, second = told["levels"]
    assert (first["requests"], second["requests"]) == (2, 3)
    assert first["tokens"] == 2 * len(spoken("the quick fox"))
    assert first["ttft_ms"]["p50"] > 0
    assert len({order.prompt_ids for order in node.orders}) == 5
    assert {order.max_tokens for order in node.orders} == {9}


def test_failures_are_counted_and_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    gone = NoRoute(model().spec.model_id, (), "nobody serves it")
    with gateway(lambda: FakeNode(views=(LONG,), scripts=[gone, saying("the fox")])) as (_, served):
        status = main(["bench", served.url, "--concurrency", "1", "--requests", "2"])
    out = capsys.readouterr().out
    assert status == 1 and "tiny at" in out and "1 times: 503: nobody serves it" in out


def test_a_server_that_is_not_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "http://127.0.0.1:9"]) == 1
    said = capsys.readouterr().err
    assert said == "swarm: no server answers at http://127.0.0.1:9/v1 (Connection refused)\n"
    assert main(["bench", "ftp://x"]) == 1
    assert "http://HOST:PORT" in capsys.readouterr().err


def test_several_models_ask_for_a_choice(capsys: pytest.CaptureFixture[str]) -> None:
    with gateway(lambda: FakeNode(views=(model("a"), model("b")))) as (_, served):
        assert main(["bench", served.url]) == 1
    assert "lists: a, b" in capsys.readouterr().err
