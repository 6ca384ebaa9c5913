"""Watchers of /swarm/events beside streamed answers, for minutes, on two nodes of this machine.

Most watchers read what comes, some never read anything. Meanwhile /healthz is asked ten times a
second. It is well when the 95th percentile of its times stays within the limit, when the daemon's
memory does not grow after a warm-up, and when every answer ends as it should.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from rig import console, end_orderly, print_table
import aiohttp
import psutil
from swarm_procs import SMOLLM2, Node, NodePlan, Swarm

HOLDERS = {"anna": "0:15", "bert": "15:30"}
PROBE_S = 0.1
HEALTH_LIMIT_MS = 50.0
WARM_UP = 0.2
"""Of the time, before memory is looked at: caches and buffers fill."""
GROWTH_MAX_BYTES = 16 << 20
"""From the median of the fifth after the warm-up to that of the last: allocators move so much."""
RETRY_S = 1.0


@dataclass
class Figures:
    """Of the node under load."""

    health_ms: list[float] = field(default_factory=list)
    rss_bytes: list[int] = field(default_factory=list)

    @property
    def growth_bytes(self) -> float:
        fifth = max(1, len(self.rss_bytes) // 5)
        warm = self.rss_bytes[int(len(self.rss_bytes) * WARM_UP) :]
        return statistics.median(warm[-fifth:]) - statistics.median(warm[:fifth])

    @property
    def health_p95_ms(self) -> float:
        return statistics.quantiles(self.health_ms, n=20)[-1]


def main() -> int:
    end_orderly()
    options = _options()
    if options.load:
        asyncio.run(_load(options))
        return 0
    with tempfile.TemporaryDirectory(prefix="swarm-watch-") as folder, Swarm(Path(folder)) as swarm:
        with console.status("starting two nodes"):
            for name, cut in HOLDERS.items():
                swarm.start(NodePlan(name, SMOLLM2, cut, extra=("--quantization", "int8")))
            swarm.await_ready(options.patience)
        return _measure(swarm.nodes["anna"], options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("scripts/soak_watchers", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--watchers", type=int, default=200)
    parser.add_argument("--silent", type=int, default=20, help="of the watchers, never read")
    parser.add_argument("--streams", type=int, default=64, help="answers at a time")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds for the start")
    parser.add_argument("--load", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


# ------------------------------------------------------------------ the node under load


def _measure(node: Node, options: argparse.Namespace) -> int:
    command = [sys.executable, __file__, "--load", node.gateway.url]
    for name in ("minutes", "watchers", "silent", "streams", "tokens"):
        command += [f"--{name}", str(getattr(options, name))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
        try:
            figures = _probe(node, options.minutes * 60)
            told, _ = load.communicate(timeout=120)
        finally:
            load.kill()
    return _verdict(figures, json.loads(told), options)


def _probe(node: Node, length_s: float) -> Figures:
    figures, process = Figures(), psutil.Process(node.process.pid)
    parts = urlsplit(node.gateway.url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=30)
    end = time.monotonic() + length_s
    while (began := time.monotonic()) < end:
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        figures.health_ms.append((time.monotonic() - began) * 1000)
        figures.rss_bytes.append(process.memory_info().rss)
        time.sleep(max(0.0, began + PROBE_S - time.monotonic()))
    connection.close()
    return figures


def _verdict(figures: Figures, told: dict[str, int], options: argparse.Namespace) -> int:
    health = sorted(figures.health_ms)
    rows = [
        ("/healthz median", f"{statistics.median(health):.1f} ms", ""),
        ("/healthz p95", f"{figures.health_p95_ms:.1f} ms", f"{HEALTH_LIMIT_MS:.0f} ms"),
        ("/healthz worst", f"{health[-1]:.1f} ms", ""),
        ("memory at the end", f"{figures.rss_bytes[-1] / 2**20:.0f} MiB", ""),
        (
            "memory grown",
            f"{figures.growth_bytes / 2**20:.1f} MiB",
            f"{GROWTH_MAX_BYTES >> 20} MiB",
        ),
    ]
    rows += [(name, count, "") for name, count in sorted(told.items())]
    print_table(
        f"{options.watchers} watchers, {options.streams} streams, {options.minutes:g} minutes",
        ["", "measured", "limit"],
        rows,
    )
    problems = []
    if figures.health_p95_ms > HEALTH_LIMIT_MS:
        problems.append("/healthz is slow")
    if figures.growth_bytes > GROWTH_MAX_BYTES:
        problems.append("memory grows")
    if told.get("answers that failed") or not told.get("tokens"):
        problems.append("answers failed")
    if not told.get("events read"):
        problems.append("watchers saw nothing")
    console.print(
        f"[bold red]{', '.join(problems)}[/]" if problems else "[bold green]all is well[/]"
    )
    return 1 if problems else 0


# ------------------------------------------------------------------ the load, in its own process


async def _load(options: argparse.Namespace) -> None:
    counts: Counter[str] = Counter()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(options.load, connector=connector) as client:
        tasks = [
            asyncio.create_task(_watch(client, counts, reads=number >= options.silent))
            for number in range(options.watchers)
        ]
        tasks += [
            asyncio.create_task(_stream(client, counts, options, number))
            for number in range(options.streams)
        ]
        await asyncio.sleep(options.minutes * 60)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    broken = [error for error in ended if not isinstance(error, asyncio.CancelledError)]
    counts["clients that broke"] = len(broken)
    print(json.dumps(counts))


async def _watch(client: aiohttp.ClientSession, counts: Counter[str], *, reads: bool) -> None:
    """Silent ones are cut off by the gateway in time, and come again."""
    timeout = aiohttp.ClientTimeout(total=None if reads else 90.0)
    while True:
        try:
            async with client.get("/swarm/events", timeout=timeout) as response:
                response.raise_for_status()
                if not reads:
                    await asyncio.Event().wait()
                async for line in response.content.iter_any():
                    counts["events read"] += line.count(b"\ndata: ")
                    counts["bytes read"] += len(line)
        except (aiohttp.ClientError, TimeoutError):
            counts["watchers that came again"] += 1
            await asyncio.sleep(RETRY_S)


async def _stream(
    client: aiohttp.ClientSession, counts: Counter[str], options: argparse.Namespace, number: int
) -> None:
    body = {
        "model": "smollm2", "prompt": f"Once upon a time, number {number} of us",
        "max_tokens": options.tokens, "stream": True, "ignore_eos": True, "seed": number,
    }  # fmt: skip
    timeout = aiohttp.ClientTimeout(total=None)
    while True:
        async with client.post("/v1/completions", json=body, timeout=timeout) as response:
            text = await response.read() if response.status != 200 else b""
            async for line in response.content:
                counts["tokens"] += line.startswith(b"data: {")
                text = line if line.startswith(b"data: ") else text
        counts["answers"] += text.strip() == b"data: [DONE]"
        counts["answers that failed"] += text.strip() != b"data: [DONE]"


if __name__ == "__main__":
    raise SystemExit(main())
