"""Tool calls in what models write, family by family, however the text is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.gateway.tool_calls import ToolReader
from swarm.gateway.tool_forms import FAMILIES, template_family
from swarm.gateway.writing import object_of

NAMES = ("weather", "clock.now")
PARIS = {"city": "Paris", "days": [1, {"x": '}]"<tool_call>\\'}]}
P = json.dumps(PARIS, ensure_ascii=False)

Calls = list[tuple[str, Any]]


def read(
    family: str, text: str, cuts: tuple[int, ...] = (), *, parallel: bool = True
) -> tuple[str, Calls]:
    """Words and calls of a text that comes in pieces, cut at these places."""
    reader = ToolReader(family, NAMES, parallel=parallel)
    ends = [*sorted(cut for cut in cuts if cut < len(text)), len(text)]
    begins = [0, *ends[:-1]]
    reads = [reader.push(text[a:b]) for a, b in zip(begins, ends, strict=True)] + [reader.flush()]
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for delta in (delta for one in reads for delta in one.calls):
        if delta.name is not None:
            assert delta.index == len(names), "calls begin in order, once each"
            names[delta.index] = delta.name
        arguments[delta.index] = arguments.get(delta.index, "") + delta.arguments
    calls = [(names[index], json.loads(arguments[index])) for index in names]
    return "".join(one.text for one in reads), calls


CASES: list[tuple[str, str, str, Calls]] = [
    ("hermes", f'<tool_call>\n{{"name": "weather", "arguments": {P}}}\n</tool_call>', "",
     [("weather", PARIS)]),
    ("hermes", f'Let me see.\n<tool_call>{{"arguments": {P}, "name": "weather"}}</tool_call>\n'
     '<tool_call>{"name": "clock.now", "arguments": {}}</tool_call>', "Let me see.",
     [("weather", PARIS), ("clock.now", {})]),
    ("hermes", '<tool_call>{"name": "clock.now"}</tool_call>', "", [("clock.now", {})]),
    ("hermes", '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Rom\\"}"}'
     "</tool_call> Done.", "Done.", [("weather", {"city": "Rom"})]),
    ("hermes", '<tool_call>{"name": "unknown", "arguments": {"a": 1}}</tool_call>', "",
     [("unknown", {"a": 1})]),
    ("hermes", "1 < 2 and <tool", "1 < 2 and <tool", []),
    ("hermes", "just <tool_call>words</tool_call> here",
     "just <tool_call>words</tool_call> here", []),
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "Rom"}}', "",
     [("weather", {"city": "Rom"})]),
    ("qwen3_coder", "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n"
     "<parameter=days>\n[1, 2]\n</parameter>\n</function>\n</tool_call>", "",
     [("weather", {"city": "Paris", "days": [1, 2]})]),
    ("glm", "Hm.<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
     "</tool_call>", "Hm.", [("weather", {"city": "Paris"})]),
    ("mistral", f'[TOOL_CALLS][{{"name": "weather", "arguments": {P}}},'
     '{"name": "clock.now", "arguments": {}}]', "", [("weather", PARIS), ("clock.now", {})]),
    ("mistral", f"[TOOL_CALLS]weather[ARGS]{P}[TOOL_CALLS]clock.now[ARGS]{{}}", "",
     [("weather", PARIS), ("clock.now", {})]),
    ("mistral", "[TOOL_CALLS]nothing", "[TOOL_CALLS]nothing", []),
    ("llama3", f'{{"name": "weather", "parameters": {P}}}', "", [("weather", PARIS)]),
    ("llama3", f'\n{{"type": "function", "name": "weather", "parameters": {P}}}; '
     '{"name": "clock.now", "parameters": {}}', "", [("weather", PARIS), ("clock.now", {})]),
    ("llama3", f'<|python_tag|>{{"name": "weather", "parameters": {P}}}', "",
     [("weather", PARIS)]),
    ("llama3", '{"name": "Ann", "parameters": {"age": 3}}',
     '{"name": "Ann", "parameters": {"age": 3}}', []),
    ("llama3", '{"answer": [1, 2]} and so on', '{"answer": [1, 2]} and so on', []),
    ("llama3", 'Look: {"name": "weather", "parameters": {}}',
     'Look: {"name": "weather", "parameters": {}}', []),
    ("granite", f'<|tool_call|>[{{"name": "weather", "arguments": {P}}}]', "",
     [("weather", PARIS)]),
    ("phi4", f'<|tool_call|>[{{"name": "weather", "arguments": {P}}}]<|/tool_call|>', "",
     [("weather", PARIS)]),
    ("phi4", f'functools[{{"name": "weather", "arguments": {P}}}]', "", [("weather", PARIS)]),
    ("deepseek", "Ok<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
     '```json\n{"city": "Rom"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>', "Ok",
     [("weather", {"city": "Rom"})]),
    ("deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
     '{"city": "Rom"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>clock.now<｜tool▁sep｜>{}'
     "<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "",
     [("weather", {"city": "Rom"}), ("clock.now", {})]),
    ("lfm2", '<|tool_call_start|>[weather(city="Rom", days=[1]), clock.now()]<|tool_call_end|>',
     "", [("weather", {"city": "Rom", "days": [1]}), ("clock.now", {})]),
    ("lfm2", "<|tool_call_start|>[__import__('os')]<|tool_call_end|>",
     "<|tool_call_start|>[__import__('os')]<|tool_call_end|>", []),
]  # fmt: skip


@pytest.mark.parametrize(("family", "text", "words", "calls"), CASES)
def test_calls_are_told_from_words(family: str, text: str, words: str, calls: Calls) -> None:
    assert read(family, text) == (words, calls)
    every = tuple(range(1, len(text)))
    assert read(family, text, every) == (words, calls)


@given(case=st.sampled_from(CASES), cuts=st.sets(st.integers(1, 250), max_size=6))
def test_the_way_the_text_is_cut_changes_nothing(case: Any, cuts: set[int]) -> None:
    family, text, words, calls = case
    assert read(family, text, tuple(cuts)) == (words, calls)


@given(
    family=st.sampled_from(sorted(FAMILIES)),
    parts=st.lists(
        st.sampled_from(
            ["<tool_call>", "</tool_call>", "{", "}", "[", "]", '"', "name", '"name":', "\\", ",",
             '"arguments":', "weather", "[TOOL_CALLS]", "<|python_tag|>", "<|tool_call|>", " x ",
             "functools", "<function=a>", "<arg_key>", ":", "1", "null", "<｜tool▁calls▁begin｜>",
             "<|tool_call_start|>", "(", ")", "="]
        ),
        max_size=30,
    ),
)  # fmt: skip
def test_whatever_a_model_writes_is_read_to_its_end(family: str, parts: list[str]) -> None:
    reader = ToolReader(family, NAMES)
    for part in parts:
        for letter in part:
            reader.push(letter)
    reader.flush()
    assert reader.count <= len(parts)


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("family", "text", "values"),
    [
        ("qwen3_coder", "<tool_call><function=weather><parameter=city>{}</parameter></function>"
         "</tool_call>", [DEEP, "NaN", '"\\ud800"']),
        ("glm", "<tool_call>weather<arg_key>city</arg_key><arg_value>{}</arg_value></tool_call>",
         [DEEP, "NaN", '"\\ud800"']),
    ],
)  # fmt: skip
def test_a_value_that_is_no_json_for_clients_is_text(
    family: str, text: str, values: list[str]
) -> None:
    for value in values:
        assert read(family, text.format(value)) == ("", [("weather", {"city": value})])


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("mistral", "[TOOL_CALLS]" + DEEP),
        ("mistral", '[TOOL_CALLS]weather{"city": ' + DEEP),
        ("mistral", '[TOOL_CALLS]weather{"city": NaN}'),
        ("mistral", '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "\\ud800"}}]'),
        ("lfm2", "<|tool_call_start|>[weather(city=1e999)]<|tool_call_end|>"),
        ("lfm2", r"<|tool_call_start|>[weather(city='\ud800')]<|tool_call_end|>"),
        ("hermes", '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'),
    ],
)
def test_a_call_that_clients_could_not_read_is_words(family: str, text: str) -> None:
    assert read(family, text) == (text, [])


def test_lone_marks_of_keys_are_passed_once() -> None:
    marks = "<arg_key></arg_key><arg_value>" * 20_000 + "<arg_key>a</arg_key>" * 20_000
    text = f"<tool_call>weather {marks}</tool_call>"
    assert read("glm", text) == ("", [("weather", {})])
    pair = "<arg_key>city</arg_key>\n<arg_value>Rom</arg_value>"
    text = f"<tool_call>weather<arg_key>x</arg_key>{pair}</tool_call>"
    assert read("glm", text) == ("", [("weather", {"city": "Rom"})])


def test_arguments_that_are_no_object_are_none_where_a_client_wants_one() -> None:
    assert object_of('{"city": "Rom"}') == {"city": "Rom"}
    for written in ("", "5", '{"city"', DEEP, '{"city": NaN}', '{"city": "\\ud800"}'):
        assert object_of(written) == {}


def test_arguments_come_while_they_are_written() -> None:
    reader = ToolReader("hermes", NAMES)
    assert not reader.push('<tool_call>{"name": "weather", ').calls
    first = reader.push('"arguments": {"city": "Pa').calls
    assert [(d.name, d.arguments) for d in first] == [("weather", '{"city": "Pa')]
    second = reader.push('ris"}').calls
    assert [(d.name, d.arguments) for d in second] == [(None, 'ris"}')]


def test_one_call_is_all_there_is_where_only_one_may_come() -> None:
    call = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'
    assert read("hermes", call * 2 + "more", parallel=False) == ("", [("weather", {})])
    reader = ToolReader("hermes", NAMES, parallel=False)
    reader.push(call)
    assert reader.is_complete


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ("{% for message in messages %}{{ message.content }}{% endfor %}", None),
        ("{% if tools %}<tools></tools> within <tool_call></tool_call>{% endif %}", "hermes"),
        ("{{ tools }}<tool_call>\n<function=x>", "qwen3_coder"),
        ("{{ tools }}<tool_call>{name}<arg_key>k</arg_key></tool_call>", "glm"),
        ("[AVAILABLE_TOOLS]{{ tools }}[TOOL_CALLS]", "mistral"),
        ('{{ tools }}"parameters" <|start_header_id|>ipython', "llama3"),
        ("{{ tools }}<|tool_call|>", "granite"),
        ("{{ tools }}<｜tool▁calls▁begin｜>", "deepseek"),
        ("{{ tools }} in a way of tomorrow", None),
    ],
)
def test_a_template_shows_its_family(template: str, family: str | None) -> None:
    assert template_family(template) == family
