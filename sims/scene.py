"""One moment of a simulated world as lines of a terminal: machines, coverage, answers, events."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from sims.inside import hop_states, served_layers
from sims.node import SimNode
from sims.phrases import Event
from sims.request import Outcome, Request
from sims.world import World

NAME_WIDTH = 9
STATE_WIDTH = 11
CELLS_PER_LAYER = 2
ANSWERS_MAX = 5
EVENTS_MIN = 5
LINGERS_S = 1.5
"""How long an answer that has ended stays on the screen."""
COLOURS = ("cyan", "magenta", "green", "yellow", "blue")
"""Of answers, in turn."""
MARKS = {
    "up": ("●", "green"),
    "stalled": ("◐", "yellow"),
    "asleep": ("☾", "blue"),
    "leaving": ("◌", "yellow"),
    "off": ("○", "red"),
}


def scene(world: World, title: str, events: Sequence[Event], width: int, height: int) -> Text:
    """Exactly `height` lines of at most `width` columns."""
    lines = [_title(world, title, width), _cover(world)]
    answers = _answers(world)
    room = height - len(lines) - 2 - max(1, len(answers)) - EVENTS_MIN
    lines += _machines(world, answers, max(1, room))
    lines.append(_rule("answers", width))
    lines += [_answer(world, request) for request in answers] or [Text("  none", style="dim")]
    lines.append(_rule("events", width))
    left = max(0, height - len(lines))
    lines += [_event(event) for event in events[-left:]] if left else []
    lines += [Text()] * (height - len(lines))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n").join(lines[:height])


# ---------------------------------------------------------------- machines


def state_of(world: World, node: SimNode) -> str:
    if node.machine.is_asleep:
        return "asleep"
    if not node.is_running or node.process is None:
        return "off"
    if node.process.is_stalled:
        return "stalled"
    return "leaving" if world.truth.has("leaving", node.number) else "up"


def _machines(world: World, answers: Sequence[Request], room: int) -> list[Text]:
    nodes = _most_telling(world, answers, room)
    lines = [_machine(world, node, answers) for node in nodes]
    if len(nodes) < len(world.nodes):
        lines.append(Text(f"  and {len(world.nodes) - len(nodes)} more machines", style="dim"))
    return lines


def _most_telling(world: World, answers: Sequence[Request], room: int) -> list[SimNode]:
    """All where there is room; else those in trouble and those that answers use come first."""
    if len(world.nodes) <= room:
        return world.nodes
    used = {node for request in answers if not request.is_over for node in request.hops}
    order = sorted(world.nodes, key=lambda n: (state_of(world, n) == "up", n.id not in used))
    return sorted(order[: room - 1], key=lambda node: node.number)


def _machine(world: World, node: SimNode, answers: Sequence[Request]) -> Text:
    state = state_of(world, node)
    mark, colour = MARKS[state]
    line = Text(" ")
    line.append(f"{mark} ", style=colour)
    line.append(f"{node.machine.name:<{NAME_WIDTH}}", style="bold" if state == "up" else "dim")
    line.append_text(_strip(world, node, answers, is_up=state == "up"))
    word = state if state != "up" else ("slow" if node.worker.slowness > 1 else "")
    word = "wedged" if node.worker.is_wedged and state == "up" else word
    line.append(f" {word:<{STATE_WIDTH}}", style=colour if word == state else "yellow")
    if state == "up" and hasattr(node, "io"):
        line.append_text(_opinion(world, node))
    return line


def _opinion(world: World, node: SimNode) -> Text:
    """What it believes of the others."""
    views = [view for view in node.io.snapshot().nodes if not view.is_self]
    counts = [(state, sum(v.state.value == state for v in views)) for state in ("alive", "suspect")]
    text = Text(f"sees {counts[0][1]} alive", style="dim")
    if counts[1][1]:
        text.append(f", suspects {counts[1][1]}", style="yellow")
    if any(view.penalty_s > 0 for view in views):
        text.append(f", avoids {sum(view.penalty_s > 0 for view in views)}", style="yellow")
    return text


def _strip(world: World, node: SimNode, answers: Sequence[Request], *, is_up: bool) -> Text:
    """The layers it serves; those that an answer uses now in the colour of the answer."""
    count = world.model.layer_count
    served = served_layers(node) if is_up and hasattr(node, "core") else []
    used = {
        layer: COLOURS[request.number % len(COLOURS)]
        for request in answers
        if request.route is not None and not request.is_over
        for hop in request.route.hops
        if hop.node == node.id
        for layer in range(hop.layers.start, hop.layers.stop)
    }
    text = Text()
    for layer in range(count):
        serves = any(layer in layers for layers in served)
        cell = ("█" if serves else "·") * CELLS_PER_LAYER
        text.append(cell, style=used.get(layer, "white" if serves else "dim"))
    return text


def _cover(world: World) -> Text:
    """How many running machines serve each layer."""
    text = Text(f"   {'layers':<{NAME_WIDTH}}", style="dim")
    running = [node for node in world.running() if node.is_well and hasattr(node, "core")]
    for layer in range(world.model.layer_count):
        count = sum(any(layer in layers for layers in served_layers(node)) for node in running)
        style = "bold white on red" if count == 0 else ("yellow" if count == 1 else "green")
        text.append(f"{min(count, 99):>{CELLS_PER_LAYER}}", style=style)
    text.append(" machines that serve each", style="dim")
    return text


# ---------------------------------------------------------------- answers


def _answers(world: World) -> list[Request]:
    """Those that go on, and those that ended a moment ago."""
    shown = [
        request
        for request in world.requests
        if request.ended_s is None or world.now_s - request.ended_s < LINGERS_S
    ]
    return shown[-ANSWERS_MAX:]


def _answer(world: World, request: Request) -> Text:
    colour = COLOURS[request.number % len(COLOURS)]
    line = Text(f" {request.number:>3} ", style=f"bold {colour}")
    done, wanted = len(request.tokens), request.order.max_tokens
    line.append(f"{done:>4}/{wanted:<4}", style=colour)
    line.append(f"{request.origin.machine.name} ", style="bold")
    if request.is_over:
        good = request.outcome is Outcome.FINISHED
        line.append(request.outcome.value, style="green" if good else "red")
        return line
    if request.route is None:
        line.append("seeks a route", style="yellow")
        return line
    at = walker(world, request)
    for index, hop in enumerate(request.route.hops):
        node = world.node_of(hop.node)
        style = f"reverse {colour}" if index == at else ("dim" if not node.is_well else "")
        line.append("▶" if index == at else "→", style=colour)
        line.append(f"{node.machine.name}[{hop.layers}]", style=style)
    if request.epoch > 1:
        line.append(f"  route {request.epoch}", style="yellow")
    return line


def walker(world: World, request: Request) -> int | None:
    """Which hop of its route works on the next token; None: it is on its way to the origin."""
    if request.route is None:
        return None
    due = len(request.order.prompt_ids) + len(request.tokens)
    for index, hop in enumerate(request.route.hops):
        node = world.node_of(hop.node)
        states = hop_states(node) if node.is_running and hasattr(node, "core") else []
        mine = [s.produced for s in states if s.session == request.session]
        if not mine or mine[0] < due:
            return index
    return None


# ---------------------------------------------------------------- small parts


def _title(world: World, title: str, width: int) -> Text:
    left = Text(f" {title}", style="bold")
    right = f"{world.now_s:.3f} s "
    left.append(" " * max(1, width - len(left.plain) - len(right)))
    left.append(right, style="dim")
    return left


def _rule(name: str, width: int) -> Text:
    return Text(f"── {name} ".ljust(width, "─"), style="dim")


def _event(event: Event) -> Text:
    style = "yellow" if event.is_fault else ""
    line = Text(f" {event.at_s:9.3f} ", style="dim")
    line.append(f"{event.names} ", style=f"bold {style}".strip())
    line.append(event.what, style=style)
    return line
