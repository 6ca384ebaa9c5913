"""What a link costs on loopback, direct, by way of a third node or as a WebRTC data channel, with
all nodes in one process: a handshake, the refusal of a stranger, an 8 KiB echo on the data lane,
bulk in 4 MiB messages, and coming up (of a channel: the relayed link too that it begins as).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

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
ECHOES = 300
BULK_BYTES = 4 << 20
BULK_MESSAGES = {"tcp": 20, "relayed": 20, "webrtc": 4}
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


@dataclass(frozen=True, slots=True)
class Elapsed:
    """Seconds, by the clock and of this process's processor time: others share the machine."""

    wall_s: float
    processor_s: float


class Watch:
    def __init__(self) -> None:
        self._wall_s, self._processor_s = time.perf_counter(), time.process_time()

    def read(self) -> Elapsed:
        return Elapsed(time.perf_counter() - self._wall_s, time.process_time() - self._processor_s)


async def echo(pair: Pair, times: int) -> Elapsed:
    left, right = pair.left, pair.right
    returned = asyncio.Event()
    right.events.on_message = lambda peer, message: right.links.send(peer, message)
    left.events.on_message = lambda peer, message: returned.set()
    message = FileChunk(MODEL, "f", 0, 0, bytes(8192))
    watch = Watch()
    for _ in range(times):
        returned.clear()
        left.links.send(right.id, message)
        await returned.wait()
    elapsed = watch.read()
    right.events.on_message = lambda peer, message: None
    left.events.messages.clear()
    right.events.messages.clear()
    return elapsed


async def bulk(pair: Pair, count: int) -> Elapsed:
    left, right = pair.left, pair.right
    message = FileChunk(MODEL, "f", 0, 0, bytes(BULK_BYTES))
    watch = Watch()
    for _ in range(count):
        await left.events.until(lambda: not left.links.data_lane_busy(right.id))
        left.links.send(right.id, message)
    await right.events.until(lambda: len(right.events.messages) == count)
    elapsed = watch.read()
    right.events.messages.clear()
    return elapsed


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
        echoes, bulks, ups = [], [], []
        count = BULK_MESSAGES[kind]

        async def scenario(
            bench: Bench,
            echoes: list[Elapsed] = echoes,
            bulks: list[Elapsed] = bulks,
            ups: list[float] = ups,
            count: int = count,
        ) -> None:
            pair = await bench.pair()
            for _ in range(ROUNDS):
                echoes.append(await echo(pair, ECHOES))
                bulks.append(await bulk(pair, count))
                ups.append(await up_millis(pair, 10))

        run(loop, kind, scenario)
        megabytes = count * BULK_BYTES / 1e6
        figures = {
            "8 KiB there and back, us": spread(e.wall_s / ECHOES * 1e6 for e in echoes),
            "the same in processor us": spread(e.processor_s / ECHOES * 1e6 for e in echoes),
            "4 MiB messages, MB/s": spread(megabytes / b.wall_s for b in bulks),
            "the same per processor s": spread(megabytes / b.processor_s for b in bulks),
            "dial until up on both sides, ms": spread(ups),
        }
        rows += [(f"{what} ({kind}, {loop})", figure) for what, figure in figures.items()]
    print_table("Links on loopback", ("what", "median (least to most)"), rows)
    console.print("Everything runs in one thread, so these are sums over all ends.", style="dim")


if __name__ == "__main__":
    main()
