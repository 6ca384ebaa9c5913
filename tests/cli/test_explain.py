"""`swarm explain` and the endpoint behind it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from background import gateway, save_gateway
from fake_node import FakeNode, model

from swarm.cli import main
from swarm.commands.explain import reasons
from swarm.terms import LayerRange


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def explain(
    capsys: pytest.CaptureFixture[str], home: Path, node: FakeNode | Any, *arguments: str
) -> tuple[int, str]:
    with gateway(lambda: node) as (_, served):
        save_gateway(home, served.url)
        status = main(["explain", "--home", str(home), *arguments])
    out, err = capsys.readouterr()
    return status, out + err


def test_routes_are_shown_with_what_they_are_made_of(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, text = explain(capsys, tmp_path, FakeNode())
    assert status == 0
    assert "tiny: 512 tokens in, 256 out" in text
    assert "1. anna 0:2 → bert 2:4: first token 300 ms, then 10.0 ms each" in text
    assert "2. anna 0:2 → cccccccc 2:4" in text
    assert "Route 2 costs 0 ms more over 64 tokens" in text


def test_as_json_and_in_number(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, text = explain(
        capsys, tmp_path, FakeNode(), "tiny", "--json", "--routes", "1", "--prompt-tokens", "7"
    )
    told = json.loads(text)
    assert status == 0 and told["prompt_tokens"] == 7 and len(told["routes"]) == 1
    hop = told["routes"][0]["hops"][1]
    assert (hop["name"], hop["start"], hop["compute_ms"], hop["once_prefill_ms"]) == (
        "bert", 2, 4.0, 100.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("views", "arguments", "says"),
    [
        ((), (), "no model is known here"),
        ((model(missing=(LayerRange(1, 2),)),), (), "missing layers 1:2"),
        ((model("a"), model("b")), (), "several models are covered, say which: a, b"),
        ((model("a"),), ("c",), "no model 'c'"),
    ],
)
def test_what_cannot_be_explained_is_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, views: Any, arguments: Any, says: str
) -> None:
    status, text = explain(capsys, tmp_path, FakeNode(views=views), *arguments)
    assert status == 1 and says in text and text.count("\n") == 1


@pytest.mark.parametrize(
    ("query", "says"),
    [("prompt_tokens=0", "from 1 to"), ("routes=9", "from 1 to 8"), ("nonsense=1", "unknown field"),
     ("max_tokens=²", "must be a number"), ("prompt_tokens=" + "9" * 5000, "must be a number")],
)  # fmt: skip
def test_a_wrong_question_is_refused(query: str, says: str) -> None:
    import http.client

    with gateway(FakeNode) as (_, served):
        from urllib.parse import quote

        connection = http.client.HTTPConnection(served.address.host, served.address.port)
        connection.request("GET", f"/swarm/explain?{quote(query, safe='=&')}")
        answer = connection.getresponse()
        body = json.loads(answer.read())
        connection.close()
    assert answer.status == 400 and says in body["error"]["message"]


def test_the_largest_difference_is_named_first() -> None:
    hop = {"queue_ms": 0.0, "compute_ms": 5.0, "link_ms": 1.0, "once_prefill_ms": 10.0,
           "once_rows_ms": 0.0, "once_dial_ms": 0.0}  # fmt: skip
    slow = hop | {"compute_ms": 4.0, "link_ms": 9.0}
    rest = {"expected_tokens": 10, "back_ms": 0.0}
    first = {"total_ms": 70.0, "hops": [hop], **rest}
    other = {"total_ms": 140.0, "hops": [slow], **rest}
    assert reasons([first, other]) == [
        "Route 2 costs 70 ms more over 10 tokens: 80 ms more for the links, "
        "10 ms less for computing."
    ]
    assert reasons([first]) == ["There is no other route."]
