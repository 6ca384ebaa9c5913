"""A checkpoint's text side: tokenizer and chat template, given the contents of its files.

Behaves as transformers' `AutoTokenizer` does, without importing it (it would bring torch along):
special tokens, `add_bos_token`, and the template language with its trimming and helpers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer, processors

from swarm.errors import RequestError
from swarm.gateway import token_table, tool_forms
from swarm.gateway.calls import Message, Rendering

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
CHAT_TEMPLATE = "chat_template.jinja"
TEXT_FILES = (TOKENIZER, TOKENIZER_CONFIG, SPECIAL_TOKENS, CHAT_TEMPLATE)
"""Files of a checkpoint that are read here; only the first must exist."""

NAMED_SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


PLAIN = Rendering()


class TextUnusable(Exception):
    """The text files of a checkpoint cannot be used; the text says why."""


class ModelText:
    """Turns text and messages into ids for one checkpoint.

    Safe to use from several threads: nothing changes after construction.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        """`files`: contents by name, of `TEXT_FILES`. Raises TextUnusable."""
        config = _json(files, TOKENIZER_CONFIG)
        self.special_tokens = _special_tokens(config, _json(files, SPECIAL_TOKENS))
        self._tokenizer = _tokenizer(files, config, self.special_tokens)
        source = _template_source(files, config)
        self._knows_developer = "developer" in (source or "")
        self._template, self._template_problem = _template(source)
        self._knows_tools = tool_forms.knows_tools(source or "")
        self.tool_family = tool_forms.template_family(source or "")
        """How the model writes tool calls; None where it knows none, or its way is not known."""

    @property
    def has_chat(self) -> bool:
        return self._template is not None

    def encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        """`special`: add what the tokenizer puts around a text of its own (a BOS, say).

        As a batch of one, since only batches let other threads run meanwhile. Raises RequestError
        for half a character, of which a template may have made a whole text.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError("the prompt must be valid Unicode text") from error
        (encoded,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=special)
        return tuple(encoded.ids)

    def encode_chat(
        self, messages: Sequence[Message], now: datetime, rendering: Rendering = PLAIN
    ) -> tuple[int, ...]:
        """Ids of a conversation, up to where the assistant begins to speak or goes on."""
        return self.encode(self.render(messages, now, rendering), special=False)

    def packed_table(self) -> tuple[dict[str, Any], bytes]:
        """What `token_table.unpack` makes the way back from."""
        tokens = {i: token for token, i in self._tokenizer.get_vocab(True).items()}
        added = self._tokenizer.get_added_tokens_decoder()
        special = frozenset(i for i, token in added.items() if token.special)
        decoder = self._tokenizer.decoder
        described = decoder.__getstate__().decode() if decoder is not None else "null"
        return token_table.pack(tokens, special, frozenset(added), described)

    def render(
        self, messages: Sequence[Message], now: datetime, rendering: Rendering = PLAIN
    ) -> str:
        """The prompt text of a conversation. `now` is what the template sees as today.

        Raises RequestError when the model has no template or the template refuses the messages.
        """
        if self._template is None:
            raise RequestError(self._template_problem, code="no_chat_template")
        self._check_tools(messages, rendering)
        values = dict(rendering.variables) | self.special_tokens
        try:
            text = self._template.render(
                values,
                messages=[self._aliased(message) for message in messages],
                tools=list(rendering.tools.tools) if rendering.tools else None,
                documents=None,
                add_generation_prompt=rendering.add_generation_prompt,
                strftime_now=now.strftime,
            )
        except _TEMPLATE_ERRORS as error:
            empty = _without_content(messages)
            why = f"the model's chat template refused the messages: {error}"
            if empty is not None:
                why = f"messages.{empty}.content is required"
            raise RequestError(why, param="messages") from error
        return _up_to_last(text, messages) if rendering.continue_final else text

    def _aliased(self, message: Message) -> Message:
        """A developer's message is the system's for templates that were made before it."""
        if message.get("role") == "developer" and not self._knows_developer:
            message = {**message, "role": "system"}
        return _aliased(message)

    def _check_tools(self, messages: Sequence[Message], rendering: Rendering) -> None:
        """A template that does not know of tools would leave them out without a word."""
        if rendering.tools and not self._knows_tools:
            raise RequestError("the chat template of this model knows no tools", param="tools")
        if rendering.tools and self.tool_family is None:
            raise RequestError(
                "how this model writes tool calls is not known here; ask without tools",
                param="tools",
            )
        past = any(m.get("role") == "tool" or m.get("tool_calls") for m in messages)
        if past and not self._knows_tools:
            raise RequestError(
                "the chat template of this model knows no tools, and so no messages about them",
                param="messages",
            )


def _up_to_last(text: str, messages: Sequence[Message]) -> str:
    """The prompt cut where the last message's words end. Raises RequestError."""
    last = messages[-1].get("content")
    if not isinstance(last, str) or not last.strip():
        raise RequestError("the last message has no text to continue", param="messages")
    for words in (last, last.strip()):
        begin = text.rfind(words)
        if begin >= 0:
            return text[: begin + len(words)]
    raise RequestError(
        "the model's chat template changes the last message, so that it cannot be continued",
        param="messages",
    )


_TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What a template may raise over messages it was not written for."""
_NO_TEMPLATE = "this model has no chat template: it is a base model; use /v1/completions"


@dataclass(frozen=True, slots=True)
class _Dict:
    """`dict(...)` for templates, without the type and its attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(jinja2.utils.Namespace):
    """`namespace(...)` for templates, without access to Python's inner attributes."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # noqa: N805 - lets `self` be a name in it
        self = args[0]
        values = dict(*args[1:], **kwargs)
        for name in values:
            _refuse_inner(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_inner(name)
        super().__setitem__(name, value)


def _refuse_inner(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a template must not set {name!r} on a namespace")


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what the assistant said, for training; here it just renders."""

    tags = {"generation"}  # noqa: RUF012 - the name and type are jinja2's

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["dict"] = _Dict()
    environment.globals["namespace"] = _Namespace
    return environment


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes for HTML, which a prompt must not be."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _aliased(message: Message) -> Message:
    """Reasoning of earlier turns under every name that templates read."""
    names = ("reasoning_content", "thinking", "reasoning")
    reasoning = next((message[name] for name in names if message.get(name) is not None), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _json(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    try:
        values = json.loads(files.get(name, b"{}"))
    except ValueError as error:
        raise TextUnusable(f"{name} is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise TextUnusable(f"{name} is not a JSON object")
    return values


def _special_tokens(config: Mapping[str, Any], older: Mapping[str, Any]) -> dict[str, str]:
    """`older`, the file of its own, counts only beside a config that lists no tokens."""
    if "added_tokens_decoder" not in config:
        config = {**config, **older}
    found = {name: _content(config.get(name)) for name in NAMED_SPECIAL_TOKENS}
    return {name: text for name, text in found.items() if text is not None}


def _content(token: Any) -> str | None:
    """A token in a config is a string, or an object with its text and flags."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _tokenizer(
    files: Mapping[str, bytes], config: Mapping[str, Any], named: Mapping[str, str]
) -> Tokenizer:
    if TOKENIZER not in files:
        raise TextUnusable(f"there is no {TOKENIZER}")
    try:
        tokenizer = Tokenizer.from_str(files[TOKENIZER].decode())
    except Exception as error:  # noqa: BLE001 - tokenizers raises bare Exception on a bad file
        raise TextUnusable(f"{TOKENIZER} cannot be read: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _add_missing(tokenizer, config, named)
    _set_surroundings(tokenizer, config, named)
    return tokenizer


def _add_missing(tokenizer: Tokenizer, config: Mapping[str, Any], named: Mapping[str, str]) -> None:
    """Special tokens that only the config names, in the order of their ids."""
    listed = config.get("added_tokens_decoder") or {}
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for _, token in sorted(listed.items(), key=lambda item: int(item[0])):
        flags = {key: value for key, value in token.items() if key != "content"}
        if token["content"] not in known:
            tokenizer.add_tokens([AddedToken(token["content"], **flags)])
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    texts = [*named.values(), *map(_content, extra.values() if isinstance(extra, dict) else extra)]
    special = {t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special}
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in texts if t and t not in special]
    )


def _set_surroundings(
    tokenizer: Tokenizer, config: Mapping[str, Any], named: Mapping[str, str]
) -> None:
    """`add_bos_token` and `add_eos_token`, where given, overrule what the tokenizer file says."""
    if "add_bos_token" not in config and "add_eos_token" not in config:
        return
    before = named.get("bos_token") if config.get("add_bos_token") else None
    after = named.get("eos_token") if config.get("add_eos_token") else None
    parts = [f"{before}:0"] if before else []
    parts += ["$A:0", *([f"{after}:0"] if after else [])]
    used = [token for token in (before, after) if token]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=parts,
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in used],
    )


def _template_source(files: Mapping[str, bytes], config: Mapping[str, Any]) -> str | None:
    text = config.get("chat_template")
    if CHAT_TEMPLATE in files:
        text = files[CHAT_TEMPLATE].decode("utf-8", "replace")
    elif isinstance(text, list):
        text = {entry.get("name"): entry.get("template") for entry in text}.get("default")
    return text if isinstance(text, str) else None


def _template(text: str | None) -> tuple[jinja2.Template | None, str]:
    """The compiled chat template, or None and why there is none."""
    if text is None:
        return None, _NO_TEMPLATE
    try:
        return _environment().from_string(text), ""
    except jinja2.TemplateSyntaxError as error:
        return None, f"the model's chat template is broken: {error}"


def _without_content(messages: Sequence[Message]) -> int | None:
    """The first message that says nothing and calls nothing, which few templates take."""
    says_nothing = (
        index
        for index, message in enumerate(messages)
        if message.get("content") is None and not message.get("tool_calls")
    )
    return next(says_nothing, None)
