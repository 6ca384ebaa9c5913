"""A small model that knows tools, in the way of the Hermes and Qwen families."""

from __future__ import annotations

from typing import Any

import tiny_text

TEMPLATE = (
    "{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>"
    " answer within <tool_call></tool_call>{% endif %}"
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "</tool_call>{% endfor %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "The weather of a place",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
TOOLS = [{"type": "function", "function": WEATHER}]
ASKS = 'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rom"}}\n</tool_call>'
"""What the model writes to call a tool."""


def files() -> dict[str, bytes]:
    return tiny_text.files(tiny_text.byte_level(), TEMPLATE)
