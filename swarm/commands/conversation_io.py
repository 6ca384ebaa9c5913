"""`swarm chat`: a conversation in the terminal that shows its route and every stall."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from swarm.commands.chat_screen_io import Screen
from swarm.commands.chat_text import (
    HELP,
    STARTING,
    awaited_text,
    help_lines,
    read_line,
    route_lines,
    summary_text,
)
from swarm.errors import ConfigError, SwarmError
from swarm.gateway.client_io import GatewayClient
from swarm.gateway.reading import Remark, Summary, Text
from swarm.gateway.status_text import missing_text, names_of, route_text

Json = dict[str, Any]
START_S = 20.0
"""A node that has just started says within this time which layers it takes."""
LOOK_S = 0.5


def wait_for_model(client: GatewayClient, wanted: str | None, say: Callable[[str], None]) -> None:
    """Until a model is covered, or the one that is wanted, or none is on its way any more."""
    given_up = time.monotonic() + START_S
    told = ""
    while not _is_covered(client.models(), wanted):
        awaited = awaited_text(client.state(), wanted)
        if awaited is None or (awaited == STARTING and time.monotonic() >= given_up):
            return
        if awaited != told:
            say(f"{awaited}; waiting for it (Ctrl-C gives up)")
            told = awaited
        time.sleep(LOOK_S)


def _is_covered(names: list[str], wanted: str | None) -> bool:
    return bool(names) if wanted is None else wanted in names


def choose_model(client: GatewayClient, wanted: str | None) -> str:
    """The model to talk to. Raises ConfigError, with what to do, when the choice is not clear, and
    RequestError, which names the models that there are, for one that cannot be asked."""
    if wanted is not None:
        return client.model(wanted)
    names = client.models()
    if len(names) == 1:
        return names[0]
    if names:
        raise ConfigError(f"several models are covered, say which: swarm chat {'|'.join(names)}")
    known = [f"{model['name']}: {missing_text(model)}" for model in client.state()["models"]]
    if known:
        raise ConfigError(f"no model is covered now ({'; '.join(known)}); let more nodes join")
    raise ConfigError("no model is known here; let a node join with --model DIR")


@dataclass
class Chat:
    """One conversation."""

    client: GatewayClient
    model: str
    screen: Screen
    settings: Json
    """Further fields of each request: temperature, max_tokens."""
    history: list[Json] = field(default_factory=list)
    last: Json = field(default_factory=dict)
    """The `swarm` object of the last answer."""

    def run(self) -> int:
        """Talk until the person ends it; 1 when the last answer could not be had."""
        self.screen.dim(f"{self.model} at {self.client.url}. {HELP}")
        failed = False
        while True:
            try:
                line = self.screen.ask()
            except EOFError:
                return int(failed)
            except KeyboardInterrupt:
                self.screen.dim("Ctrl-C stops an answer; /exit or Ctrl-D ends the chat")
                continue
            typed = read_line(line)
            if typed.command == "/exit":
                return int(failed)
            if typed.command:
                self._obey(typed.command, typed.rest)
            elif typed.rest:
                failed = not self._turn(typed.rest)

    def _obey(self, command: str, rest: str) -> None:
        match command:
            case "/clear":
                self.history.clear()
                self.screen.dim("forgotten")
            case "/route":
                self._say(lambda: route_lines(self.last, names_of(self.client.state())))
            case "/model":
                self._say(lambda: self._model(rest))
            case _:
                self._say(help_lines)

    def _say(self, lines: Any) -> None:
        try:
            for line in lines():
                self.screen.dim(line)
        except SwarmError as error:
            self.screen.trouble(str(error))

    def _model(self, wanted: str) -> list[str]:
        """The models, or the change to one: what was said stays."""
        if not wanted:
            names = self.client.models()
            return [f"{'*' if name == self.model else ' '} {name}" for name in names]
        self.model = self.client.model(wanted)
        return [f"now talking to {wanted}"]

    def _turn(self, line: str) -> bool:
        """Ask and show the answer; False when it failed. Only whole turns enter the history."""
        question = {"role": "user", "content": line}
        self.screen.begin()
        try:
            answer, summary = self._answer([*self.history, question])
        except KeyboardInterrupt:
            self.screen.end()
            self.screen.dim("stopped")
            return True
        except SwarmError as error:
            self.screen.end()
            self.screen.trouble(str(error))
            return False
        finally:
            self.screen.end()
        self.history += [question, {"role": "assistant", "content": answer}]
        if summary is not None:
            self.last = summary.swarm
            rerouted = summary.swarm.get("reroutes")
            names = names_of(self.client.state()) if rerouted else {}
            self.screen.dim(summary_text(summary, names))
        return True

    def _answer(self, messages: list[Json]) -> tuple[str, Summary | None]:
        body = {**self.settings, "model": self.model, "messages": messages}
        said, summary = "", None
        with self.client.chat(body) as stream:
            self._show_route(stream.session)
            for event in stream:
                if isinstance(event, Text):
                    said += event.text
                    self.screen.text(event.text)
                elif isinstance(event, Remark) and event.is_stall:
                    self.screen.remark(event.text)
                elif isinstance(event, Summary):
                    summary = event
        return said, summary

    def _show_route(self, session: str) -> None:
        state = self.client.state()
        running = [entry for entry in state["sessions"] if entry["id"] == session]
        if running and running[0]["route"]:
            self.screen.dim(f"route: {route_text(running[0]['route'], names_of(state))}")
