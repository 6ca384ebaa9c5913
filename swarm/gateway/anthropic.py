"""Requests of Anthropic's messages, checked: a JSON body becomes a `Call`. Pure.

Source: https://docs.anthropic.com/en/api/messages. `cache_control` marks are ignored: prompts are
kept and found again without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import FailFast, Field

from swarm.config import GatewayConfig
from swarm.errors import RequestError
from swarm.gateway import conversation, tools
from swarm.gateway.calls import Call, Endpoint, Message, Rendering, ToolUse, following
from swarm.gateway.fields import Body, Json, refuse_unsupported, unsupported, validated
from swarm.gateway.openai import stop_strings
from swarm.gateway.sampling_fields import AskedGuide, schema_guide
from swarm.terms import Sampling

_ASKS_NOTHING: dict[str, tuple[Any, ...]] = {
    "container": (),
    "context_management": (),
    "mcp_servers": ([],),
    "thinking": ({"type": "disabled"},),
}


class _Message(Body):
    role: str
    content: str | list[Any]


class CountBody(Body):
    """Fields that say what the prompt is."""

    model: str
    messages: Annotated[list[_Message], FailFast(), Field(min_length=1)]
    system: str | list[Any] | None = None
    tools: list[Any] | None = None
    tool_choice: dict[str, Any] | None = None


class MessagesBody(CountBody):
    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: list[Any] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    metadata: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None


def messages(values: Json, config: GatewayConfig) -> Call:
    """The call in a body of `/v1/messages`. Raises RequestError naming the field."""
    refuse_unsupported(values, _ASKS_NOTHING)
    body = validated(MessagesBody, values)
    given, rendering = _prompt(body)
    call = Call(
        endpoint=Endpoint.MESSAGES,
        model=body.model,
        prompts=(given,),
        max_tokens=body.max_tokens,
        sampling=_sampling(body),
        seed_given=False,
        stop=stop_strings(body.stop_sequences, config, "stop_sequences"),
        stream=bool(body.stream),
        include_usage=True,
        rendering=rendering,
    )
    return following(call, _guide(body))


def _guide(body: MessagesBody) -> AskedGuide | None:
    """`output_config.format`, which was `output_format` before."""
    config = body.output_config or {}
    for name in config:
        if name != "format" and config[name] is not None:
            raise unsupported(f"output_config.{name}")
    param = "output_format" if body.output_format is not None else "output_config.format"
    form = body.output_format if body.output_format is not None else config.get("format")
    if form is None:
        return None
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        raise RequestError(f"{param}.type must be 'json_schema'", param=f"{param}.type")
    return AskedGuide(param, schema_guide(form.get("schema"), f"{param}.schema"))


def count(values: Json, config: GatewayConfig) -> Call:
    """The call in a body of `/v1/messages/count_tokens`: a prompt that nothing answers."""
    refuse_unsupported(values, _ASKS_NOTHING)
    body = validated(CountBody, values)
    given, rendering = _prompt(body)
    return Call(
        endpoint=Endpoint.COUNT_TOKENS,
        model=body.model,
        prompts=(given,),
        max_tokens=None,
        sampling=Sampling(),
        seed_given=False,
        rendering=rendering,
    )


def _sampling(body: MessagesBody) -> Sampling:
    top_p = 1.0 if body.top_p is None else body.top_p
    return Sampling(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=float(top_p) or 1.0,
        top_k=1 if top_p == 0 else body.top_k or 0,
    )


def _prompt(body: CountBody) -> tuple[tuple[Message, ...], Rendering]:
    given: list[Message] = []
    if body.system:
        given.append({"role": "system", "content": _text("system", body.system)})
    for index, message in enumerate(body.messages):
        given += _messages(f"messages.{index}", message)
    goes_on = given[-1]["role"] == "assistant" and not given[-1].get("tool_calls")
    rendering = Rendering(
        add_generation_prompt=not goes_on,
        continue_final=goes_on,
        tools=_tool_use(body),
    )
    return conversation.messages(given), rendering


def _messages(where: str, message: _Message) -> list[Message]:
    """One message is several where it has results of tools: each is one of its own, first."""
    if message.role not in ("user", "assistant"):
        raise RequestError(
            f"{where}.role must be 'user' or 'assistant'; a system prompt goes into system",
            param=f"{where}.role",
        )
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    texts: list[str] = []
    results: list[Message] = []
    calls: list[Json] = []
    for index, block in enumerate(message.content):
        at = f"{where}.content.{index}"
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text":
            texts.append(_field(at, block, "text"))
        elif kind == "tool_use" and message.role == "assistant":
            calls.append(_call(at, block))
        elif kind == "tool_result" and message.role == "user":
            results.append(_result(at, block))
        elif kind not in ("thinking", "redacted_thinking"):
            raise _odd_block(at, message.role)
    said: Message = {"role": message.role, "content": "\n".join(texts)}
    if calls:
        said["tool_calls"] = calls
    return [*results, said] if texts or calls or not results else results


def _odd_block(where: str, role: str) -> RequestError:
    kinds = "'text' or 'tool_use'" if role == "assistant" else "'text' or 'tool_result'"
    return RequestError(f"{where}.type must be {kinds} here", param=f"{where}.type")


def _call(where: str, block: Mapping[str, Any]) -> Json:
    if not isinstance(block.get("input"), dict):
        raise RequestError(f"{where}.input must be an object", param=f"{where}.input")
    function = {"name": _field(where, block, "name"), "arguments": block["input"]}
    return {"id": _field(where, block, "id"), "type": "function", "function": function}


def _result(where: str, block: Mapping[str, Any]) -> Message:
    return {
        "role": "tool",
        "tool_call_id": _field(where, block, "tool_use_id"),
        "content": _text(f"{where}.content", block.get("content") or ""),
    }


def _text(where: str, content: Any) -> str:
    """A text, or the texts of blocks."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where} must be a string or an array of text blocks", param=where)
    texts = []
    for index, block in enumerate(content):
        at = f"{where}.{index}"
        if not isinstance(block, dict) or block.get("type") != "text":
            raise RequestError(f"{at}.type must be 'text' here", param=f"{at}.type")
        texts.append(_field(at, block, "text"))
    return "\n".join(texts)


def _field(where: str, block: Mapping[str, Any], name: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise RequestError(f"{where}.{name} must be a string", param=f"{where}.{name}")
    return value


def _tool_use(body: CountBody) -> ToolUse | None:
    choice = body.tool_choice or {}
    kind = choice.get("type", "auto")
    named = {"auto": "auto", "none": "none", "any": "required"}
    chosen: Any = named.get(kind) if isinstance(kind, str) else None
    if kind == "tool":
        chosen = {"type": "function", "function": {"name": choice.get("name")}}
    if chosen is None:
        raise RequestError(
            "tool_choice.type must be 'auto', 'any', 'tool' or 'none'", param="tool_choice.type"
        )
    given = [_tool(index, tool) for index, tool in enumerate(body.tools or [])]
    return tools.tool_use(given, chosen, not choice.get("disable_parallel_tool_use"))


def _tool(index: int, tool: Any) -> Json:
    where = f"tools.{index}"
    if not isinstance(tool, dict):
        raise RequestError(f"{where} must be an object", param=where)
    if tool.get("type", "custom") not in ("custom", None):
        raise unsupported(f"{where}.type", "only tools of the client's own are")
    if not isinstance(tool.get("input_schema"), dict):
        raise RequestError(f"{where}.input_schema must be an object", param=f"{where}.input_schema")
    function = {name: tool.get(name) for name in ("name", "description", "strict")}
    return {"type": "function", "function": function | {"parameters": tool["input_schema"]}}


PARSERS = {Endpoint.MESSAGES: messages, Endpoint.COUNT_TOKENS: count}
