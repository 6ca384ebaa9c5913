"""Tokenizers and templates of the models in use, read once each through the node."""

from __future__ import annotations

import asyncio

from swarm.errors import ShardError, SwarmError
from swarm.gateway.text import TEXT_FILES, ModelText, TextUnusable
from swarm.node_port import NodePort
from swarm.terms import ModelId, ModelSpec


class Texts:
    """One `ModelText` per model, built off the loop; whoever asks meanwhile waits for the same."""

    def __init__(self, node: NodePort) -> None:
        self._node = node
        self._loads: dict[ModelId, asyncio.Task[ModelText | SwarmError]] = {}

    async def get(self, spec: ModelSpec) -> ModelText | None:
        """None for a model without tokenizer. Raises SwarmError when its files cannot be had."""
        if not spec.has_text:
            return None
        self._forget_gone(spec.model_id)
        load = self._loads.get(spec.model_id)
        if load is None:
            load = asyncio.create_task(self._load(spec))
            self._loads[spec.model_id] = load
        outcome = await asyncio.shield(load)
        if isinstance(outcome, SwarmError):
            self._loads.pop(spec.model_id, None)
            raise outcome
        return outcome

    async def close(self) -> None:
        loads = list(self._loads.values())
        self._loads.clear()
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)

    def _forget_gone(self, wanted: ModelId) -> None:
        known = {view.spec.model_id for view in self._node.models()} | {wanted}
        for model_id in [m for m, load in self._loads.items() if m not in known and load.done()]:
            del self._loads[model_id]

    async def _load(self, spec: ModelSpec) -> ModelText | SwarmError:
        files: dict[str, bytes] = {}
        try:
            for name in TEXT_FILES:
                try:
                    files[name] = await self._node.model_file(spec.model_id, name)
                except FileNotFoundError:
                    continue
            return await asyncio.to_thread(ModelText, files)
        except TextUnusable as error:
            return ShardError(f"the tokenizer of {spec.name} cannot be used: {error}")
        except SwarmError as error:
            return error
