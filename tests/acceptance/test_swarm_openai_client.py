"""The `openai` client against a swarm of two nodes that each hold half of the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import openai
import pytest
from api_clients import Clients
from swarm_procs import Swarm

pytestmark = pytest.mark.xdist_group("processes")

MESSAGES = [{"role": "user", "content": "Name three colours."}]


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Iterator[Swarm]:
    with Swarm(tmp_path_factory.mktemp("two")) as made:
        made.start_split(smollm2, ["0:15", "15:30"])
        yield made


@pytest.fixture(scope="module", params=["a", "b"])
def client(swarm: Swarm, request: pytest.FixtureRequest) -> Iterator[openai.OpenAI]:
    """Against either node: every node's gateway serves the whole model."""
    url = swarm.nodes[request.param].gateway.url
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as made:
        yield made


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["smollm2"]


def test_chat_whole_and_streamed_say_the_same(client: openai.OpenAI) -> None:
    common = {"model": "smollm2", "messages": MESSAGES, "max_tokens": 20, "temperature": 0}
    whole = client.chat.completions.create(**common)  # type: ignore[call-overload]
    chunks = list(
        client.chat.completions.create(  # type: ignore[call-overload]
            **common, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert text.strip()
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert reasons[-1] == whole.choices[0].finish_reason
    # What is not compared is how much of the prompt was still there: the second time it is more.
    streamed = chunks[-1].usage
    assert streamed.prompt_tokens == whole.usage.prompt_tokens
    assert streamed.completion_tokens == whole.usage.completion_tokens
    assert whole.usage.completion_tokens <= 20
    assert [(hop["start"], hop["stop"]) for hop in whole.swarm["route"]] == [(0, 15), (15, 30)]


def test_a_seed_repeats_a_sampled_answer(client: openai.OpenAI) -> None:
    def sample(seed: int) -> str:
        answer = client.completions.create(
            model="smollm2", prompt="The sea", max_tokens=16, temperature=0.9, seed=seed
        )
        return answer.choices[0].text

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)


def test_stop_ends_before_the_string(client: openai.OpenAI) -> None:
    common = {"model": "smollm2", "prompt": "1, 2, 3, 4,", "max_tokens": 24, "temperature": 0}
    free = client.completions.create(**common).choices[0].text  # type: ignore[call-overload]
    word = free.strip()[4:7]
    stopped = client.completions.create(**common, stop=[word]).choices[0]  # type: ignore[call-overload]
    assert stopped.finish_reason == "stop"
    assert stopped.text == free[: free.index(word)]


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="smollm2",
        messages=MESSAGES,  # type: ignore[arg-type]
        max_tokens=5,
        temperature=0,
        logprobs=True,
        top_logprobs=3,
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == answer.usage.completion_tokens  # type: ignore[union-attr]
    for entry in logprobs.content:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token


def test_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="nobody", prompt="x")
    with pytest.raises(openai.BadRequestError, match="at most 32 answers"):
        client.completions.create(model="smollm2", prompt="x", n=33)
    with pytest.raises(openai.BadRequestError, match="8192"):
        client.completions.create(model="smollm2", prompt="x", max_tokens=9000)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model="smollm2", prompt="x", temperature=9)


def test_all_clients_get_the_same_answer(swarm: Swarm) -> None:
    """OpenAI's, Ollama's and Anthropic's, whole and streamed."""
    with closing(Clients(swarm.nodes["a"].gateway.url)) as clients:
        expected = clients.chat()
        assert expected.strip()
        assert {way.__name__: way() for way in clients.ways()} == {
            way.__name__: expected for way in clients.ways()
        }


def test_readiness_and_health(swarm: Swarm) -> None:
    gateway = swarm.nodes["b"].gateway
    assert gateway.call("GET", "/healthz")[0] == 200
    gateway.ask(model="smollm2", prompt="Rain", max_tokens=2).finish()
    assert gateway.call("GET", "/readyz?model=smollm2")[0] == 200
