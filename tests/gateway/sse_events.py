"""The events of a stream, from its text."""

from __future__ import annotations

import json
from typing import Any


def events(text: str) -> list[Any]:
    """The JSON of the data events of a whole stream, which must end with the terminator."""
    blocks = [block for block in text.split("\n\n") if block.startswith("data: ")]
    assert blocks[-1] == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-1]]
