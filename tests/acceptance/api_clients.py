"""The real clients of four APIs, and every way in which they ask the same question."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anthropic
import ollama
import openai

TOKENS = 24
MODEL = "smollm2"
PROMPT = "Tell me about the sea."
MESSAGES: Any = [{"role": "user", "content": PROMPT}]
CLIENT_TIMEOUT_S = 120.0


class Clients:
    """One client of each kind. Every answer is greedy, so all ways must give the same text."""

    def __init__(self, url: str) -> None:
        self.openai = openai.OpenAI(
            base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=CLIENT_TIMEOUT_S
        )
        self.anthropic = anthropic.Anthropic(
            base_url=url, api_key="unused", max_retries=0, timeout=CLIENT_TIMEOUT_S
        )
        self.ollama = ollama.Client(host=url, timeout=CLIENT_TIMEOUT_S)

    def close(self) -> None:
        self.openai.close()
        self.anthropic.close()
        self.ollama._client.close()

    def ways(self) -> list[Callable[[], str]]:
        return [
            self.chat, self.chat_stream, self.completion, self.response, self.response_stream,
            self.ollama_chat, self.ollama_stream, self.ollama_generate, self.message,
            self.message_stream,
        ]  # fmt: skip

    def chat(self) -> str:
        answer = self.openai.chat.completions.create(
            model=MODEL, messages=MESSAGES, temperature=0, max_tokens=TOKENS, n=2
        )
        first, second = (choice.message.content or "" for choice in answer.choices)
        assert first == second
        return first

    def chat_stream(self) -> str:
        stream = self.openai.chat.completions.create(
            model=MODEL, messages=MESSAGES, temperature=0, max_tokens=TOKENS, stream=True
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    def completion(self) -> str:
        """Of the prompt that the chat template makes, as ids."""
        shown = self.openai.chat.completions.create(
            model=MODEL, messages=MESSAGES, temperature=0, max_tokens=1,
            extra_body={"return_token_ids": True},
        )  # fmt: skip
        ids: Any = (shown.model_extra or {})["prompt_token_ids"]
        answer = self.openai.completions.create(
            model=MODEL, prompt=ids, temperature=0, max_tokens=TOKENS
        )
        return answer.choices[0].text

    def response(self) -> str:
        return self.openai.responses.create(
            model=MODEL, input=PROMPT, temperature=0, max_output_tokens=TOKENS
        ).output_text

    def response_stream(self) -> str:
        with self.openai.responses.create(
            model=MODEL, input=PROMPT, temperature=0, max_output_tokens=TOKENS, stream=True
        ) as stream:
            return "".join(e.delta for e in stream if e.type == "response.output_text.delta")

    def ollama_chat(self) -> str:
        return self.ollama.chat(MODEL, MESSAGES, options=self._options()).message.content or ""

    def ollama_stream(self) -> str:
        parts = self.ollama.chat(MODEL, MESSAGES, options=self._options(), stream=True)
        return "".join(part.message.content or "" for part in parts)

    def ollama_generate(self) -> str:
        return self.ollama.generate(MODEL, PROMPT, options=self._options()).response or ""

    def message(self) -> str:
        answer = self.anthropic.messages.create(
            model=MODEL, messages=MESSAGES, temperature=0, max_tokens=TOKENS
        )
        return "".join(block.text for block in answer.content if block.type == "text")

    def message_stream(self) -> str:
        with self.anthropic.messages.stream(
            model=MODEL, messages=MESSAGES, temperature=0, max_tokens=TOKENS
        ) as stream:
            return "".join(stream.text_stream)

    @staticmethod
    def _options() -> dict[str, Any]:
        return {"temperature": 0, "num_predict": TOKENS}
