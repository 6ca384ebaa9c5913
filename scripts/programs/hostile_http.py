"""Hostile HTTP requests against a gateway: malformed, huge, slow, of wrong types, hung up on.

None may be answered with a 5xx that is not meant, and nothing may be left of them: no session, no
task, no descriptor. Exit code 1 where it was not so.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from rig import ROOT, console, print_table

sys.path.insert(0, str(ROOT / "tests" / "gateway"))

from fake_node import serving
from hostile_http import AT_ONCE, CONFIG, Result, assault, node


async def run(count: int, seed: int) -> Result:
    target = node()
    async with serving(target, CONFIG, real_helper=True) as served:
        return await assault(served, target, count, seed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    began = time.monotonic()
    result = asyncio.run(run(asked.requests, asked.seed))
    rows = [
        [str(status), f"{count:,}"]
        for status, count in sorted(result.statuses.items(), key=lambda item: str(item[0]))
    ]
    print_table("Answers", ["answer", "requests"], rows)
    seconds = time.monotonic() - began
    console.print(f"{asked.requests:,} requests, {AT_ONCE} at once, {seconds:.0f} s")
    for line in result.bad:
        console.print(line)
    console.print("nothing left" if not result.bad else f"{len(result.bad)} things are wrong")
    return 1 if result.bad else 0


if __name__ == "__main__":
    sys.exit(main())
