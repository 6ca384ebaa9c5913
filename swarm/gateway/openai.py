"""Requests of OpenAI's API, checked: a JSON body becomes a `Call`, a `Call` becomes an `Order`.

A field that this server does not carry out is refused by name when its value would change the
answer, and accepted when it asks for nothing (`tools: []`, `presence_penalty: 0`). Fields that
nobody here knows are ignored, as OpenAI's own extensions (`metadata`, `store`, ...) are.
Source: https://platform.openai.com/docs/api-reference; `top_k`, `ignore_eos` and
`return_token_ids` as vLLM names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError
from pydantic_core import ErrorDetails, from_json

from swarm.config import GatewayConfig
from swarm.errors import RequestError
from swarm.terms import ModelSpec, Order, Sampling

SEED_MASK = (1 << 63) - 1
"""Seeds travel as unsigned 63-bit numbers; a client's negative seed is folded into that range."""
MESSAGE_SHOWN_CHARS = 300


class Endpoint(Enum):
    CHAT = "chat.completion"
    COMPLETION = "text_completion"


Message = dict[str, Any]
"""One chat message: `role`, `content` as text, and what else the client gave."""
Prompt = tuple[Message, ...] | str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """What a client asks, checked, before the prompt is turned into ids. None: not given."""

    endpoint: Endpoint
    model: str
    prompt: Prompt
    """Empty in a call that comes from the helper process: the prompt stays there."""
    max_tokens: int | None
    sampling: Sampling
    seed_given: bool
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    ignore_eos: bool
    return_token_ids: bool


class _StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)
    include_usage: bool | None = None


class _Body(BaseModel):
    """Fields that both endpoints share. Null means the default, as OpenAI has it."""

    model_config = ConfigDict(strict=True, extra="allow")

    model: str
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    n: int | None = None
    stop: str | list[Any] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    user: str | None = None


class _Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")
    role: str
    content: str | list[Any] | None = None


class _ChatBody(_Body):
    messages: Annotated[list[_Message], FailFast(), Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0)] | None = None


class _CompletionBody(_Body):
    prompt: str | list[Any]
    logprobs: Annotated[int, Field(ge=0)] | None = None


_ASKS_NOTHING: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
    "documents": ([],),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "prompt_embeds": (),
    "reasoning_effort": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "stop_token_ids": ([],),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": (),
    "web_search_options": (),
}
"""Known fields that are not carried out here, with the values (besides null) that ask for nothing.

They are checked where they are not fields of the body: a chat's `max_completion_tokens` is one.
"""
_MESSAGE_FIELDS_REFUSED = ("audio", "function_call", "tool_calls")

_Kind = TypeVar("_Kind", bound=BaseModel)


def parse(endpoint: Endpoint, body: bytes, config: GatewayConfig) -> Call:
    """The call in a request body. Raises RequestError (400) naming the field at fault."""
    try:
        values = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(f"the body is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise RequestError("the body must be a JSON object")
    if endpoint is Endpoint.CHAT:
        chat = _validated(_ChatBody, values)
        prompt: Prompt = tuple(_message(i, message) for i, message in enumerate(chat.messages))
        limit = chat.max_completion_tokens or chat.max_tokens
        return _call(endpoint, chat, prompt, limit, _chat_logprobs(chat), config)
    text = _validated(_CompletionBody, values)
    return _call(endpoint, text, _prompt(text.prompt), text.max_tokens, text.logprobs, config)


def order_of(
    call: Call, spec: ModelSpec, prompt_ids: tuple[int, ...], seed: int, config: GatewayConfig
) -> Order:
    """The order for a call whose prompt is `prompt_ids`. `seed` serves when the client gave none.

    Raises RequestError as `token_limit` does.
    """
    sampling = call.sampling
    if not call.seed_given:
        sampling = replace(sampling, seed=seed & SEED_MASK)
    return Order(
        model_id=spec.model_id,
        prompt_ids=prompt_ids,
        max_tokens=token_limit(call, spec, prompt_ids, config),
        sampling=sampling,
        stop_ids=frozenset() if call.ignore_eos else frozenset(spec.eos_ids),
    )


def token_limit(
    call: Call, spec: ModelSpec, prompt_ids: Sequence[int], config: GatewayConfig
) -> int:
    """How many tokens may be generated: what was asked, or the default within what is left.

    Raises RequestError for an empty prompt, too long a context, ids outside the vocabulary.
    """
    field = "messages" if call.endpoint is Endpoint.CHAT else "prompt"
    if not prompt_ids:
        raise RequestError("the prompt is empty", param=field)
    left = spec.context_length - len(prompt_ids)
    wanted = call.max_tokens
    if left < 1 or (wanted is not None and wanted > left):
        asked = "" if wanted is None else f" and {wanted} to generate"
        raise RequestError(
            f"the context of {spec.name} is {spec.context_length} tokens; this request has"
            f" {len(prompt_ids)} in the prompt{asked}",
            param=field if left < 1 else "max_tokens",
            code="context_length_exceeded",
        )
    for token_id in (min(prompt_ids), max(prompt_ids)):
        if not 0 <= token_id < spec.vocab_size:
            raise RequestError(
                f"token id {token_id} is outside the vocabulary of {spec.name}"
                f" (0 to {spec.vocab_size - 1})",
                param=field,
            )
    return min(config.max_tokens_default, left) if wanted is None else wanted


def _validated(kind: type[_Kind], values: dict[str, Any]) -> _Kind:
    for name, neutral in _ASKS_NOTHING.items():
        value = values.get(name)
        if value is not None and value not in neutral:
            raise RequestError(
                f"{name} is not supported here; leave it out", param=name, code="unsupported_field"
            )
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False, include_input=False)[0]) from error


def _refusal(detail: ErrorDetails) -> RequestError:
    path = ".".join(str(part) for part in detail["loc"] if not _is_union_branch(part))
    if detail["type"] == "missing":
        return RequestError(f"{path} is required", param=path)
    return RequestError(f"{path}: {detail['msg']}"[:MESSAGE_SHOWN_CHARS], param=path)


def _is_union_branch(part: int | str) -> bool:
    """Pydantic names the member of a union that did not fit: `stop.str`, `stop.list[str]`."""
    return isinstance(part, str) and (part in {"str", "int"} or "[" in part)


def _call(
    endpoint: Endpoint,
    body: _Body,
    prompt: Prompt,
    max_tokens: int | None,
    logprobs: int | None,
    config: GatewayConfig,
) -> Call:
    if body.n is not None and body.n != 1:
        raise RequestError("n must be 1: one answer per request", param="n")
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options needs stream: true", param="stream_options")
    if logprobs is not None and logprobs > config.top_logprobs_max:
        name = "top_logprobs" if endpoint is Endpoint.CHAT else "logprobs"
        raise RequestError(f"{name} may be at most {config.top_logprobs_max}", param=name)
    return Call(
        endpoint=endpoint,
        model=body.model,
        prompt=prompt,
        max_tokens=max_tokens,
        sampling=_sampling(body, logprobs),
        seed_given=body.seed is not None,
        stop=_stop(body.stop, config),
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        ignore_eos=bool(body.ignore_eos),
        return_token_ids=bool(body.return_token_ids),
    )


def _sampling(body: _Body, logprobs: int | None) -> Sampling:
    """`top_p` 0 keeps only the likeliest token, which is what `top_k` 1 says without a division."""
    top_p = 1.0 if body.top_p is None else body.top_p
    return Sampling(
        temperature=1.0 if body.temperature is None else float(body.temperature),
        top_p=float(top_p) or 1.0,
        top_k=1 if top_p == 0 else max(0, body.top_k or 0),
        seed=(body.seed or 0) & SEED_MASK,
        logprobs=logprobs,
    )


def _chat_logprobs(body: _ChatBody) -> int | None:
    if not body.logprobs:
        if body.top_logprobs:
            raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
        return None
    return body.top_logprobs or 0


def _stop(stop: str | list[Any] | None, config: GatewayConfig) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if not all(isinstance(text, str) for text in strings):
        raise RequestError("stop must be a string or an array of strings", param="stop")
    if len(strings) > config.stop_strings_max:
        raise RequestError(f"at most {config.stop_strings_max} stop strings", param="stop")
    if "" in strings:
        raise RequestError("a stop string must not be empty", param="stop")
    if any(len(text) > config.stop_chars_max for text in strings):
        raise RequestError(
            f"a stop string may have at most {config.stop_chars_max} characters", param="stop"
        )
    return strings


def _prompt(prompt: str | list[Any]) -> str | tuple[int, ...]:
    """A string or ids; a list that holds just one of either is taken for it."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt
    if not all(type(item) is int for item in prompt):
        raise RequestError(
            "prompt must be one string or one array of token ids per request", param="prompt"
        )
    return tuple(prompt)


def _message(index: int, message: _Message) -> Message:
    """The message as a template sees it: content as text, nothing that is null."""
    fields = {name: value for name, value in message.model_dump().items() if value is not None}
    for name in _MESSAGE_FIELDS_REFUSED:
        if fields.get(name):
            raise RequestError(
                f"messages.{index}.{name} is not supported here", param=f"messages.{index}.{name}"
            )
        fields.pop(name, None)
    if isinstance(message.content, list):
        fields["content"] = "\n".join(_part(index, part) for part in message.content)
    return fields


def _part(index: int, part: Any) -> str:
    fields = part if isinstance(part, dict) else {}
    text = fields.get("text")
    if fields.get("type") != "text" or not isinstance(text, str):
        raise RequestError(
            'content parts must be {"type": "text", "text": ...}', param=f"messages.{index}.content"
        )
    return text
