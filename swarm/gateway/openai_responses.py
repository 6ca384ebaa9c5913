"""Requests of OpenAI's `/v1/responses`, checked: a JSON body becomes a `Call`. Pure.

Source: https://platform.openai.com/docs/api-reference/responses. Nothing is stored here: a
conversation is sent anew with each request, and what asks for more is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from swarm.config import GatewayConfig
from swarm.errors import RequestError
from swarm.gateway import conversation, tools
from swarm.gateway.calls import SEED_MASK, Call, Endpoint, Message, Rendering, ToolUse, following
from swarm.gateway.fields import Body, Json, refuse_unsupported, unsupported, validated
from swarm.gateway.sampling_fields import ANY_OBJECT, AskedGuide, schema_guide
from swarm.terms import Guide, GuideKind, Sampling

INPUT_ITEMS_MAX = 4096
LOGPROBS = "message.output_text.logprobs"

_ASKS_NOTHING: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "conversation": (),
    "max_tool_calls": (),
    "previous_response_id": (),
    "prompt": (),
    "reasoning": ({}, {"effort": None}, {"effort": "none"}),
    "truncation": ("disabled",),
}
_INSTEAD = {
    "previous_response_id": "nothing is stored: send the whole conversation as input",
    "conversation": "nothing is stored: send the whole conversation as input",
}
_TEXT_PARTS = ("input_text", "output_text", "text")


class ResponsesBody(Body):
    model: str
    input: str | list[Any]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    include: list[str] | None = None
    stream: bool | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    user: str | None = None
    text: dict[str, Any] | None = None


def responses(values: Json, config: GatewayConfig) -> Call:
    """The call in a body of `/v1/responses`. Raises RequestError naming the field."""
    refuse_unsupported(values, _ASKS_NOTHING, instead=_INSTEAD)
    body = validated(ResponsesBody, values)
    given: list[Message] = []
    if body.instructions:
        given.append({"role": "system", "content": body.instructions})
    given += _messages(body.input)
    offered = _tool_use(body)
    call = Call(
        endpoint=Endpoint.RESPONSES,
        model=body.model,
        prompts=(conversation.messages(given),),
        max_tokens=body.max_output_tokens,
        sampling=_sampling(body, _logprobs(body, config)),
        seed_given=body.seed is not None,
        stream=bool(body.stream),
        include_usage=True,
        rendering=Rendering(tools=offered),
        told=_told(body),
    )
    return following(call, _guide(body.text or {}))


def _guide(text: Json) -> AskedGuide | None:
    """`text.format`: as `response_format` of chats, but flat."""
    for name in text:
        if name != "format" and text[name] is not None:
            raise unsupported(f"text.{name}")
    form = text.get("format")
    kind = form.get("type") if isinstance(form, dict) else None
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return AskedGuide("text.format", Guide(GuideKind.JSON_SCHEMA, ANY_OBJECT))
    if kind != "json_schema" or not isinstance(form.get("schema"), dict):
        raise RequestError(
            "text.format must be of type 'text' or 'json_object', or 'json_schema' with a schema",
            param="text.format",
        )
    return AskedGuide("text.format", schema_guide(form["schema"], "text.format.schema"))


def _logprobs(body: ResponsesBody, config: GatewayConfig) -> int | None:
    for what in body.include or ():
        if what != LOGPROBS:
            raise unsupported("include", f"only {LOGPROBS} can be")
    if (body.top_logprobs or 0) > config.top_logprobs_max:
        raise RequestError(
            f"top_logprobs must be at most {config.top_logprobs_max}", param="top_logprobs"
        )
    return body.top_logprobs or 0 if body.include or body.top_logprobs else None


def _sampling(body: ResponsesBody, logprobs: int | None) -> Sampling:
    top_p = 1.0 if body.top_p is None else body.top_p
    return Sampling(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=float(top_p) or 1.0,
        top_k=1 if top_p == 0 else max(0, body.top_k or 0),
        seed=(body.seed or 0) & SEED_MASK,
        logprobs=logprobs,
    )


def _messages(given: str | list[Any]) -> list[Message]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if len(given) > INPUT_ITEMS_MAX:
        raise RequestError(f"input may have at most {INPUT_ITEMS_MAX} items", param="input")
    if not given:
        raise RequestError("the prompt is empty", param="input")
    messages: list[Message] = []
    for index, item in enumerate(given):
        _add_item(f"input.{index}", item, messages)
    return messages


def _add_item(where: str, item: Any, messages: list[Message]) -> None:
    """One item as a message; calls that follow each other are one message of the assistant."""
    if not isinstance(item, dict):
        raise RequestError(f"{where} must be an object", param=where)
    kind = item.get("type", "message")
    if kind == "message":
        content = _content(f"{where}.content", item.get("content"))
        messages.append({"role": _field(where, item, "role"), "content": content})
    elif kind == "function_call":
        function = {name: _field(where, item, name) for name in ("name", "arguments")}
        call = {"id": _field(where, item, "call_id"), "type": "function", "function": function}
        last = messages[-1] if messages else {}
        if last.get("role") == "assistant":
            last.setdefault("tool_calls", []).append(call)
        else:
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
    elif kind == "function_call_output":
        output = _content(f"{where}.output", item.get("output"))
        call_id = _field(where, item, "call_id")
        messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
    elif kind != "reasoning":
        raise RequestError(
            f"{where}.type must be 'message', 'function_call', 'function_call_output' or"
            " 'reasoning' here",
            param=f"{where}.type",
        )


def _content(where: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where} must be a string or an array of text parts", param=where)
    texts = []
    for index, part in enumerate(content):
        at = f"{where}.{index}"
        if not isinstance(part, dict) or part.get("type") not in _TEXT_PARTS:
            raise RequestError(f"{at}.type must be 'input_text' here", param=f"{at}.type")
        texts.append(_field(at, part, "text"))
    return "\n".join(texts)


def _field(where: str, item: Mapping[str, Any], name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise RequestError(f"{where}.{name} must be a string", param=f"{where}.{name}")
    return value


def _tool_use(body: ResponsesBody) -> ToolUse | None:
    """Tools lie flat here, and so does the choice of one."""
    given = []
    for index, tool in enumerate(body.tools or []):
        if isinstance(tool, dict) and tool.get("type") not in (None, "function"):
            raise unsupported(f"tools.{index}.type", "only functions of the client's own are")
        given.append({"type": "function", "function": tool} if isinstance(tool, dict) else tool)
    choice = body.tool_choice
    if isinstance(choice, dict):
        choice = {"type": choice.get("type"), "function": {"name": choice.get("name")}}
    return tools.tool_use(given, choice, body.parallel_tool_calls)


def _told(body: ResponsesBody) -> Json:
    """What a response repeats of its request."""
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": body.text or {"format": {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": body.tools or [],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "user": body.user,
    }


PARSERS = {Endpoint.RESPONSES: responses}
