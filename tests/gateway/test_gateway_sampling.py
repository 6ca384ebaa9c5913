"""Fields that steer the sampler, and structured output: one row a field, taken or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_node import END, TEXT, spec
from tiny_text import NOW

from swarm.config import GatewayConfig
from swarm.errors import RequestError
from swarm.gateway import text_work
from swarm.gateway.calls import Call, Endpoint, call_json, call_of, orders_of
from swarm.gateway.dialects import parse
from swarm.gateway.text_work import TextWork
from swarm.messages import GUIDE_BYTES_MAX
from swarm.terms import Guide, GuideKind, Order, Sampling, TokenBias

CONFIG = GatewayConfig()
MANY = [str(i) for i in range(301)]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": [1, 2, 3], "max_tokens": 9} | fields).encode()


def completion(**fields: Any) -> Call:
    return parse(Endpoint.COMPLETION, body(**fields), CONFIG)


def chat(**fields: Any) -> Call:
    data = {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | fields
    return parse(Endpoint.CHAT, json.dumps(data).encode(), CONFIG)


def order(**fields: Any) -> Order:
    (made,) = orders_of(completion(**fields), spec(), [(1, 2, 3)], [5], CONFIG)
    return made


def refused(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        order(**fields)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"min_p": 0.25}, {"min_p": 0.25}),
        ({"min_p": 1}, {"min_p": 1.0}),
        ({"presence_penalty": -2}, {"presence_penalty": -2.0}),
        ({"frequency_penalty": 1.5}, {"frequency_penalty": 1.5}),
        ({"repetition_penalty": 1.2}, {"repetition_penalty": 1.2}),
        ({"logit_bias": {"5": -100, "7": 1.5}}, {"bias": (TokenBias(5, -100), TokenBias(7, 1.5))}),
        ({"min_tokens": 4}, {"min_tokens": 4, "stop_ids": (END,)}),
        (
            {"min_tokens": 4, "stop_token_ids": [9, 8], "ignore_eos": True},
            {"min_tokens": 4, "stop_ids": (8, 9)},
        ),
    ],
)
def test_a_field_reaches_the_sampler(fields: dict[str, Any], wanted: dict[str, Any]) -> None:
    made = order(**fields).sampling
    assert made == Sampling(seed=5, **wanted)
    assert not made.is_plain


@pytest.mark.parametrize(
    "fields",
    [
        {"min_p": 0, "presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1},
        {"logit_bias": {}, "min_tokens": 0, "bad_words": [], "stop_token_ids": []},
        {"response_format": {"type": "text"}, "structured_outputs": {}, "guided_json": None},
        {"response_format": None, "structured_outputs": {"json": None, "json_object": False}},
    ],
)
def test_what_asks_for_nothing_costs_nothing(fields: dict[str, Any]) -> None:
    assert order(**fields) == order()
    assert order(**fields).sampling.is_plain


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"min_p": 1.1}, "min_p must be at most 1"),
        ({"presence_penalty": 2.5}, "presence_penalty must be at most 2"),
        ({"frequency_penalty": -2.5}, "frequency_penalty must be at least -2"),
        ({"repetition_penalty": 0}, "repetition_penalty must be above 0"),
        ({"repetition_penalty": 1e-9}, "repetition_penalty must be at least 0.01"),
        ({"logit_bias": {"x": 1}}, "logit_bias must have token ids as its keys"),
        ({"logit_bias": {"1": 101}}, "logit_bias must have values from -100 to 100"),
        ({"logit_bias": {"1": True}}, "logit_bias must have values from -100 to 100"),
        ({"logit_bias": dict.fromkeys(MANY, 1)}, "logit_bias must have at most 300 entries"),
        ({"min_tokens": -1}, "min_tokens must be at least 0"),
        ({"min_tokens": 10}, "min_tokens is 10, more than the 9 of max_tokens"),
        ({"stop_token_ids": [1] * 65}, "stop_token_ids must have at most 64 entries"),
        ({"bad_words": [""]}, "bad_words must not have an empty string"),
        ({"bad_words": ["x"] * 65}, "bad_words must have at most 64 entries"),
        ({"guided_regex": ""}, "guided_regex must be a string that is not empty"),
        ({"guided_choice": []}, "guided_choice must be an array of strings"),
        ({"guided_choice": ["a", ""]}, "guided_choice must not have an empty string"),
        ({"guided_json": "{"}, "guided_json is not valid JSON"),
        ({"guided_json": "3"}, "guided_json must be a JSON schema"),
        ({"guided_grammar": 3}, "guided_grammar must be a string"),
        (
            {"guided_grammar": "x" * (GUIDE_BYTES_MAX + 1)},
            f"guided_grammar must have at most {GUIDE_BYTES_MAX} bytes",
        ),
        (
            {"guided_regex": "a", "guided_json": SCHEMA},
            "guided_regex and guided_json both ask for structured output; use one",
        ),
        (
            {"response_format": {"type": "xml"}},
            "response_format.type must be 'text', 'json_object' or 'json_schema'",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema must be an object",
        ),
        (
            {"structured_outputs": {"regex": "a", "choice": ["b"]}},
            "structured_outputs must have one of json, regex, choice, grammar, json_object",
        ),
        (
            {"structured_outputs": {"structural_tag": "x"}},
            "structured_outputs.structural_tag is not supported here; leave it out",
        ),
        (
            {"guided_regex": "a+", "ignore_eos": True},
            "ignore_eos does not go with guided_regex, which says where an answer ends",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_a_sentence(fields: dict[str, Any], sentence: str) -> None:
    error = refused(**fields)
    assert str(error) == sentence
    assert error.param is not None and error.param.split(".")[0] in fields


def test_a_bias_for_no_token_of_the_model_is_refused() -> None:
    outside = str(spec().vocab_size)
    assert "outside the vocabulary" in str(refused(logit_bias={outside: 1}))


JSON = json.dumps(SCHEMA)
ANY = '{"type": "object"}'


@pytest.mark.parametrize(
    ("fields", "guide"),
    [
        ({"response_format": {"type": "json_object"}}, Guide(GuideKind.JSON_SCHEMA, ANY)),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "strict": True, "schema": SCHEMA},
                }
            },
            Guide(GuideKind.JSON_SCHEMA, JSON),
        ),
        ({"guided_json": SCHEMA}, Guide(GuideKind.JSON_SCHEMA, JSON)),
        ({"guided_json": JSON}, Guide(GuideKind.JSON_SCHEMA, JSON)),
        ({"guided_regex": "[ab]+"}, Guide(GuideKind.REGEX, "[ab]+")),
        ({"guided_choice": ["a", 'b"\n']}, Guide(GuideKind.LARK, 'start: "a" | "b\\"\\n"')),
        ({"guided_grammar": 'start: "x"'}, Guide(GuideKind.LARK, 'start: "x"')),
        ({"structured_outputs": {"json": SCHEMA}}, Guide(GuideKind.JSON_SCHEMA, JSON)),
        ({"structured_outputs": {"json_object": True}}, Guide(GuideKind.JSON_SCHEMA, ANY)),
        ({"structured_outputs": {"regex": "a"}}, Guide(GuideKind.REGEX, "a")),
        ({"structured_outputs": {"choice": ["a"]}}, Guide(GuideKind.LARK, 'start: "a"')),
        ({"structured_outputs": {"grammar": "start: /a/"}}, Guide(GuideKind.LARK, "start: /a/")),
    ],
)
def test_structured_output_has_many_names(fields: dict[str, Any], guide: Guide) -> None:
    made = order(**fields)
    assert made.guide == guide
    assert made.sampling.guide is guide.kind
    assert made.sampling.stop_ids == (END,)
    assert chat(**fields).guide == completion(**fields).guide


def test_a_call_comes_out_of_the_helper_as_it_went_in() -> None:
    call = completion(
        guided_json=SCHEMA, logit_bias={"3": 1}, bad_words=["a"], presence_penalty=1, min_p=0.5
    )
    again = call_of(json.loads(json.dumps(call_json(call))))
    assert (again.sampling, again.guide, again.bad_words) == (
        call.sampling, call.guide, call.bad_words,
    )  # fmt: skip


# ---------------------------------------------------------------- with a tokenizer


def helper() -> TextWork:
    work = TextWork(CONFIG)
    work._texts[spec().model_id] = TEXT
    work._special[spec().model_id] = {}
    return work


def encoded(work: TextWork, **fields: Any) -> text_work.Json:
    question = text_work.encode_question(Endpoint.COMPLETION, spec(), NOW)
    return work.answer(question, body(**fields))[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_json": SCHEMA},
        {"guided_regex": r"\d+/\d{2}\n"},
        {"guided_choice": ['q"uote', "ünder\n", "\\"]},
        {"guided_grammar": 'start: item ("," item)*\nitem: /[a-z]+/'},
        {"guided_grammar": 'root ::= "a" | "b" root'},
        {"response_format": {"type": "json_object"}},
    ],
)
def test_a_guide_is_compiled_before_anything_runs(fields: dict[str, Any]) -> None:
    assert encoded(helper(), **fields) == {"lengths": [3]}


@pytest.mark.parametrize(
    ("fields", "param", "why"),
    [
        ({"guided_regex": "(a"}, "guided_regex", "invalid regex"),
        ({"guided_grammar": "start: nobody"}, "guided_grammar", "unknown name"),
        ({"guided_json": {"type": "thing"}}, "guided_json", "Invalid type: thing"),
        ({"guided_json": {"not": {}}}, "guided_json", "Unimplemented keys"),
        ({"guided_json": {"$ref": "https://example.org/a"}}, "guided_json", "does not fetch"),
        ({"guided_json": {"$ref": "#"}}, "guided_json", "cannot be followed"),
        (
            {"guided_json": {"type": "string", "minLength": 3, "maxLength": 2}},
            "guided_json",
            "Unsatisfiable",
        ),
    ],
)
def test_a_guide_that_cannot_be_followed_is_refused(
    fields: dict[str, Any], param: str, why: str
) -> None:
    answer = encoded(helper(), **fields)
    assert answer["status"] == 400 and answer["param"] == param
    assert (
        answer["refused"].startswith(f"{param} cannot be followed: ") and why in answer["refused"]
    )
    assert "\n" not in answer["refused"] and len(answer["refused"]) < 400


def test_bad_words_become_ids_as_they_stand_and_after_a_space() -> None:
    question = text_work.words_question(spec().model_id, ["fox"])
    (answer, _) = helper().answer(question, b"")
    forms = [TEXT.encode(form, special=False) for form in ("fox", " fox")]
    assert [tuple(ids) for ids in answer["banned"]] == forms


def test_without_a_tokenizer_there_is_no_structured_output() -> None:
    call = completion(guided_regex="a")
    with pytest.raises(RequestError, match="guided_regex needs a tokenizer"):
        text_work.prompt_ids(call, spec(), None, NOW)
