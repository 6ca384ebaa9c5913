"""Request bodies: what is taken, what is refused and by which name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_node import END, spec

from swarm.config import GatewayConfig
from swarm.errors import RequestError
from swarm.gateway.calls import Call, Endpoint, orders_of
from swarm.gateway.dialects import parse
from swarm.terms import ModelSpec, Order

CONFIG = GatewayConfig()
CALL = {"id": "abc", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
HELLO = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> Call:
    body = {"model": "m", "messages": HELLO} | fields
    return parse(Endpoint.CHAT, json.dumps(body).encode(), CONFIG)


def completion(**fields: Any) -> Call:
    body = {"model": "m", "prompt": "hi"} | fields
    return parse(Endpoint.COMPLETION, json.dumps(body).encode(), CONFIG)


def order_of(
    call: Call, model: ModelSpec, prompt: tuple[int, ...], seed: int, config: GatewayConfig
) -> Order:
    """The one order of a call that asks for one answer."""
    (order,) = orders_of(call, model, [prompt], [seed], config)
    return order


def refused(call: Any, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        call(**fields)
    assert caught.value.status == 400
    return caught.value


def test_a_plain_request_has_the_defaults_of_openai() -> None:
    call = chat()
    assert (call.sampling.temperature, call.sampling.top_p, call.sampling.top_k) == (1.0, 1.0, 0)
    assert call.max_tokens is None and call.sampling.logprobs is None and not call.seed_given
    assert not (call.stream or call.include_usage or call.ignore_eos or call.return_token_ids)
    assert chat(temperature=None, stop=None, n=None, tools=None, seed=None) == call


def test_all_settings_arrive() -> None:
    call = completion(
        max_tokens=7, temperature=0, top_p=0.5, top_k=9, seed=11, stop=["a", "b"], n=1, logprobs=3,
        stream=True, stream_options={"include_usage": True}, ignore_eos=True,
        return_token_ids=True, user="someone",
    )  # fmt: skip
    sampling = call.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0, 0.5, 9, 11)
    assert (call.max_tokens, sampling.logprobs, call.stop) == (7, 3, ("a", "b"))
    assert call.stream and call.include_usage and call.ignore_eos and call.return_token_ids


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
    ],
)
def test_a_chats_token_limit_has_two_names(fields: dict[str, int], limit: int) -> None:
    assert chat(**fields).max_tokens == limit


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", None), ("model", 3), ("messages", None), ("messages", []), ("messages", "hi"),
        ("messages", ["hi"]), ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", "7"),
        ("max_tokens", 1.5), ("max_completion_tokens", 0), ("temperature", -0.1),
        ("temperature", 2.1), ("temperature", "hot"), ("temperature", True), ("top_p", 1.1),
        ("top_p", -1), ("top_k", -2), ("top_k", 1 << 40), ("seed", 1 << 63), ("seed", "x"),
        ("n", 0), ("n", "1"), ("stop", 3), ("stop", ["a"] * 5), ("stop", ""),
        ("stop", ["a", ""]), ("stop", [1]), ("stop", "x" * 257), ("stream", "yes"),
        ("stream_options", {"include_usage": True}), ("stream_options", 1), ("logprobs", 2),
        ("top_logprobs", 2), ("ignore_eos", 1), ("return_token_ids", "x"), ("user", 4),
    ],
)  # fmt: skip
def test_a_bad_chat_field_is_named(field: str, value: Any) -> None:
    assert (refused(chat, **{field: value}).param or "").split(".")[0] == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", None), ("prompt", 3), ("prompt", ["a", [1]]), ("prompt", [[1], ["a"]]),
        ("prompt", [[1], 2]), ("prompt", [1, "a"]), ("prompt", [1.5]), ("prompt", [True]),
        ("logprobs", True),
        ("logprobs", -1), ("logprobs", 21), ("echo", 1),
        ("chat_template_kwargs", {"a": 1}),
    ],
)  # fmt: skip
def test_a_bad_completion_field_is_named(field: str, value: Any) -> None:
    assert refused(completion, **{field: value}).param == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("functions", [{}]),
        ("modalities", ["text", "audio"]),
        ("reasoning_effort", "low"), ("suffix", "x"), ("best_of", 2),
    ],
)  # fmt: skip
def test_a_field_that_would_change_the_answer_is_refused(field: str, value: Any) -> None:
    for call in (chat, completion):
        error = refused(call, **{field: value})
        assert error.param == field and "not supported" in str(error)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"model": 3}, "model must be a string"),
        ({"max_tokens": 1.5}, "max_tokens must be a whole number"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"temperature": "hot"}, "temperature must be a number"),
        ({"temperature": 3}, "temperature must be at most 2"),
        ({"top_k": 1 << 31}, "top_k must be below 2147483648"),
        ({"stop": 3}, "stop must be a string or an array"),
        ({"stream": "yes"}, "stream must be true or false"),
        ({"stream_options": 1}, "stream_options must be an object"),
        ({"messages": []}, "messages must have at least 1 entries"),
        ({"messages": [3]}, "messages.0 must be an object"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content must be a string or an array"),  # noqa: E501
    ],
)  # fmt: skip
def test_a_refusal_is_one_plain_sentence(fields: dict[str, Any], sentence: str) -> None:
    assert str(refused(chat, **fields)) == sentence


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "best_of": 1},
        {"echo": False, "suffix": "", "modalities": ["text"], "min_p": 0},
        {"metadata": {"a": "b"}, "store": True, "service_tier": "auto", "of_tomorrow": 1},
    ],
)
def test_fields_that_ask_for_nothing_pass(fields: dict[str, Any]) -> None:
    assert chat(**fields) == chat()


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"3", b"{", b'{"a": NaN}', b"\xff\xfe", b"[" * 100_000, b'{"model": "\\ud800"}'],
)
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    for endpoint in Endpoint:
        with pytest.raises(RequestError) as caught:
            parse(endpoint, body, CONFIG)
        assert caught.value.status == 400 and len(str(caught.value)) < 400


def test_content_parts_are_joined_and_nulls_left_out() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "user", "content": parts, "name": None},
        {"role": "assistant", "content": None, "tool_calls": []},
    ]
    assert chat(messages=messages).prompts[0] == (
        {"role": "user", "content": "a\nb"},
        {"role": "assistant"},
    )


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "content"),
        ({"role": "user", "content": [3]}, "content"),
        ({"role": "user", "content": 3}, "content"),
        ({"content": "x"}, "role"),
        ({"role": "assistant", "tool_calls": [{}]}, "tool_calls.0.function"),
        ({"role": "user", "tool_calls": [CALL]}, "tool_calls"),
        ({"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f"}}]}, "tool_calls.0.function.arguments"),  # noqa: E501
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[]"}}]}, "tool_calls.0.function.arguments"),  # noqa: E501
        ({"role": "assistant", "function_call": {"name": "f"}}, "function_call"),
    ],
)  # fmt: skip
def test_a_message_that_cannot_be_shown_is_named(message: Any, param: str) -> None:
    assert refused(chat, messages=[*HELLO, message]).param == f"messages.1.{param}"


@pytest.mark.parametrize("prompt", ["hi", ["hi"]])
def test_a_single_string_is_a_prompt(prompt: Any) -> None:
    assert completion(prompt=prompt).prompts == ("hi",)


@pytest.mark.parametrize("prompt", [[1, 2], [[1, 2]]])
def test_ids_are_a_prompt(prompt: Any) -> None:
    assert completion(prompt=prompt).prompts == ((1, 2),)


def test_a_completion_may_have_several_prompts() -> None:
    assert completion(prompt=["a", "b"]).prompts == ("a", "b")
    assert completion(prompt=[[1, 2], [3]]).prompts == ((1, 2), (3,))
    assert completion(prompt=[]).prompts == ((),)


def test_each_choice_of_each_prompt_is_an_order_with_a_seed_of_its_own() -> None:
    prompts = [(1, 2), (3,)]
    orders = orders_of(completion(n=2, seed=7), spec(), prompts, [90, 91], CONFIG)
    assert [order.prompt_ids for order in orders] == [(1, 2), (1, 2), (3,), (3,)]
    seeds = [order.sampling.seed for order in orders]
    assert seeds[0] == seeds[2] == 7 and seeds[1] == seeds[3] != 7
    assert all(0 <= seed < 1 << 63 for seed in seeds)
    drawn = orders_of(completion(n=2), spec(), prompts, [90, 91], CONFIG)
    assert len({order.sampling.seed for order in drawn}) == 4
    one = orders_of(completion(seed=7), spec(), [(1, 2)], [90], CONFIG)
    assert one[0] == orders[0]


@pytest.mark.parametrize(("prompts", "choices", "param"), [(1, 33, "n"), (33, 1, "prompt")])
def test_a_request_has_a_limit_of_answers(prompts: int, choices: int, param: str) -> None:
    with pytest.raises(RequestError, match="at most 32 answers; this one asks for 33") as caught:
        orders_of(completion(n=choices), spec(), [(1,)] * prompts, [0] * prompts, CONFIG)
    assert caught.value.param == param


def test_tokens_may_end_an_answer_beside_the_models_own() -> None:
    call = completion(stop_token_ids=[3, 5])
    assert order_of(call, spec(), (1,), 0, CONFIG).stop_ids == {3, 5, END}
    call = completion(stop_token_ids=[3], ignore_eos=True)
    assert order_of(call, spec(), (1,), 0, CONFIG).stop_ids == {3}


def test_echo_has_no_logprobs_of_the_prompt() -> None:
    assert completion(echo=True).echo
    assert refused(completion, echo=True, logprobs=0).param == "echo"


def test_a_template_is_told_what_the_client_gives_it() -> None:
    call = chat(chat_template_kwargs={"enable_thinking": False, "style": "terse"})
    assert call.rendering.variables == {"enable_thinking": False, "style": "terse"}
    for name in ("messages", "bos_token", "__class__", "a.b", "", "x" * 80):
        error = refused(chat, chat_template_kwargs={name: 1})
        assert (error.param or "").startswith("chat_template_kwargs.")
    assert refused(chat, chat_template_kwargs={"a": [1]}).param == "chat_template_kwargs.a"
    assert refused(chat, chat_template_kwargs={f"a{i}": 1 for i in range(33)})


def test_the_last_message_may_be_continued() -> None:
    assert chat().rendering.add_generation_prompt
    assert not chat(add_generation_prompt=False).rendering.add_generation_prompt
    continued = chat(continue_final_message=True).rendering
    assert continued.continue_final and not continued.add_generation_prompt
    error = refused(chat, continue_final_message=True, add_generation_prompt=True)
    assert error.param == "continue_final_message"


def test_no_nucleus_at_all_means_the_likeliest_token() -> None:
    assert (completion(top_p=0).sampling.top_k, completion(top_p=0).sampling.top_p) == (1, 1.0)
    assert completion(top_k=-1).sampling.top_k == 0


def test_chat_logprobs_need_their_switch() -> None:
    assert chat(logprobs=True).sampling.logprobs == 0
    assert chat(logprobs=True, top_logprobs=5).sampling.logprobs == 5
    assert chat(logprobs=False).sampling.logprobs is None
    assert completion(logprobs=0).sampling.logprobs == 0
    assert refused(chat, logprobs=True, top_logprobs=21).param == "top_logprobs"


def test_the_order_has_the_clients_seed_or_a_drawn_one() -> None:
    model = spec()
    assert order_of(completion(seed=7), model, (1,), 99, CONFIG).sampling.seed == 7
    assert order_of(completion(seed=0), model, (1,), 99, CONFIG).sampling.seed == 0
    assert order_of(completion(), model, (1,), 99, CONFIG).sampling.seed == 99
    assert 0 <= order_of(completion(seed=-1), model, (1,), 99, CONFIG).sampling.seed < 1 << 63


def test_the_order_stops_at_the_models_end_unless_told_not_to() -> None:
    assert order_of(completion(), spec(), (1,), 0, CONFIG).stop_ids == {END}
    assert order_of(completion(ignore_eos=True), spec(), (1,), 0, CONFIG).stop_ids == frozenset()


@pytest.mark.parametrize(
    ("prompt", "asked", "given"), [(10, 54, 54), (10, None, 54), (63, None, 1), (1, 1, 1)]
)
def test_tokens_fit_the_context(prompt: int, asked: int | None, given: int) -> None:
    order = order_of(completion(max_tokens=asked), spec(context=64), (1,) * prompt, 0, CONFIG)
    assert order.max_tokens == given


def test_a_generous_context_leaves_the_default_limit() -> None:
    order = order_of(completion(), spec(context=10**6), (1,), 0, CONFIG)
    assert order.max_tokens == CONFIG.max_tokens_default


@pytest.mark.parametrize(
    ("prompt", "asked", "param"),
    [(10, 55, "max_tokens"), (64, None, "prompt"), (64, 1, "prompt"), (100, None, "prompt")],
)
def test_too_much_is_refused_with_the_limit(prompt: int, asked: int | None, param: str) -> None:
    call = completion(max_tokens=asked)
    with pytest.raises(
        RequestError, match=r"context of tiny is 64 tokens.*in the prompt"
    ) as caught:
        order_of(call, spec(context=64), (1,) * prompt, 0, CONFIG)
    assert (caught.value.param, caught.value.code) == (param, "context_length_exceeded")


@pytest.mark.parametrize("ids", [(), (400,), (5, -1), (1 << 70,)])
def test_empty_prompts_and_foreign_ids_are_refused(ids: tuple[int, ...]) -> None:
    with pytest.raises(RequestError, match="empty|outside the vocabulary") as caught:
        order_of(completion(), spec(), ids, 0, CONFIG)
    assert caught.value.param == "prompt"


CHOSEN_AUTO = {"type": "function", "function": {"name": "auto"}}


def test_tools_are_taken_as_templates_want_them() -> None:
    named = {"name": "g", "description": "does", "parameters": {"type": "object"}, "strict": False}
    offered = chat(tools=[TOOL, {"type": "function", "function": named}]).rendering.tools
    assert offered is not None and offered.names == ("f", "g") and offered.parallel
    assert offered.tools[0]["function"]["description"] == ""
    assert "strict" not in offered.tools[1]["function"]
    bare = chat(tools=[{"function": {"name": "h"}}], parallel_tool_calls=False).rendering.tools
    assert bare is not None and not bare.parallel
    assert bare.tools[0]["function"]["parameters"] == {"type": "object", "properties": {}}
    assert chat(tools=[TOOL], tool_choice="none").rendering.tools is None


def test_earlier_calls_have_their_arguments_as_an_object() -> None:
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "abc", "content": [{"type": "text", "text": "3"}]},
    ]
    called = {"id": "abc", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    assert chat(messages=messages).prompts[0] == (
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "abc", "content": "3"},
    )


@pytest.mark.parametrize("text", ["[1]", "{", '{"a": "\\ud800"}', '{"a": NaN}', '{"a":' * 9999])
def test_arguments_that_no_template_could_show_are_refused(text: str) -> None:
    function = {"name": "f", "arguments": text}
    messages = [{"role": "assistant", "tool_calls": [{"id": "a", "function": function}]}]
    param = "messages.0.tool_calls.0.function.arguments"
    assert refused(chat, messages=messages).param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [3]}, "tools.0"),
        ({"tools": [{"type": "retrieval"}]}, "tools.0.type"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [TOOL] * 129}, "tools"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"function": {"name": "f", "parameters": 3}}]}, "tools.0.function.parameters"),
        ({"tools": [{"function": {"name": "f", "strict": 1}}]}, "tools.0.function.strict"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"function": {"name": "auto"}}], "tool_choice": CHOSEN_AUTO}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),  # noqa: E501
        ({"tools": [TOOL], "parallel_tool_calls": "yes"}, "parallel_tool_calls"),
    ],
)  # fmt: skip
def test_tools_that_make_no_sense_are_named(fields: dict[str, Any], param: str) -> None:
    assert refused(chat, **fields).param == param
