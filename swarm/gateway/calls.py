"""What a client asks, in no dialect: a `Call`, and the orders that it becomes. Pure.

Every dialect reads its own bodies into this one form; tokens, sessions and answers know no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from pydantic import TypeAdapter

from swarm.config import GatewayConfig
from swarm.errors import RequestError
from swarm.gateway.sampling_fields import AskedGuide
from swarm.terms import ModelSpec, Order, Sampling

Json = dict[str, Any]

SEED_MASK = (1 << 63) - 1
"""Seeds travel as unsigned 63-bit numbers; a client's negative seed is folded into that range."""
SEED_STEP = 0x9E3779B97F4A7C15
"""Between the seeds of one prompt's choices: the golden ratio's bits, so that none lie close."""


class Endpoint(Enum):
    """Which endpoint was asked: what its prompt and its token limit are called there."""

    CHAT = "chat.completion"
    COMPLETION = "text_completion"
    RESPONSES = "response"
    OLLAMA_CHAT = "ollama.chat"
    OLLAMA_GENERATE = "ollama.generate"
    MESSAGES = "anthropic.message"
    COUNT_TOKENS = "anthropic.count_tokens"

    @property
    def prompt_field(self) -> str:
        return _PROMPT_FIELDS.get(self, "messages")

    @property
    def limit_field(self) -> str:
        return _LIMIT_FIELDS.get(self, "max_tokens")


_PROMPT_FIELDS = {
    Endpoint.COMPLETION: "prompt",
    Endpoint.RESPONSES: "input",
    Endpoint.OLLAMA_GENERATE: "prompt",
}
_LIMIT_FIELDS = {
    Endpoint.RESPONSES: "max_output_tokens",
    Endpoint.OLLAMA_CHAT: "options.num_predict",
    Endpoint.OLLAMA_GENERATE: "options.num_predict",
}

Message = dict[str, Any]
"""One chat message: `role`, `content` as text, and what else the client gave."""
Prompt = tuple[Message, ...] | str | tuple[int, ...]


AUTO, NONE, REQUIRED = "auto", "none", "required"
"""What a request may say of tools, beside the name of the one to call."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Functions that the model may call."""

    tools: tuple[Json, ...]
    """As OpenAI writes them down."""
    choice: str = AUTO
    """`auto`, `required`, or the name of the function to call."""
    parallel: bool = True
    """More than one call may come at once."""
    strict: bool = False
    """Calls must follow the schemas of their functions."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tool["function"]["name"] for tool in self.tools)


@dataclass(frozen=True, slots=True)
class Rendering:
    """How messages become a prompt, beside the messages."""

    add_generation_prompt: bool = True
    continue_final: bool = False
    """The last message is the beginning of the answer."""
    variables: Json = field(default_factory=dict)
    """What the client gives the model's template to read."""
    tools: ToolUse | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """What a client asks, checked, before the prompts are turned into ids. None: not given."""

    endpoint: Endpoint
    model: str
    prompts: tuple[Prompt, ...]
    """Empty in a call that comes from the helper process, unless it is echoed: they stay there."""
    max_tokens: int | None
    sampling: Sampling
    seed_given: bool
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    """Tokens that end the answer beside the model's own."""
    stream: bool = False
    include_usage: bool = False
    ignore_eos: bool = False
    return_token_ids: bool = False
    choices: int = 1
    """Answers to each prompt."""
    echo: bool = False
    """The answer's text begins with the prompt's."""
    show_stop: bool = False
    """A stop string that ends the answer is a part of it."""
    show_special: bool = False
    rendering: Rendering = field(default_factory=Rendering)
    fills_context: bool = False
    """No limit of tokens but the context."""
    context_wanted: int | None = None
    """The context that the client counts on."""
    told: Json = field(default_factory=dict)
    """What of the request the answer repeats."""
    guide: AskedGuide | None = None
    bad_words: tuple[str, ...] = ()
    """Texts that must not come about."""

    @property
    def needs_tokenizer(self) -> bool:
        """Whether more than prompts must be looked at by the tokenizer."""
        return self.guide is not None or bool(self.bad_words)


def following(call: Call, asked: AskedGuide | None) -> Call:
    """The call whose answer must conform to this guide, if there is one."""
    if asked is None:
        return call
    return replace(call, guide=asked, sampling=replace(call.sampling, guide=asked.guide.kind))


def call_json(call: Call) -> Json:
    """For the way out of the helper process; without prompts that nobody needs there."""
    kept = call if call.echo else replace(call, prompts=())
    encoded: Json = _CALLS.dump_python(kept, mode="json")
    return encoded


def call_of(encoded: Json) -> Call:
    """The call that `call_json` wrote down."""
    return _CALLS.validate_python(encoded)


_CALLS: TypeAdapter[Call] = TypeAdapter(Call)


def orders_of(
    call: Call,
    spec: ModelSpec,
    prompts: Sequence[tuple[int, ...]],
    seeds: Sequence[int],
    config: GatewayConfig,
) -> list[Order]:
    """One order for each choice of each prompt, in the order of their indexes.

    `seeds`: one for each prompt; they serve when the client gave none. Choice 0 has the seed
    itself, so that an answer does not depend on how many others were asked for.
    Raises RequestError as `token_limit` does.
    """
    count = len(prompts) * call.choices
    if count > config.choices_max:
        name = call.endpoint.prompt_field if call.choices == 1 else "n"
        raise RequestError(
            f"a request may ask for at most {config.choices_max} answers; this one asks for"
            f" {count}",
            param=name,
        )
    if call.context_wanted is not None and call.context_wanted > spec.context_length:
        raise RequestError(
            f"the context of {spec.name} is {spec.context_length} tokens, not"
            f" {call.context_wanted}",
            param="options.num_ctx",
            code="context_length_exceeded",
        )
    return [
        _order(call, spec, ids, seed + SEED_STEP * choice, config)
        for ids, drawn in zip(prompts, seeds, strict=True)
        for seed in [call.sampling.seed if call.seed_given else drawn]
        for choice in range(call.choices)
    ]


def _order(
    call: Call, spec: ModelSpec, prompt_ids: tuple[int, ...], seed: int, config: GatewayConfig
) -> Order:
    max_tokens = token_limit(call, spec, prompt_ids, config)
    stop_ids = call.stop_ids | (frozenset() if call.ignore_eos else frozenset(spec.eos_ids))
    return Order(
        model_id=spec.model_id,
        prompt_ids=prompt_ids,
        max_tokens=max_tokens,
        sampling=_steered(call, spec, seed, max_tokens, stop_ids),
        stop_ids=stop_ids,
        guide=call.guide.guide if call.guide is not None else None,
    )


def _steered(
    call: Call, spec: ModelSpec, seed: int, max_tokens: int, stop_ids: frozenset[int]
) -> Sampling:
    """Raises RequestError for what does not fit the model or the answer's length."""
    sampling = call.sampling
    if sampling.min_tokens > max_tokens:
        name = call.endpoint.limit_field
        raise RequestError(
            f"min_tokens is {sampling.min_tokens}, more than the {max_tokens} of {name}",
            param="min_tokens",
        )
    beyond = next((b.token_id for b in sampling.bias if b.token_id >= spec.vocab_size), None)
    if beyond is not None:
        raise RequestError(
            f"token id {beyond} of logit_bias is outside the vocabulary of {spec.name}"
            f" (0 to {spec.vocab_size - 1})",
            param="logit_bias",
        )
    if call.guide is not None and call.ignore_eos:
        raise RequestError(
            f"ignore_eos does not go with {call.guide.param}, which says where an answer ends",
            param="ignore_eos",
        )
    told = tuple(sorted(stop_ids)) if sampling.min_tokens or call.guide is not None else ()
    return replace(sampling, seed=seed & SEED_MASK, stop_ids=told)


def token_limit(
    call: Call, spec: ModelSpec, prompt_ids: Sequence[int], config: GatewayConfig
) -> int:
    """How many tokens may be generated: what was asked, or the default within what is left.

    Raises RequestError for an empty prompt, too long a context, ids outside the vocabulary.
    """
    param = call.endpoint.prompt_field
    if not prompt_ids:
        raise RequestError("the prompt is empty", param=param)
    left = spec.context_length - len(prompt_ids)
    wanted = call.max_tokens
    if left < 1 or (wanted is not None and wanted > left):
        asked = "" if wanted is None else f" and {wanted} to generate"
        raise RequestError(
            f"the context of {spec.name} is {spec.context_length} tokens; this request has"
            f" {len(prompt_ids)} in the prompt{asked}",
            param=param if left < 1 else call.endpoint.limit_field,
            code="context_length_exceeded",
        )
    for token_id in (min(prompt_ids), max(prompt_ids)):
        if not 0 <= token_id < spec.vocab_size:
            raise RequestError(
                f"token id {token_id} is outside the vocabulary of {spec.name}"
                f" (0 to {spec.vocab_size - 1})",
                param=param,
            )
    if wanted is not None:
        return wanted
    return left if call.fills_context else min(config.max_tokens_default, left)
