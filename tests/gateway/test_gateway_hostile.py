"""Hostile clients, a few hundred; `scripts/hostile_http` sends ten thousand."""

from __future__ import annotations

import asyncio

from fake_node import serving
from hostile_http import CONFIG, Result, assault, node


def test_hostile_requests_are_refused_and_leave_nothing() -> None:
    async def main() -> Result:
        target = node()
        async with serving(target, CONFIG, real_helper=True) as served:
            return await assault(served, target, count=400, seed=1)

    result = asyncio.run(main())
    assert not result.bad, "\n".join(result.bad)
    assert result.statuses[200] > 20, result.statuses
    assert result.statuses[400] > 50 and result.statuses[413]
