"""Requests of OpenAI's chat and text completions, checked: a JSON body becomes a `Call`. Pure.

Source: https://platform.openai.com/docs/api-reference; `top_k`, `ignore_eos`, `stop_token_ids`,
`return_token_ids`, `add_generation_prompt` and their neighbours as vLLM names them.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import FailFast, Field, WithJsonSchema

from swarm.config import GatewayConfig
from swarm.errors import RequestError
from swarm.gateway import conversation, tools
from swarm.gateway.calls import SEED_MASK, Call, Endpoint, Prompt, Rendering
from swarm.gateway.fields import Body, Json, refuse_unsupported, validated
from swarm.gateway.sampling_fields import SamplingFields, asked_guide, bad_words, steered
from swarm.messages import STOP_IDS_MAX
from swarm.terms import Sampling

TOKEN_ID_LIMIT = 1 << 32
"""Ids are below this in every vocabulary."""


_IDS: Json = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "integer", "minimum": 0, "exclusiveMaximum": TOKEN_ID_LIMIT},
}
_TEXT: Json = {"type": "string", "minLength": 1}
_PROMPTS: Json = {
    "anyOf": [_TEXT, _IDS, *({"type": "array", "minItems": 1, "items": e} for e in (_TEXT, _IDS))]
}
"""What a prompt may be, for those who read the document."""
_TokenId = Annotated[int, Field(ge=0, lt=TOKEN_ID_LIMIT)]


class _StreamOptions(Body):
    include_usage: bool | None = None


class _Common(SamplingFields):
    """Fields that both endpoints share."""

    model: str
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    stop: str | list[Any] | None = None
    stop_token_ids: Annotated[list[_TokenId], Field(max_length=STOP_IDS_MAX // 2)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    user: str | None = None


class _Message(Body):
    role: str
    content: str | list[Any] | None = None


class ChatBody(_Common):
    messages: Annotated[list[_Message], FailFast(), Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None


class CompletionBody(_Common):
    prompt: Annotated[str | list[Any], WithJsonSchema(_PROMPTS)]
    logprobs: Annotated[int, Field(ge=0)] | None = None
    echo: bool | None = None


_ASKS_NOTHING: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "documents": ([],),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "length_penalty": (1,),
    "modalities": (["text"],),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "reasoning_effort": (),
    "suffix": ("",),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": (),
    "web_search_options": (),
}
"""Known fields that are not carried out here, with the values (besides null) that ask for nothing.

They are checked where they are not fields of the body: a chat's `max_completion_tokens` is one.
"""
_CHAT_ONLY: dict[str, tuple[Any, ...]] = {
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "add_generation_prompt": (True,),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
}
_COMPLETION_ONLY: dict[str, tuple[Any, ...]] = {"echo": (False,)}


def chat(values: Json, config: GatewayConfig) -> Call:
    """The call in a body of `/v1/chat/completions`. Raises RequestError naming the field."""
    refuse_unsupported(values, _ASKS_NOTHING | _COMPLETION_ONLY)
    body = validated(ChatBody, values)
    messages = [message.model_dump() for message in body.messages]
    return _call(
        Endpoint.CHAT,
        body,
        _chat_logprobs(body),
        config,
        prompts=(conversation.messages(messages),),
        max_tokens=body.max_completion_tokens or body.max_tokens,
        rendering=_rendering(body),
    )


def completion(values: Json, config: GatewayConfig) -> Call:
    """The call in a body of `/v1/completions`. Raises RequestError naming the field."""
    refuse_unsupported(values, _ASKS_NOTHING | _CHAT_ONLY)
    body = validated(CompletionBody, values)
    if body.echo and body.logprobs is not None:
        raise RequestError(
            "echo with logprobs is not supported here: a prompt's own logprobs are not computed",
            param="echo",
            code="unsupported_field",
        )
    return _call(
        Endpoint.COMPLETION,
        body,
        body.logprobs,
        config,
        prompts=_prompts(body.prompt),
        max_tokens=body.max_tokens,
        echo=bool(body.echo),
    )


def _call(
    endpoint: Endpoint,
    body: _Common,
    logprobs: int | None,
    config: GatewayConfig,
    **fields: Any,
) -> Call:
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options needs stream: true", param="stream_options")
    if logprobs is not None and logprobs > config.top_logprobs_max:
        name = "top_logprobs" if endpoint is Endpoint.CHAT else "logprobs"
        raise RequestError(f"{name} must be at most {config.top_logprobs_max}", param=name)
    return Call(
        endpoint=endpoint,
        model=body.model,
        sampling=steered(body, _sampling(body, logprobs)),
        guide=asked_guide(body),
        bad_words=bad_words(body),
        seed_given=body.seed is not None,
        stop=stop_strings(body.stop, config),
        stop_ids=frozenset(body.stop_token_ids or ()),
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        ignore_eos=bool(body.ignore_eos),
        return_token_ids=bool(body.return_token_ids),
        choices=body.n or 1,
        show_stop=bool(body.include_stop_str_in_output),
        show_special=body.skip_special_tokens is False,
        **fields,
    )


def _sampling(body: _Common, logprobs: int | None) -> Sampling:
    """`top_p` 0 keeps only the likeliest token, which is what `top_k` 1 says without a division."""
    top_p = 1.0 if body.top_p is None else body.top_p
    return Sampling(
        temperature=1.0 if body.temperature is None else float(body.temperature),
        top_p=float(top_p) or 1.0,
        top_k=1 if top_p == 0 else max(0, body.top_k or 0),
        seed=(body.seed or 0) & SEED_MASK,
        logprobs=logprobs,
    )


def _chat_logprobs(body: ChatBody) -> int | None:
    if not body.logprobs:
        if body.top_logprobs:
            raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
        return None
    return body.top_logprobs or 0


def _rendering(body: ChatBody) -> Rendering:
    if body.continue_final_message and body.add_generation_prompt:
        raise RequestError(
            "continue_final_message continues the last message: it needs add_generation_prompt"
            " false",
            param="continue_final_message",
        )
    opens = body.add_generation_prompt is not False and not body.continue_final_message
    return Rendering(
        add_generation_prompt=opens,
        continue_final=bool(body.continue_final_message),
        tools=tools.tool_use(body.tools, body.tool_choice, body.parallel_tool_calls),
        variables=conversation.template_variables(body.chat_template_kwargs or {}),
    )


def stop_strings(
    stop: str | list[Any] | None, config: GatewayConfig, name: str = "stop"
) -> tuple[str, ...]:
    """Raises RequestError for what cannot be looked for in an answer."""
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if not all(isinstance(text, str) for text in strings):
        raise RequestError(f"{name} must be a string or an array of strings", param=name)
    if len(strings) > config.stop_strings_max:
        raise RequestError(f"{name} may have at most {config.stop_strings_max} strings", param=name)
    if "" in strings:
        raise RequestError(f"{name} must not have an empty string", param=name)
    if any(len(text) > config.stop_chars_max for text in strings):
        raise RequestError(
            f"a string of {name} may have at most {config.stop_chars_max} characters", param=name
        )
    return strings


def _prompts(prompt: str | list[Any]) -> tuple[Prompt, ...]:
    """A string, an array of ids, or an array of either. An empty array is an empty prompt."""
    if isinstance(prompt, str):
        return (prompt,)
    if not prompt or _are_ids(prompt):
        return (tuple(prompt),)
    if all(isinstance(entry, str) for entry in prompt):
        return tuple(prompt)
    if all(isinstance(entry, list) and _are_ids(entry) for entry in prompt):
        return tuple(tuple(entry) for entry in prompt)
    raise RequestError(
        "prompt must be a string, an array of token ids, or an array of strings or of arrays of"
        " token ids",
        param="prompt",
    )


def _are_ids(entries: list[Any]) -> bool:
    return all(type(entry) is int for entry in entries)


PARSERS = {Endpoint.CHAT: chat, Endpoint.COMPLETION: completion}
