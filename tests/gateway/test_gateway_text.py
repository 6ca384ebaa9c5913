"""Tokenizer and chat template, compared with transformers' own."""

from __future__ import annotations

import functools
import json
import warnings
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import tiny_text

from swarm.errors import RequestError
from swarm.gateway import token_table
from swarm.gateway.stream_text import detokenizer
from swarm.gateway.text import TEXT_FILES, ModelText, TextUnusable
from swarm.gateway.token_table import TokenTable

MODELS = Path(__file__).resolve().parents[2] / "models"
NOW = datetime(2026, 3, 1, 12, 30)
TEXTS = (
    "",
    " ",
    "Hello, world!",
    "  two blanks first\n\n\tand a tab",
    "Füße über Straßen 😀🚀 日本語 テキスト",
    "<|im_start|>user\nspecial tokens in text<|im_end|><bos><eos>",
    "def f(x):\n    return x ** 2  # code\n",
)
CONVERSATIONS: tuple[list[dict[str, Any]], ...] = (
    [{"role": "user", "content": "Hi"}],
    [
        {"role": "system", "content": "You are terse."},
        {"role": "user", "content": "Was heißt 日本語?"},
        {"role": "assistant", "content": "Japanese."},
        {"role": "user", "content": "  Thanks \n"},
    ],
)


def read_files(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in TEXT_FILES if (folder / name).exists()}


@functools.cache
def mine(name: str) -> ModelText:
    if not (MODELS / name / "tokenizer.json").exists():
        pytest.skip(f"models/{name} is not there: scripts/fetch_model {name}")
    return ModelText(read_files(MODELS / name))


@functools.cache
def table(text: ModelText) -> TokenTable:
    return token_table.unpack(*text.packed_table())


@functools.cache
def real(name: str) -> tuple[ModelText, Any]:
    """Our reader and transformers' own for a fetched model."""
    ours = mine(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoTokenizer

        return ours, AutoTokenizer.from_pretrained(MODELS / name)


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2", pytest.param("gemma3", marks=pytest.mark.slow)])
def test_ids_and_text_are_those_of_transformers(name: str) -> None:
    ours, theirs = real(name)
    for text in TEXTS:
        ids = theirs(text)["input_ids"]
        assert list(ours.encode(text, special=True)) == ids
        assert list(ours.encode(text, special=False)) == theirs.encode(
            text, add_special_tokens=False
        )
        assert table(ours).decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.special_tokens == theirs.special_tokens_map


@pytest.mark.model
@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_a_chat_is_rendered_as_transformers_does(messages: list[dict[str, Any]]) -> None:
    ours, theirs = real("smollm2")
    assert ours.has_chat
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert ours.render(messages, NOW) == expected
    ids = theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert list(ours.encode_chat(messages, NOW)) == list(ids)


@pytest.mark.model
def test_a_base_model_refuses_chat_in_plain_words() -> None:
    ours = mine("gemma3")
    assert not ours.has_chat
    with pytest.raises(RequestError, match="base model; use /v1/completions"):
        ours.render(CONVERSATIONS[0], NOW)


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2", pytest.param("gemma3", marks=pytest.mark.slow)])
def test_streamed_text_joins_to_what_transformers_decodes(name: str) -> None:
    ours, theirs = real(name)
    for text in TEXTS[2:]:
        ids = theirs.encode(text, add_special_tokens=False)
        stream = detokenizer(table(ours), ())
        pieces = [stream.push(i) for i in ids] + [stream.flush()]
        assert "".join(pieces) == theirs.decode(ids, skip_special_tokens=True)
        assert not any("\ufffd" in piece for piece in pieces)


TEMPLATES = (
    "{%- for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.content }}\n"
    "{% endfor %}\n  {% if true %}\ntrimmed\n  {% endif %}\nend",
    "{{ bos_token }}{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}{{ eos_token }}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
    "{{ ns.n }}{{ dict(a=1).items() | list }}",
    "{% generation %}{{ messages[0].content }}{% endgeneration %}{{ tools is none }}"
    "{{ documents is none }}{{ add_generation_prompt }}",
    "{{ messages[-1].reasoning_content }}|{{ messages[-1].thinking }}|{{ messages[-1].name }}",
)


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_template_language_is_that_of_transformers(template: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import PreTrainedTokenizerFast

        theirs = PreTrainedTokenizerFast(
            tokenizer_object=tiny_text.byte_level(), bos_token="<|user|>", eos_token="<|end|>"
        )
    ours = ModelText(tiny_text.files(tiny_text.byte_level(), template))
    messages = [
        {"role": "user", "content": "<a href='x'>ö</a>", "name": "Ann"},
        {"role": "assistant", "content": "b", "reasoning": "because"},
    ]
    expected = theirs.apply_chat_template(
        messages, chat_template=template, add_generation_prompt=True, tokenize=False
    )
    assert ours.render(messages, NOW) == expected


def tiny(template: str | None) -> ModelText:
    return ModelText(tiny_text.files(tiny_text.byte_level(), template))


def test_a_template_sees_the_date_it_is_given() -> None:
    text = tiny("{{ strftime_now('%d %b %Y') }}")
    assert text.render([{"role": "user", "content": ""}], NOW) == "01 Mar 2026"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content.x.y }}",
        "{{ 1 / 0 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_a_template_that_refuses_or_misbehaves_is_the_clients_400(template: str) -> None:
    with pytest.raises(RequestError, match="chat template refused") as caught:
        tiny(template).render([{"role": "user", "content": "x"}], NOW)
    assert caught.value.status == 400


def test_a_message_without_content_is_named() -> None:
    template = "{% for m in messages %}{{ 'x' + m.content }}{% endfor %}"
    messages: list[dict[str, Any]] = [{"role": "user", "content": "x"}, {"role": "user"}]
    with pytest.raises(RequestError, match=r"messages\.1\.content is required"):
        tiny(template).render(messages, NOW)


def test_half_a_character_of_a_template_is_the_clients_400() -> None:
    with pytest.raises(RequestError, match="valid Unicode"):
        tiny(r"{{ '\ud800' }}").encode_chat([{"role": "user", "content": "x"}], NOW)


def test_a_broken_template_switches_chat_off() -> None:
    text = tiny("{% if %}")
    assert not text.has_chat
    with pytest.raises(RequestError, match="template is broken"):
        text.render([{"role": "user", "content": "x"}], NOW)


def test_a_template_may_stand_in_the_config_alone_or_named() -> None:
    base = tiny_text.files(tiny_text.byte_level(), None)
    for value in (
        "T",
        [{"name": "tool_use", "template": "U"}, {"name": "default", "template": "T"}],
    ):
        config = json.loads(base["tokenizer_config.json"]) | {"chat_template": value}
        files = base | {"tokenizer_config.json": json.dumps(config).encode()}
        assert ModelText(files).render([{"role": "user", "content": "x"}], NOW) == "T"


def test_surroundings_in_the_config_overrule_the_tokenizer_file() -> None:
    base = tiny_text.files(tiny_text.byte_level())
    config = {"bos_token": {"content": "<s>"}, "eos_token": "<|end|>", "add_bos_token": True}
    text = ModelText(base | {"tokenizer_config.json": json.dumps(config).encode()})
    plain = text.encode("go on", special=False)
    bos = text.encode("<s>", special=False)
    assert len(bos) == 1
    assert text.encode("go on", special=True) == bos + plain
    assert text.special_tokens == {"bos_token": "<s>", "eos_token": "<|end|>"}


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"tokenizer.json": b"{}"},
        {"tokenizer.json": b"no json"},
        tiny_text.files(tiny_text.byte_level()) | {"tokenizer_config.json": b"["},
        tiny_text.files(tiny_text.byte_level()) | {"tokenizer_config.json": b"[]"},
    ],
)
def test_unusable_files_are_named(files: dict[str, bytes]) -> None:
    with pytest.raises(TextUnusable, match="tokenizer"):
        ModelText(files)


@pytest.mark.parametrize("make", [tiny_text.byte_level, tiny_text.byte_fallback])
def test_token_bytes_join_to_the_text(make: Any) -> None:
    text = ModelText(tiny_text.files(make()))
    ids = text.encode("the füße 😀<|end|>", special=False)
    joined = b"".join(table(text).token_bytes(i) for i in ids).decode().lstrip(" ")
    assert joined == "the füße 😀<|end|>"
    assert table(text).token_bytes(10**6) == b""
