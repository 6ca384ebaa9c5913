"""The texts of a chat: what a person may type, and answers cut where they can be shown. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from swarm.gateway.reading import Summary
from swarm.gateway.status_text import route_text
from swarm.notes import printable

Json = dict[str, Any]
COMMANDS = {
    "/help": "shows this",
    "/route": "shows where the last answer came from, and every loss on its way",
    "/model": "shows the models; with a name after it, goes on with that one",
    "/clear": "forgets what was said",
    "/exit": "ends the chat, as Ctrl-D does",
}
ALIASES = {"/reset": "/clear", "/quit": "/exit", "/?": "/help"}
HELP = "/help shows what can be typed, Ctrl-C stops an answer, /exit ends the chat"
FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
TAB = " " * 4
STARTING = "the node has no layers yet"


@dataclass(frozen=True, slots=True)
class Typed:
    """A line: a question, or a command with what follows it."""

    command: str
    rest: str


def read_line(line: str) -> Typed:
    """`command` is empty for a question, and `/help` for a command that is not known."""
    line = line.strip()
    if not line.startswith("/"):
        return Typed("", line)
    word, _, rest = line.partition(" ")
    command = ALIASES.get(word, word)
    return Typed(command if command in COMMANDS else "/help", rest.strip())


def help_lines() -> list[str]:
    lines = [f"{command:<8} {what}" for command, what in COMMANDS.items()]
    return [*lines, f"{'Ctrl-C':<8} stops an answer, and goes on with the chat"]


def awaited_text(state: Json, wanted: str | None) -> str | None:
    """What a chat may wait for where no model, or not the one that is wanted, is covered yet.

    `state`: as the gateway tells it. None: nothing is on its way.
    """
    loading = {
        str(shard["model"])
        for node in state["nodes"]
        for shard in node["shards"]
        if shard["state"] != "serving" and wanted in {None, shard["model"]}
    }
    if loading:
        return f"{', '.join(sorted(loading))} is being loaded"
    own = next((node for node in state["nodes"] if node["self"]), None)
    if own is not None and own["memory_bytes"] and not own["shards"]:
        return STARTING
    return None


def clean(text: str) -> str:
    """An answer's text, which somebody else's machine chose, without what steers a terminal."""
    return "\n".join(printable(line.replace("\t", TAB)) for line in text.split("\n"))


def split_finished(text: str) -> tuple[str, str]:
    """What of a Markdown text cannot change any more, and the rest.

    Cut after the last blank line that is not inside a code block.
    """
    cut = position = 0
    fence = ""
    for line in text.splitlines(keepends=True):
        position += len(line)
        found = FENCE.match(line)
        if found and not fence:
            fence = found.group(1)
        elif found and line.strip().startswith(fence) and not line.strip().strip(fence[0]):
            fence = ""
        elif not fence and not line.strip() and line.endswith("\n"):
            cut = position
    return text[:cut], text[cut:]


def tail(text: str, lines: int) -> str:
    """The last lines that fit: what is above is shown in full when it is finished."""
    kept = text.splitlines()
    return text if len(kept) <= lines else "\n".join(["…", *kept[-(lines - 1) :]])


def summary_text(event: Summary, names: dict[str, str]) -> str:
    """How an answer came about: tokens, the first one's time, losses, and whether it is exact."""
    way = event.swarm
    words = [f"{event.usage.get('completion_tokens', 0)} tokens"]
    if way.get("ttft_ms") is not None:
        words.append(f"first after {way['ttft_ms']:.0f} ms")
    if way.get("reroutes"):
        stalls = ", ".join(f"{stall:.0f} ms" for stall in way.get("stall_ms", []))
        words.append(f"{way['reroutes']} reroutes, stalled {stalls}")
        words.append(f"now over {route_text(way['route'], names)}")
    if way.get("exact") is False:
        words.append("not bit-exact: a replacement of another kind took part")
    return "; ".join(words)


def route_lines(way: Json, names: dict[str, str]) -> list[str]:
    """For `/route`: the `swarm` object of the last answer."""
    if not way.get("route"):
        return ["no answer has come yet"]
    lines = [f"the last answer came over {route_text(way['route'], names)}"]
    reroutes = way.get("reroutes", 0)
    if reroutes:
        stalls = ", ".join(f"{stall:.0f} ms" for stall in way.get("stall_ms", []))
        times = "once" if reroutes == 1 else f"{reroutes} times"
        lines.append(f"it was re-routed {times}, with pauses of {stalls}")
    else:
        lines.append("no machine was lost on its way")
    exact = way.get("exact") is not False
    lines.append("every token is exact" if exact else "a replacement of another kind took part")
    return lines
