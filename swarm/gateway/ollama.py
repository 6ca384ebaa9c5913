"""Requests of Ollama's API, checked: a JSON body becomes a `Call`. Pure.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md. Options that say how Ollama's own
engine is to run (`num_gpu`, `num_thread`, ...) do not concern an answer and are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import FailFast, Field

from swarm.config import GatewayConfig
from swarm.errors import RequestError
from swarm.gateway import conversation, tools
from swarm.gateway.calls import SEED_MASK, Call, Endpoint, Message, Prompt, Rendering, following
from swarm.gateway.fields import Body, Json, refuse_unsupported, validated
from swarm.gateway.openai import stop_strings
from swarm.gateway.sampling_fields import (
    ANY_OBJECT,
    BIAS_LIMIT,
    AskedGuide,
    Penalty,
    schema_guide,
)
from swarm.terms import Guide, GuideKind, Sampling

TEMPERATURE = 0.8
TOP_K = 40
TOP_P = 0.9
"""What Ollama takes where neither the client nor the model says."""

_ASKS_NOTHING: dict[str, tuple[Any, ...]] = {
    "context": ([],),
    "images": ([],),
    "logprobs": (False,),
    "raw": (False,),
    "suffix": ("",),
    "template": ("",),
    "think": (False,),
    "top_logprobs": (0,),
}
"""Known fields that are not carried out here, with the values that ask for nothing."""
_OPTIONS_ASK_NOTHING: dict[str, tuple[Any, ...]] = {
    "mirostat": (0,),
    "num_keep": (),
    "tfs_z": (1,),
    "typical_p": (1,),
}


class Options(Body):
    """`options` of a request. Those of the engine are not here: they are ignored."""

    num_predict: Annotated[int, Field(ge=-2)] | None = None
    num_ctx: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    stop: str | list[Any] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repeat_penalty: Annotated[float, Field(ge=0.01, le=BIAS_LIMIT)] | None = None


class _Common(Body):
    model: str
    stream: bool | None = None
    keep_alive: str | int | float | None = None
    options: Options | None = None
    format: str | dict[str, Any] | None = None


class ChatMessage(Body):
    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[Any] | None = None
    tool_name: str | None = None


class ChatBody(_Common):
    messages: Annotated[list[ChatMessage], FailFast()] = Field(default_factory=list)
    tools: list[Any] | None = None


class GenerateBody(_Common):
    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None


class ShowBody(Body):
    model: str | None = None
    name: str | None = None
    """What older clients call it."""


def chat(values: Json, config: GatewayConfig) -> Call:
    """The call in a body of `/api/chat`. Raises RequestError naming the field.

    Without messages Ollama loads the model, which is always loaded here: a call without prompts.
    """
    refuse_unsupported(values, _ASKS_NOTHING)
    body = validated(ChatBody, values)
    given = [_message(index, message) for index, message in enumerate(body.messages)]
    return _call(
        Endpoint.OLLAMA_CHAT,
        body,
        config,
        (conversation.messages(given),) if given else (),
        Rendering(tools=tools.tool_use(body.tools, None, None)),
    )


def generate(values: Json, config: GatewayConfig) -> Call:
    """The call in a body of `/api/generate`: the prompt as a user's message, or `raw` as it is.

    Raises RequestError naming the field.
    """
    refuse_unsupported(values, {k: v for k, v in _ASKS_NOTHING.items() if k != "raw"})
    body = validated(GenerateBody, values)
    if not body.prompt:
        return _call(Endpoint.OLLAMA_GENERATE, body, config, (), Rendering())
    prompt: Prompt = body.prompt
    if not body.raw:
        system: list[Message] = [{"role": "system", "content": body.system}] if body.system else []
        prompt = (*system, {"role": "user", "content": body.prompt})
    return _call(Endpoint.OLLAMA_GENERATE, body, config, (prompt,), Rendering())


def _call(
    endpoint: Endpoint,
    body: _Common,
    config: GatewayConfig,
    prompts: tuple[Prompt, ...],
    rendering: Rendering,
) -> Call:
    if body.options is not None:
        refuse_unsupported(body.options.model_dump(), _OPTIONS_ASK_NOTHING, "options.")
    options = body.options or Options()
    limit = options.num_predict
    call = Call(
        endpoint=endpoint,
        model=body.model,
        prompts=prompts,
        max_tokens=limit if limit is not None and limit > 0 else None,
        sampling=_sampling(options),
        seed_given=options.seed is not None,
        stop=stop_strings(options.stop, config, "options.stop"),
        stream=body.stream is not False,
        include_usage=True,
        rendering=rendering,
        fills_context=limit is not None and limit < 0,
        context_wanted=options.num_ctx,
    )
    return following(call, _guide(body.format))


def _sampling(options: Options) -> Sampling:
    top_p = TOP_P if options.top_p is None else options.top_p
    return Sampling(
        temperature=TEMPERATURE if options.temperature is None else options.temperature,
        top_p=float(top_p) or 1.0,
        top_k=1 if top_p == 0 else TOP_K if options.top_k is None else options.top_k,
        seed=(options.seed or 0) & SEED_MASK,
        min_p=options.min_p or 0.0,
        presence_penalty=options.presence_penalty or 0.0,
        frequency_penalty=options.frequency_penalty or 0.0,
        repetition_penalty=1.0 if options.repeat_penalty is None else options.repeat_penalty,
    )


def _guide(given: str | Json | None) -> AskedGuide | None:
    """`format`: any object, or what a schema describes."""
    if not given:
        return None
    if given == "json":
        return AskedGuide("format", Guide(GuideKind.JSON_SCHEMA, ANY_OBJECT))
    if isinstance(given, str):
        raise RequestError("format must be 'json' or a JSON schema", param="format")
    return AskedGuide("format", schema_guide(given, "format"))


def _message(index: int, message: ChatMessage) -> Message:
    """As OpenAI has it: only the tool calls and the names of results differ."""
    if message.images:
        raise RequestError(
            "images are not supported here", param=f"messages.{index}.images",
            code="unsupported_field",
        )  # fmt: skip
    fields = message.model_dump(exclude={"images", "tool_name"})
    if message.tool_name is not None:
        fields["name"] = message.tool_name
    return fields


def shown(values: Json) -> str:
    """The model that a body of `/api/show` means. Raises RequestError."""
    body = validated(ShowBody, values)
    name = body.model or body.name
    if not name:
        raise RequestError("model is required", param="model")
    return name


PARSERS = {Endpoint.OLLAMA_CHAT: chat, Endpoint.OLLAMA_GENERATE: generate}
