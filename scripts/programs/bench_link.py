"""What a link costs on loopback, direct or by way of a third node, with all nodes in one process:
a handshake, the refusal of a stranger, an 8 KiB echo on the data lane, bulk in 4 MiB messages, and
coming up.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from rig import ROOT, console, print_machine, print_table, spread

sys.path.insert(0, str(ROOT / "tests" / "link"))

from link_pair import KEY, KINDS, LOOPS, OTHER_KEY, Bench, Pair, run

from swarm.errors import HandshakeFailed
from swarm.link.handshake import Credentials, Handshake
from swarm.link.identity import Identity
from swarm.messages import FileChunk, Lane, ModelId
from swarm.terms import Incarnation

LEFT = Credentials(Identity(bytes(31) + b"\1"), KEY, Incarnation(1))
RIGHT = Credentials(Identity(bytes(31) + b"\2"), KEY, Incarnation(1))
ROUNDS = 5
MODEL = ModelId("0" * 32)


def _accepter() -> Handshake:
    return Handshake.accepter(RIGHT, os.urandom, lambda _: True)


def handshake() -> None:
    dialler, accepter = Handshake.dialler(LEFT, os.urandom, Lane.CONTROL), _accepter()
    last = dialler.receive(accepter.receive(dialler.start()).answer or b"")
    accepter.receive(last.answer or b"")


def refusal(hello: bytes) -> None:
    try:
        _accepter().receive(hello)
    except HandshakeFailed:
        return
    raise SystemExit("a stranger was let in")


def micros(work: Callable[[], None], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began) / times * 1e6


async def echo_micros(pair: Pair, times: int) -> float:
    left, right = pair.left, pair.right
    returned = asyncio.Event()
    right.events.on_message = lambda peer, message: right.links.send(peer, message)
    left.events.on_message = lambda peer, message: returned.set()
    message = FileChunk(MODEL, "f", 0, 0, bytes(8192))
    began = time.perf_counter()
    for _ in range(times):
        returned.clear()
        left.links.send(right.id, message)
        await returned.wait()
    elapsed = time.perf_counter() - began
    right.events.on_message = lambda peer, message: None
    left.events.messages.clear()
    right.events.messages.clear()
    return elapsed / times * 1e6


async def bulk_megabytes_s(pair: Pair, count: int) -> float:
    left, right = pair.left, pair.right
    message = FileChunk(MODEL, "f", 0, 0, bytes(4 << 20))
    began = time.perf_counter()
    for _ in range(count):
        await left.events.until(lambda: not left.links.data_lane_busy(right.id))
        left.links.send(right.id, message)
    await right.events.until(lambda: len(right.events.messages) == count)
    elapsed = time.perf_counter() - began
    right.events.messages.clear()
    return count * len(message.payload) / elapsed / 1e6


async def up_millis(pair: Pair, times: int) -> float:
    """From the dial to `link_up` on both sides, both lanes."""
    left, right = pair.left, pair.right
    total = 0.0
    for _ in range(times):
        left.links.close(right.id, "again")
        await left.events.until(lambda: not left.events.up)
        await right.events.until(lambda: not right.events.up)
        began = time.perf_counter()
        left.links.dial([right.address], right.id)
        await left.linked_to(right)
        await right.linked_to(left)
        total += time.perf_counter() - began
    return total / times * 1e3


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    print_machine()
    hello = Handshake.dialler(replace(LEFT, swarm_key=OTHER_KEY), os.urandom, Lane.CONTROL).start()
    rows = [
        ("handshake, both sides together, us", spread(micros(handshake, 100) for _ in range(5))),
        ("refusing a stranger, us", spread(micros(lambda: refusal(hello), 300) for _ in range(5))),
    ]
    for kind, loop in itertools.product(KINDS, LOOPS):
        echo, bulk, up = [], [], []

        async def scenario(
            bench: Bench, echo: list[float] = echo, bulk: list[float] = bulk, up: list[float] = up
        ) -> None:
            pair = await bench.pair()
            for _ in range(ROUNDS):
                echo.append(await echo_micros(pair, 500))
                bulk.append(await bulk_megabytes_s(pair, 20))
                up.append(await up_millis(pair, 10))

        run(loop, kind, scenario)
        rows += [
            (f"8 KiB there and back, us ({kind}, {loop})", spread(echo)),
            (f"4 MiB messages, MB/s ({kind}, {loop})", spread(bulk)),
            (f"dial until up on both sides, ms ({kind}, {loop})", spread(up)),
        ]
    print_table("Links on loopback", ("what", "median (least to most)"), rows)
    console.print("Everything runs in one thread, so these are sums over all ends.", style="dim")


if __name__ == "__main__":
    main()
