"""Damaged frames and hostile handshakes against links. The node must live, take nothing, and leave
nothing behind. With `--kind relayed` its honest peer is reached by way of a third node, which
damages what it passes on. Exit code 1 where something was taken or left.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import psutil
from rig import ROOT, console, print_table

sys.path.insert(0, str(ROOT / "tests" / "link"))

from fuzzing import ATTACKS, FrameFuzzer, damage, damage_a_live_link
from link_pair import KINDS, LOOPS, Bench, LinkNode, Pair, with_config

from swarm.link.identity import Identity
from swarm.link.noise import Cipher
from swarm.messages import Heartbeat
from swarm.terms import Incarnation

MEMORY_BATCH = 1000
LIVE_LINKS_AT_ONCE = 4
HANDSHAKES_AT_ONCE = 16
LIVE_SHARE = 0.002
"""Part of the frames that go over live links where a number of frames is asked for: each link
costs a handshake of milliseconds, a frame in memory some 20 microseconds."""
HEARTBEAT = Heartbeat(bytes(8), Incarnation(1))


@dataclass(slots=True)
class Goal:
    """Until a time, or until the counts are reached."""

    deadline: float | None
    frames: int
    handshakes: int

    def reached(self, done: int, wanted: int) -> bool:
        return done >= wanted if self.deadline is None else time.monotonic() >= self.deadline


@dataclass(slots=True)
class Tally:
    memory_frames: int = 0
    live_frames: int = 0
    live_links: int = 0
    damaged_streams: int = 0
    handshakes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default 60)")
    parser.add_argument("--frames", type=int, default=0, help="damaged frames, instead of a time")
    parser.add_argument("--handshakes", type=int, default=0, help="hostile handshakes, likewise")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--kind", choices=KINDS, default="tcp")
    parser.add_argument("--loop", choices=sorted(LOOPS), default="uvloop")
    return parser.parse_args()


class Fuzz:
    """A linked pair under attack: `pair.left` is the target, `pair.right` its honest peer."""

    def __init__(self, pair: Pair, hub: LinkNode | None, rng: random.Random) -> None:
        self._pair = pair
        self._hub = hub
        self._rng = rng
        self.tally = Tally()
        self.frames = FrameFuzzer(rng)
        self._members = {pair.right.id}
        """Who may have a link: the honest peer, and those whose frames go bad afterwards."""

    async def run(self, goal: Goal) -> None:
        live_wanted = max(1, int(goal.frames * LIVE_SHARE)) if goal.frames else 0
        tally = self.tally
        over = (False, False, False)
        while not all(over):
            over = (
                goal.reached(tally.memory_frames, goal.frames - live_wanted),
                goal.reached(tally.live_frames, live_wanted),
                goal.reached(tally.handshakes.total(), goal.handshakes),
            )
            if not over[0]:
                self._frames_in_memory()
            if not over[1]:
                await self._frames_on_live_links()
            if not over[2]:
                await self._handshakes()
            if self._hub is not None:
                await self._damage_in_the_middle(self._hub)
            await self._honest_peer_is_served()

    async def _damage_in_the_middle(self, hub: LinkNode) -> None:
        """Bytes that neither end sent come on one lane: the link ends, and a new one is made."""
        left, right = self._pair.left, self._pair.right
        opened = list(hub.links._relays.middle._open.values())
        half = self._rng.choice(list(self._rng.choice(opened).halves.values()))
        half._transport.write(damage(self._rng, self._rng.randbytes(self._rng.randrange(1, 80))))
        half._transport.write(bytes(5))  # so that a length that was begun is whole
        half._transport.write(b"\xff" * (self._rng.choice((64, 1 << 16))))
        await self._ended(left, right)
        await self._ended(right, left)
        self.tally.damaged_streams += 1
        left.links.dial([right.address], right.id)
        await left.linked_to(right)
        await right.linked_to(left)

    @staticmethod
    async def _ended(node: LinkNode, other: LinkNode) -> None:
        await node.events.until(lambda: other.id not in node.events.up)

    def _frames_in_memory(self) -> None:
        for number in range(MEMORY_BATCH):
            if number % 4 == 3:
                self.frames.nonsense()
            else:
                self.frames.damaged(Cipher.AES_GCM if number % 4 else Cipher.CHACHA_POLY)
        self.tally.memory_frames += MEMORY_BATCH

    async def _frames_on_live_links(self) -> None:
        seeds = [self._rng.getrandbits(200) for _ in range(LIVE_LINKS_AT_ONCE)]
        rngs = [random.Random(seed) for seed in seeds]
        self._members |= {Identity(seed.to_bytes(32, "big")).node_id for seed in seeds}
        address = self._pair.left.address
        sent = await asyncio.gather(
            *(damage_a_live_link(rng, address, seed) for rng, seed in zip(rngs, seeds, strict=True))
        )
        self.tally.live_links += len(sent)
        self.tally.live_frames += sum(sent)

    async def _handshakes(self) -> None:
        attacks = [self._rng.choice(ATTACKS) for _ in range(HANDSHAKES_AT_ONCE)]
        rngs = [random.Random(self._rng.getrandbits(64)) for _ in attacks]
        address = self._pair.left.address
        await asyncio.gather(
            *(attack(rng, address) for attack, rng in zip(attacks, rngs, strict=True))
        )
        self.tally.handshakes.update(attack.__name__ for attack in attacks)

    async def _honest_peer_is_served(self) -> None:
        left, right = self._pair.left, self._pair.right
        if right.id not in left.events.up or not left.links.send(right.id, HEARTBEAT):
            raise SystemExit("FAILED: the honest peer lost its link")
        await right.events.until(lambda: right.events.messages)
        right.events.messages.clear()
        left.events.messages.clear()
        self._check_events(left)

    def _check_events(self, node: LinkNode) -> None:
        """No hostile handshake gave a link; links of members went down only for a fault."""
        ups, downs = node.events.all("up"), node.events.all("down")
        self.tally.problems += [f"accepted: {up}" for up in ups if up[1] not in self._members]
        self.tally.problems += [f"an orderly end: {down}" for down in downs if down[3]]
        node.events.log.clear()
        node.events.notes.clear()


async def fuzz(options: argparse.Namespace, trouble: list[dict[str, Any]]) -> tuple[Fuzz, Bench]:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: trouble.append(context))
    bench = Bench(options.kind)
    pair = await bench.pair(with_config(handshakes_half_open_max=64), None)
    run = Fuzz(pair, bench.hub, random.Random(options.seed))
    counted = bool(options.frames or options.handshakes)
    deadline = None if counted else time.monotonic() + options.seconds
    await run.run(Goal(deadline, options.frames, options.handshakes))
    await pair.left.events.until(lambda: len(pair.left.events.up) == 1)
    problems = run.tally.problems
    connections = len(pair.left.links._connections)
    kept = 2 if bench.hub is None else 4
    if connections > kept:
        await asyncio.sleep(pair.left.links._config.handshake_timeout_s + 1.0)
        connections = len(pair.left.links._connections)
    if connections != kept:
        problems.append(f"{connections} connections are left, not {kept}")
    if pair.left.links._gate.half_open:
        problems.append(f"{pair.left.links._gate.half_open} half-open handshakes are left")
    await bench.close()
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    problems += [f"a task is left: {task}" for task in tasks]
    return run, bench


def main() -> int:
    options = arguments()
    console.print(f"seed {options.seed}, {options.loop}", style="dim")
    trouble: list[dict[str, Any]] = []
    process = psutil.Process()
    memory_before = process.memory_info().rss
    began = time.monotonic()
    with asyncio.Runner(loop_factory=LOOPS[options.loop]) as runner:
        run, _ = runner.run(fuzz(options, trouble))
    elapsed_s = time.monotonic() - began
    gc.collect()
    tally, frames = run.tally, run.frames
    problems = tally.problems
    problems += [f"reached the event loop: {context}" for context in trouble]
    if frames.opened_falsely:
        problems.append(f"{frames.opened_falsely} damaged frames were opened")
    print_table(
        f"Hostile input in {elapsed_s:.0f} s",
        ("what", "count"),
        [
            ("damaged or nonsensical frames, in memory", f"{tally.memory_frames:,}"),
            ("  refused", f"{frames.refused:,}"),
            ("  incomplete: would wait for more", f"{frames.incomplete:,}"),
            ("  sealed nonsense that is a message or skipped", f"{frames.decoded:,}"),
            ("  damaged and opened all the same", f"{frames.opened_falsely:,}"),
            ("damaged frames over live links", f"{tally.live_frames:,}"),
            ("  links made for them, all cut off", f"{tally.live_links:,}"),
            ("streams damaged by the node in the middle", f"{tally.damaged_streams:,}"),
            ("hostile handshakes on the live listener", f"{tally.handshakes.total():,}"),
            *((f"  {name}", f"{count:,}") for name, count in sorted(tally.handshakes.items())),
            ("memory grown, MiB", f"{(process.memory_info().rss - memory_before) / 2**20:.0f}"),
        ],
    )
    for problem in problems:
        console.print(f"FAILED: {problem}", style="red")
    console.print("node alive, nothing accepted, nothing left" if not problems else "not passed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
