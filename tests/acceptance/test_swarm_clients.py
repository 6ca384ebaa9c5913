"""The real clients of four APIs, and requests that schemathesis makes, against a swarm whose nodes
are killed and restarted all the time.

Every answer must be the one of the undisturbed swarm, whoever asks and in whatever form.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import openapi_cases
import pytest
from api_clients import MESSAGES, MODEL, Clients
from schemathesis import GenerationMode
from swarm_procs import Node, NodePlan, Swarm

pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.slow]

KILLS = 6
KILL_EVERY_S = 5.0
"""After the last one killed serves again: two of the three hold the model at any time."""
TOKENS_MAX = 8
"""Of an answer to a request that schemathesis makes: it is computed."""
STARTING_S = 300.0
"""One node after the other: three at once would take turns at importing."""


class Killer:
    """Kills one holder after the other and starts it again, until it is told to end."""

    def __init__(self, swarm: Swarm, names: tuple[str, ...]) -> None:
        self._swarm = swarm
        self._names = names
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.kills = 0
        self.error: BaseException | None = None

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while not self._ended.wait(KILL_EVERY_S):
                name = self._names[self.kills % len(self._names)]
                self._swarm.nodes[name].kill()
                self._swarm.restart(self._swarm.nodes[name])
                self._swarm.await_ready(STARTING_S)
                self.kills += 1
        except BaseException as error:  # noqa: BLE001 - raised again by whoever ends the thread
            self.error = error


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Iterator[Swarm]:
    """A gateway without layers, and three holders of which any two hold the whole model."""
    with Swarm(tmp_path_factory.mktemp("clients")) as made:
        made.start(NodePlan("gateway"))
        for name, layers in (("a", "0:20"), ("b", "10:30"), ("c", "0:30")):
            made.start(NodePlan(name, smollm2, layers))
            made.await_ready(STARTING_S)
        yield made


@pytest.fixture(scope="module")
def gateway(swarm: Swarm) -> Node:
    return swarm.nodes["gateway"]


@pytest.mark.timeout(900)
def test_every_client_gets_the_same_answer_while_nodes_are_killed(
    swarm: Swarm, gateway: Node
) -> None:
    with closing(Clients(gateway.gateway.url)) as clients:
        undisturbed = clients.chat()
        assert undisturbed.strip()
        for way in clients.ways():
            assert way() == undisturbed, way.__name__
        answers = 0
        with Killer(swarm, ("a", "b", "c")) as killer:
            while killer.kills < KILLS and killer.error is None:
                for way in clients.ways():
                    assert way() == undisturbed, way.__name__
                    answers += 1
        assert answers >= len(clients.ways())
    assert any(note["event"] == "session.reroute" for note in gateway.notes)
    swarm.await_idle()


@pytest.mark.timeout(900)
def test_answers_are_what_the_document_says_while_nodes_are_killed(
    swarm: Swarm, gateway: Node
) -> None:
    """No answer but what `/openapi.json` describes, and none of them an error of the server."""
    url = gateway.gateway.url
    short = openapi_cases.load(url, (MODEL,), TOKENS_MAX)
    whole = openapi_cases.load(url, (MODEL,))
    answered = set()
    with Killer(swarm, ("a", "b", "c")) as killer:
        while not killer.kills and killer.error is None:
            for path, method, mode in openapi_cases.CASES:
                schema = short if mode is GenerationMode.POSITIVE else whole
                found = openapi_cases.statuses(url, schema[path][method], mode)
                answered |= {(path, status) for status in found}
    assert {("/v1/completions", 200), ("/v1/responses", 200)} <= answered
    swarm.await_ready(STARTING_S)
    swarm.await_idle()


def test_a_client_that_hangs_up_frees_every_hop_at_once(swarm: Swarm, gateway: Node) -> None:
    """Within a second, by the counters of every node."""
    with closing(Clients(gateway.gateway.url)) as clients:
        for hang_up in (_openai_stream, _ollama_stream, _anthropic_stream):
            hang_up(clients)
            swarm.await_idle(deadline_s=1.0)


def _openai_stream(clients: Clients) -> None:
    stream = clients.openai.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=2000, stream=True, n=2
    )
    with stream:
        for _ in zip(range(8), stream, strict=False):
            pass


def _ollama_stream(clients: Clients) -> None:
    parts = clients.ollama.chat(MODEL, MESSAGES, options={"num_predict": 2000}, stream=True)
    for _ in zip(range(4), parts, strict=False):
        pass
    parts.close()  # type: ignore[attr-defined]


def _anthropic_stream(clients: Clients) -> None:
    with clients.anthropic.messages.stream(
        model=MODEL, messages=MESSAGES, max_tokens=2000
    ) as stream:
        for _ in zip(range(4), stream.text_stream, strict=False):
            pass
