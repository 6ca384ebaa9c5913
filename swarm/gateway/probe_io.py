"""Readiness by proof: a token that came through a whole route lately, or is fetched now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from swarm.config import GatewayConfig
from swarm.effects import Failed, Finished
from swarm.errors import SwarmError
from swarm.node_port import NodePort
from swarm.snapshot import ModelView
from swarm.terms import ModelId, Order, Sampling

PROBE_PROMPT = (0,)
"""Any id will do: what counts is that every hop passes a row on."""


class Prober:
    """Runs at most one probe per model at a time; all who ask meanwhile get its outcome."""

    def __init__(self, node: NodePort, config: GatewayConfig, clock: Callable[[], float]) -> None:
        self._node = node
        self._config = config
        self._clock = clock
        self._running: dict[ModelId, asyncio.Task[str | None]] = {}
        self._passed: dict[ModelId, float] = {}

    def age_s(self, view: ModelView) -> float | None:
        """How old the newest proof is; None when there is none."""
        passed = self._passed.get(view.spec.model_id)
        ages = [view.probe_age_s, None if passed is None else self._clock() - passed]
        return min((age for age in ages if age is not None), default=None)

    async def problem(self, view: ModelView) -> str | None:
        """Why the model is not ready; None when it is."""
        age_s = self.age_s(view)
        if age_s is not None and age_s <= self._config.probe_fresh_s:
            return None
        model_id = view.spec.model_id
        probe = self._running.get(model_id)
        if probe is None:
            probe = asyncio.create_task(self._probe(model_id))
            self._running[model_id] = probe
            probe.add_done_callback(lambda _: self._running.pop(model_id, None))
        return await asyncio.shield(probe)

    async def close(self) -> None:
        probes = list(self._running.values())
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)

    async def _probe(self, model_id: ModelId) -> str | None:
        order = Order(model_id, PROBE_PROMPT, 1, Sampling(temperature=0.0), frozenset())
        try:
            async with asyncio.timeout(self._config.probe_timeout_s):
                problem = await self._outcome(order)
        except TimeoutError:
            return f"no token came through within {self._config.probe_timeout_s:g} s"
        except SwarmError as error:
            return str(error)
        if problem is None:
            self._passed[model_id] = self._clock()
        return problem

    async def _outcome(self, order: Order) -> str | None:
        generation = self._node.generate(order)
        try:
            async for event in generation:
                if isinstance(event, Finished):
                    return None
                if isinstance(event, Failed):
                    return str(event.error)
            return "the probe was cut off"
        finally:
            generation.cancel()
