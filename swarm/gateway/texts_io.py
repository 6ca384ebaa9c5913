"""Tokens and prompts of the models in use; the heavy part is done in the helper process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from swarm.config import GatewayConfig
from swarm.errors import ShardError, SwarmError
from swarm.gateway import calls, dialects, text_work, token_table
from swarm.gateway.calls import Call, Endpoint
from swarm.gateway.text import TEXT_FILES
from swarm.gateway.text_process_io import TextHelper
from swarm.gateway.text_work import Parcel, UnknownModel
from swarm.gateway.token_table import TokenTable
from swarm.node_port import NodePort
from swarm.terms import ModelId, ModelSpec

SMALL_BODY_BYTES = 16 * 1024
"""Bodies up to this size are read here: well under a millisecond of work."""


@dataclass(frozen=True, slots=True)
class Words:
    """What is held here of a model's text."""

    table: TokenTable
    tool_family: str | None
    """How it writes tool calls; None where that is not known."""
    special: Mapping[str, int]
    """Its special tokens, by their texts."""


class Texts:
    """`Words` of each model, made once; whoever asks meanwhile waits for the same."""

    def __init__(self, node: NodePort, config: GatewayConfig, helper: TextHelper) -> None:
        self._node = node
        self._config = config
        self._helper = helper
        self._loads: dict[ModelId, asyncio.Task[Words | SwarmError]] = {}

    async def parse(self, endpoint: Endpoint, body: bytes) -> Call:
        """The call in a body. That of a big one comes without its prompts. Raises RequestError."""
        if len(body) <= SMALL_BODY_BYTES:
            return dialects.parse(endpoint, body, self._config)
        answer, _ = await self._helper.ask((text_work.parse_question(endpoint), body))
        text_work.check(answer)
        return calls.call_of(answer["call"])

    async def words(self, spec: ModelSpec) -> Words | None:
        """None for a model without tokenizer. Raises SwarmError when its files cannot be had."""
        if not spec.has_text:
            return None
        await self._forget_gone(spec.model_id)
        load = self._loads.get(spec.model_id)
        if load is None:
            load = asyncio.create_task(self._load(spec))
            self._loads[spec.model_id] = load
        outcome = await asyncio.shield(load)
        if isinstance(outcome, SwarmError):
            self._loads.pop(spec.model_id, None)
            raise outcome
        return outcome

    async def prompt_ids(
        self, call: Call, body: bytes, spec: ModelSpec, now: datetime
    ) -> list[tuple[int, ...]]:
        """Ids of the prompts of `call`, which came in `body`. Raises RequestError, ShardError."""
        is_small = len(body) <= SMALL_BODY_BYTES
        is_plain = not call.needs_tokenizer and all(map(text_work.is_ids, call.prompts))
        if is_small and (not spec.has_text or is_plain):
            return text_work.prompt_ids(call, spec, None, now)
        question = text_work.encode_question(call.endpoint, spec, now)
        return text_work.ids_of(*await self._ask(spec, (question, body)))

    async def banned(self, call: Call, spec: ModelSpec) -> tuple[tuple[int, ...], ...]:
        """What the call's bad words are in ids. Raises RequestError, ShardError."""
        if not call.bad_words:
            return ()
        question = text_work.words_question(spec.model_id, call.bad_words)
        answer, _ = await self._ask(spec, (question, b""))
        return tuple(tuple(ids) for ids in answer["banned"])

    async def close(self) -> None:
        loads = list(self._loads.values())
        self._loads.clear()
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)
        await self._helper.close()

    async def _ask(self, spec: ModelSpec, parcel: Parcel) -> Parcel:
        """A question about a model that the helper has, or had before it was started anew."""
        try:
            return await self._checked(parcel)
        except UnknownModel:
            self._loads.pop(spec.model_id, None)
            await self.words(spec)
        try:
            return await self._checked(parcel)
        except UnknownModel as error:
            raise ShardError(f"the tokenizer of {spec.name} was lost; ask again") from error

    async def _checked(self, parcel: Parcel) -> Parcel:
        answer, body = await self._helper.ask(parcel)
        text_work.check(answer)
        return answer, body

    async def _forget_gone(self, wanted: ModelId) -> None:
        known = {view.spec.model_id for view in self._node.models()} | {wanted}
        for model_id in [m for m, load in self._loads.items() if m not in known and load.done()]:
            del self._loads[model_id]
            await self._helper.ask((text_work.forget_question(model_id), b""))

    async def _load(self, spec: ModelSpec) -> Words | SwarmError:
        try:
            files = await self._files(spec)
            answer, body = await self._helper.ask(text_work.load_question(spec.model_id, files))
            text_work.check(answer)
            table = token_table.unpack(answer, body)
            return Words(table, answer["tool_family"], table.special_ids())
        except ShardError as error:
            return ShardError(f"the tokenizer of {spec.name} cannot be used: {error}")
        except SwarmError as error:
            return error

    async def _files(self, spec: ModelSpec) -> dict[str, bytes]:
        files = {}
        for name in TEXT_FILES:
            try:
                files[name] = await self._node.model_file(spec.model_id, name)
            except FileNotFoundError:
                continue
        return files
