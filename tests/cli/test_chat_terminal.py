"""`swarm chat` at a terminal: Markdown while it comes, history, and Ctrl-C for one answer."""

from __future__ import annotations

import asyncio
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from background import gateway
from fake_node import FakeNode, model, rerouted, saying, spoken, started

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are not there", allow_module_level=True)
import fcntl
import pty
import struct
import termios

DEADLINE_S = 30.0
ESCAPES = re.compile(r"\x1b\][^\x07]*\x07|\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>()][0-9A-B]?")


class Terminal:
    """A program in a pseudo-terminal of 100 columns."""

    def __init__(self, command: Sequence[str]) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        environment = os.environ | {"TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1"}
        environment.pop("COLUMNS", None)
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)
        self.raw = ""
        self._looked = 0
        """Letters of `text` that were waited for already."""

    @property
    def text(self) -> str:
        return ESCAPES.sub("", self.raw)

    def wait_for(self, wanted: str) -> str:
        """Until it is shown after what was waited for before; all that came in between."""
        deadline = time.monotonic() + DEADLINE_S
        while (found := self.text.find(wanted, self._looked)) < 0:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._master], [], [], max(0.0, left))
            assert ready, f"{wanted!r} was not shown: {self.text[self._looked :]}"
            self.raw += os.read(self._master, 65536).decode(errors="replace")
        began, self._looked = self._looked, found + len(wanted)
        return self.text[began : self._looked]

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def end(self) -> int:
        self.type("/exit\r")
        status = self.process.wait(DEADLINE_S)
        os.close(self._master)
        return status


@contextmanager
def chat(scripts: list[Any]) -> Iterator[tuple[Terminal, FakeNode]]:
    views = (model("tiny"), model("other"))
    with gateway(lambda: FakeNode(views=views, scripts=scripts)) as (node, served):
        command = [sys.executable, "-m", "swarm.cli", "chat", "tiny", "--url", served.url]
        terminal = Terminal(command)
        try:
            terminal.wait_for(">")
            yield terminal, node
        finally:
            terminal.process.kill()
            terminal.process.wait()


def test_markdown_reroutes_and_commands() -> None:
    text = "a **bold** word\n\nlast [name](http://x/)"
    with chat([saying(text), rerouted(spoken("the dog"), spoken(" and fox"))]) as (terminal, _):
        terminal.type("hello\r")
        shown = terminal.wait_for("tokens; first after")
        assert "a bold word" in shown and "**" not in shown.rsplit("a bold word", 1)[1]
        assert "http://x/" in shown and "\x1b]8" not in terminal.raw
        terminal.type("/route\r")
        terminal.wait_for("every token is exact")
        terminal.type("more\r")
        terminal.wait_for("stalled: b vanished")
        terminal.wait_for("1 reroutes, stalled 125 ms")
        terminal.type("/model other\r")
        terminal.wait_for("now talking to other")
        terminal.type("/model none\r")
        terminal.wait_for("there is no model 'none' here")
        assert terminal.end() == 0


def test_ctrl_c_stops_the_answer_and_not_the_chat() -> None:
    script = [started("a", "b"), *spoken("the answer that "), asyncio.Event()]
    with chat([script, saying("well")]) as (terminal, node):
        terminal.type("hello\r")
        terminal.wait_for("the answer that")
        terminal.type("\x03")
        terminal.wait_for("stopped")
        terminal.wait_for(">")
        terminal.type("\x03")
        terminal.wait_for("/exit or Ctrl-D ends the chat")
        terminal.type("\x1b[A\r")
        terminal.wait_for("well")
        assert node.orders[0].prompt_ids == node.orders[1].prompt_ids
        assert terminal.end() == 0
