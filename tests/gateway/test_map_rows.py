"""The map's pure parts by tables: memory, layout, order, strips, traces, text that fits."""

from __future__ import annotations

import map_states
import pytest
from map_states import IDS, LARGE, RUNNING, SMALL
from rich.text import Text

from swarm.gateway.map_cover import (
    Column,
    Scale,
    columns,
    cover_lines,
    former_lane,
    lane,
    missing_said,
)
from swarm.gateway.map_layout import Bottom, plan, widths
from swarm.gateway.map_look import PLAIN, cut, fit, milliseconds, size
from swarm.gateway.map_memory import LINGER_S, MapMemory
from swarm.gateway.map_rows import (
    Sort,
    event_line,
    link_lines,
    matches,
    node_lines,
    session_line,
    sorted_nodes,
)
from swarm.gateway.map_scene import Choices, choose_next, chosen, key_line, scene, top_line
from swarm.gateway.map_trace import trace_lines
from swarm.gateway.status_text import layers_text


def seen(*events: tuple[str, map_states.Json], now: float = 0.0) -> MapMemory:
    memory = MapMemory()
    memory.take("snapshot", map_states.whole(), now)
    for name, data in events:
        memory.take(name, data, now)
    return memory


def state_model(memory: MapMemory, key: str) -> map_states.Json:
    assert memory.state is not None
    return next(model for model in memory.state["models"] if model["id"] == key)


# ---------------------------------------------------------------- memory


def test_a_loss_and_its_repair_stay_in_sight_for_a_while() -> None:
    memory = seen(*map_states.loss())
    assert memory.is_lost(RUNNING, IDS["bert"]) and not memory.is_lost(RUNNING, IDS["anna"])
    for name, data in map_states.recovery():
        memory.take(name, data, 1.0)
    reroute = memory.reroute(RUNNING)
    assert reroute is not None and list(reroute.former) == map_states.FIRST
    assert not memory.forget_past(LINGER_S - 0.1)
    assert memory.forget_past(1.0 + LINGER_S)
    assert memory.reroute(RUNNING) is None and not memory.is_lost(RUNNING, IDS["bert"])


def test_an_answer_that_ended_lingers_and_then_goes() -> None:
    memory = seen()
    ended = map_states.session(RUNNING, map_states.FIRST, phase="done", outcome="stop")
    change = {"gone": {"sessions": [{"id": RUNNING}]}, "changed": {"recent": [ended]}}
    memory.take("change", change, 1.0)
    assert RUNNING in [session["id"] for session in memory.sessions]
    memory.forget_past(1.0 + LINGER_S)
    assert RUNNING not in [session["id"] for session in memory.sessions]
    assert RUNNING in [session["id"] for session in memory.traceable]


def test_the_pace_is_that_of_the_last_seconds() -> None:
    memory = seen()
    assert memory.pace(RUNNING) is None
    for second in range(1, 5):
        moved = {"id": RUNNING, "position": 114 + 20 * second}
        memory.take("change", {"changed": {"sessions": [moved]}}, float(second))
    assert memory.pace(RUNNING) == 20.0


def test_what_a_newer_node_says_and_changes_before_a_snapshot_are_passed_over() -> None:
    memory = MapMemory()
    memory.take("change", {"values": {"name": "x"}}, 0.0)
    memory.take("weather", {"is": "fine"}, 0.0)
    assert memory.state is None
    memory.take("lost", {"events": 7}, 0.0)
    assert memory.missed == 7


def test_the_event_log_is_bounded_and_its_words_are_inert() -> None:
    memory = seen()
    for number in range(600):
        memory.take("note", {"at": number, "event": "x", "detail": "\x1b[31m" * 200}, 0.0)
    assert len(memory.happenings) == 500
    assert "\x1b" not in memory.happenings[0].detail
    assert len(memory.happenings[0].detail) < 300


# ---------------------------------------------------------------- layout


@pytest.mark.parametrize("size", [(40, 10), (80, 24), (110, 30), (120, 40), (200, 60), (300, 12)])
@pytest.mark.parametrize("crowd", [0, 3, 500])
def test_panes_fill_the_terminal_and_all_are_seen(size: tuple[int, int], crowd: int) -> None:
    width, height = size
    names = ("nodes", "cover", "sessions", "links", "events", "trace")
    laid = plan(width, height, dict.fromkeys(names, crowd), Bottom.EVENTS)
    places = laid.places
    assert all(place.height >= 1 and place.width >= 1 for place in places.values())
    whole = [place.height for place in places.values() if place.is_whole]
    halves = [place.height for place in places.values() if not place.is_whole]
    assert sum(whole) + sum(halves[::2]) == height
    left, right = widths(width)
    if laid.columns == 2:
        assert left + right + 1 == width
        assert set(places) == set(names)
    else:
        assert set(places) == {"nodes", "cover", "sessions", "events"}


# ---------------------------------------------------------------- nodes


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        (Sort.NAME, "anna bert cleo dora"),
        (Sort.STATE, "bert anna cleo dora"),
        (Sort.SPEED, "anna cleo bert dora"),
        (Sort.MEMORY, "cleo anna bert dora"),
        (Sort.RTT, "anna cleo dora bert"),
    ],
)
def test_nodes_are_ordered_by_what_was_asked_for(sort: Sort, order: str) -> None:
    state = map_states.whole()
    state["nodes"][1]["state"] = "suspect"
    assert " ".join(node["name"] for node in sorted_nodes(state, sort)) == order


def test_who_has_no_figure_comes_last_either_way() -> None:
    state = map_states.whole()
    state["nodes"][2]["shards"] = []
    for backwards in (False, True):
        assert sorted_nodes(state, Sort.SPEED, backwards=backwards)[-1]["name"] == "cleo"


@pytest.mark.parametrize("width", [20, 60, 80, 120, 200])
def test_lines_never_are_wider_than_the_terminal(width: int) -> None:
    memory = seen(*map_states.loss(), *map_states.recovery())
    for pane in scene(memory, Choices(), width).values():
        assert all(line.cell_len <= width for line in pane.lines), pane.name
    assert top_line(memory, Choices(), "no answer " * 20, width).cell_len <= width
    assert key_line(Choices(), width).cell_len <= width


def test_a_node_line_says_what_the_node_is_and_serves() -> None:
    memory = seen()
    assert memory.state is not None
    lines = node_lines(memory, memory.state["nodes"], 140, PLAIN)
    assert [line.plain.split()[0] for line in lines] == ["node", "*anna", "bert", "cleo", "dora"]
    assert "smollm2 20:30 H - big-one 0:48 E" in lines[3].plain
    assert "avoided" in lines[4].plain and "(loading)" in lines[4].plain


@pytest.mark.parametrize(
    ("cuts", "text"), [([], "3:12"), ([5], "3:5|5:12"), ([5, 9], "3:5|5:9|9:12")]
)
def test_layers_are_told_by_device(cuts: list[int], text: str) -> None:
    assert layers_text({"start": 3, "stop": 12, "cuts": cuts}) == text
    assert layers_text({"start": 3, "stop": 12}) == "3:12"


@pytest.mark.parametrize(
    ("wanted", "found"), [("", True), ("BERT", True), ("bert alive", True), ("bert dead", False)]
)
def test_a_filter_wants_all_its_words(wanted: str, found: bool) -> None:
    assert matches(wanted, "bert", "alive") is found


# ---------------------------------------------------------------- layers


@pytest.mark.parametrize(
    ("layers", "width", "columns_drawn"), [(30, 70, 60), (30, 30, 30), (30, 20, 20), (80, 70, 70),
                                          (4, 200, 16), (1, 1, 1)]
)  # fmt: skip
def test_every_layer_is_below_some_column(layers: int, width: int, columns_drawn: int) -> None:
    scale = Scale(layers, width)
    assert scale.columns == columns_drawn
    shown = {layer for column in range(scale.columns) for layer in scale.layers_of(column)}
    assert shown == set(range(layers))


def test_a_gap_of_one_layer_is_seen_where_layers_share_a_column() -> None:
    memory = seen()
    assert memory.state is not None
    memory.state["nodes"][2]["shards"][1]["stop"] = 47
    memory.state["nodes"][3]["shards"][1] |= {"start": 48, "state": "serving"}
    model = state_model(memory, LARGE)
    stand = columns(memory.state, model, Scale(80, 20))
    assert [column.replicas == () for column in stand] == [i == 11 for i in range(20)]
    assert "!" in cover_lines(memory, model, 31, 3, PLAIN)[0].plain


def test_replicas_stand_on_each_other_the_fastest_below() -> None:
    memory = seen()
    assert memory.state is not None
    stand = columns(memory.state, state_model(memory, SMALL), Scale(30, 30))
    assert stand[0] == Column((0,), 0) and stand[10] == Column((1, 2), 0)
    lines = cover_lines(memory, state_model(memory, SMALL), 40, 3, PLAIN)
    assert lines[0].plain == f"        2 {' ' * 10}{':' * 10}{' ' * 10}"
    assert lines[1].plain == f"        1 {'#' * 10}{'=' * 10}{'#' * 10}"
    assert lines[2].plain.split() == ["0", "5", "10", "15", "20", "25"]


def test_more_replicas_than_height_are_marked() -> None:
    memory = seen()
    lines = cover_lines(memory, state_model(memory, SMALL), 40, 1, PLAIN)
    assert lines[0].plain == f"        1 {'#' * 10}{'+' * 10}{'#' * 10}"


def test_the_dead_cover_nothing() -> None:
    memory = seen(*map_states.loss())
    assert memory.state is not None
    assert columns(memory.state, state_model(memory, SMALL), Scale(30, 30))[10].replicas == (2,)


def test_a_route_lies_below_its_layers() -> None:
    memory = seen()
    assert memory.state is not None
    line = lane(memory, memory.state["sessions"][0], 30, 40, PLAIN)
    assert line.plain == " a3f2b1c9 anna----->bert----->cleo----->"


def test_a_lost_hop_is_crossed_out_until_another_has_its_place() -> None:
    memory = seen(*map_states.loss())
    assert memory.state is not None
    line = lane(memory, memory.state["sessions"][0], 30, 40, PLAIN)
    assert line.plain == " a3f2b1c9 anna----->bertxxxxxxcleo----->"
    for name, data in map_states.recovery():
        memory.take(name, data, 1.0)
    session = memory.state["sessions"][0]
    assert lane(memory, session, 30, 40, PLAIN).plain == " a3f2b1c9 anna----->dora----->cleo----->"
    before = former_lane(memory, session, 30, 40, PLAIN)
    assert before.plain == "   before anna----->bertxxxxxxcleo----->"


@pytest.mark.parametrize(
    ("covered", "missing", "said"),
    [
        (True, [], "covered"),
        (False, [{"start": 3, "stop": 5}], "NOT COVERED: layers 3:5"),
        (False, [], "NOT COVERED: embedding or head"),
    ],
)
def test_why_a_model_cannot_be_asked(
    covered: bool, missing: list[map_states.Json], said: str
) -> None:
    assert missing_said({"covered": covered, "missing": missing}) == said


# ---------------------------------------------------------------- answers, events, traces


def test_an_answer_says_how_far_it_is_and_what_it_went_through() -> None:
    memory = seen(*map_states.loss(), *map_states.recovery())
    assert memory.state is not None
    line = session_line(memory, memory.state["sessions"][0], 100, PLAIN, is_chosen=True)
    assert line.plain.split() == [
        ">a3f2b1c9", "smollm2", "====........", "82/200", "running", "1", "reroute,", "212", "ms"
    ]  # fmt: skip


def test_events_say_when_what_and_to_whom() -> None:
    memory = seen(*map_states.loss())
    line = event_line(memory.happenings[0], 100)
    assert line.plain.startswith(" 22:13:20 session.hop_failed a3f2b1c9 node=bert2222")


def test_a_trace_adds_up_from_left_to_right() -> None:
    memory = seen()
    assert memory.state is not None
    lines = [line.plain for line in trace_lines(
        memory.state, memory.state["sessions"][0], 110, PLAIN
    )]  # fmt: skip
    assert lines[0] == " route 1 from position 34: first token 96.0, then 24.1 a token over 80"
    bars = [line[68:] for line in lines[2:]]
    ends = [len(bar.rstrip()) for bar in bars]
    assert ends == sorted(ends) and ends[-1] <= 42
    assert bars[1].strip().strip("#") == "" and bars[3].strip() == "~~"


def test_a_hop_that_said_nothing_yet_is_told_so() -> None:
    memory = seen()
    assert memory.state is not None
    session = map_states.session(RUNNING, map_states.FIRST)
    session["legs"] = [map_states.leg(map_states.FIRST, token_ms=None, wire_ms=None)]
    lines = [line.plain for line in trace_lines(memory.state, session, 80, PLAIN)]
    assert sum("nothing told yet" in line for line in lines) == 3


def test_answers_are_chosen_by_going_up_and_down() -> None:
    memory, choices = seen(), Choices()
    order = [session["id"] for session in memory.traceable]
    for step, wanted in ((0, 0), (1, 1), (1, 2), (1, 2), (-1, 1), (-1, 0), (-1, 0)):
        choices = choose_next(memory, choices, step)
        session = chosen(memory, choices)
        assert session is not None and session["id"] == order[wanted]
    assert chosen(MapMemory(), choices) is None


# ---------------------------------------------------------------- text


@pytest.mark.parametrize(
    ("text", "width", "fitted"),
    [("ab", 4, "ab  "), ("abcdef", 4, "abc."), ("日本語", 4, "日 ."), ("\x1b[0m", 5, " [0m "),
     ("ab", 0, "")],
)  # fmt: skip
def test_text_fits_exactly(text: str, width: int, fitted: str) -> None:
    assert fit(text, width) == fitted
    assert cut(Text(text), width).cell_len <= width


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "-"), (0.412, "0.41"), (12.34, "12.3"), (212.4, "212")],
)
def test_milliseconds_have_the_digits_that_count(value: float | None, said: str) -> None:
    assert milliseconds(value) == said


@pytest.mark.parametrize(
    ("count", "said"), [(5, "5B"), (2048, "2K"), (3 << 20, "3M"), (24 << 30, "24.0G")]
)
def test_sizes_are_short(count: int, said: str) -> None:
    assert size(count) == said


def test_ways_are_shown_where_not_all_links_are_direct() -> None:
    state = map_states.whole()
    state["links"] = [{**link, "kind": "direct"} for link in state["links"]]
    assert "way" not in link_lines(state, 80)[0].plain
    state["links"][0]["kind"] = "webrtc"
    lines = [line.plain for line in link_lines(state, 80)]
    assert lines[0].endswith("way")
    assert sum(line.endswith("webrtc") for line in lines[1:]) == 1
    assert all(line.endswith(("webrtc", "direct")) for line in lines[1:])
