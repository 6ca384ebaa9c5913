"""`swarm chat`: a conversation in the terminal that shows its route and every stall."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.text import Text as Line

from swarm.errors import ConfigError, SwarmError
from swarm.gateway.client_io import GatewayClient
from swarm.gateway.reading import Remark, Summary, Text
from swarm.gateway.status_text import missing_text, names_of, route_text

Json = dict[str, Any]

HELP = "/exit ends the chat, /reset forgets what was said, Ctrl-C stops an answer"


def choose_model(client: GatewayClient, wanted: str | None) -> str:
    """The model to talk to. Raises ConfigError, with what to do, when the choice is not clear."""
    if wanted is not None:
        return wanted
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
    """One conversation. `ask` reads a line from the person and raises EOFError at the end."""

    client: GatewayClient
    model: str
    console: Console
    ask: Callable[[], str]
    settings: Json
    """Further fields of each request: temperature, max_tokens."""
    history: list[Json] = field(default_factory=list)

    def run(self) -> int:
        """Talk until the person ends it; 1 when the last answer could not be had."""
        self._dim(f"{self.model} at {self.client.url}. {HELP}")
        failed = False
        while True:
            try:
                line = self.ask().strip()
            except (EOFError, KeyboardInterrupt):
                self.console.print()
                return int(failed)
            if line == "/exit":
                return int(failed)
            if line == "/reset":
                self.history.clear()
                self._dim("forgotten")
            elif line.startswith("/"):
                self._dim(HELP)
            elif line:
                failed = not self._turn(line)

    def _turn(self, line: str) -> bool:
        """Ask and show the answer; False when it failed. Only whole turns enter the history."""
        question = {"role": "user", "content": line}
        try:
            answer = self._answer([*self.history, question])
        except KeyboardInterrupt:
            self.console.print()
            self._dim("stopped")
            return True
        except SwarmError as error:
            self.console.print()
            self.console.print(Line(str(error), style="red"))
            return False
        self.history += [question, {"role": "assistant", "content": answer}]
        return True

    def _answer(self, messages: list[Json]) -> str:
        body = {**self.settings, "model": self.model, "messages": messages}
        said = ""
        with self.client.chat(body) as stream:
            self._show_route(stream.session)
            for event in stream:
                if isinstance(event, Text):
                    said += event.text
                    self._write(event.text)
                elif isinstance(event, Remark) and event.is_stall:
                    self.console.print(Line(f" [{event.text}] ", style="yellow"), end="")
                elif isinstance(event, Summary):
                    self.console.print()
                    self._dim(self._summary(event))
        return said

    def _show_route(self, session: str) -> None:
        state = self.client.state()
        running = [entry for entry in state["sessions"] if entry["id"] == session]
        if running and running[0]["route"]:
            self._dim(f"route: {route_text(running[0]['route'], names_of(state))}")

    def _summary(self, event: Summary) -> str:
        way = event.swarm
        words = [f"{event.usage.get('completion_tokens', 0)} tokens"]
        if way.get("ttft_ms") is not None:
            words.append(f"first after {way['ttft_ms']:.0f} ms")
        if way.get("reroutes"):
            stalls = ", ".join(f"{stall:.0f} ms" for stall in way.get("stall_ms", []))
            words.append(f"{way['reroutes']} reroutes, stalled {stalls}")
            words.append(f"now over {route_text(way['route'], names_of(self.client.state()))}")
        if way.get("exact") is False:
            words.append("not bit-exact: a replacement of another kind took part")
        return "; ".join(words)

    def _write(self, text: str) -> None:
        self.console.print(Line(text), end="", soft_wrap=True)

    def _dim(self, text: str) -> None:
        self.console.print(Line(text, style="dim"))
