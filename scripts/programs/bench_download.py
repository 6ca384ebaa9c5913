"""Weights from node to node against a plain TCP copy of as many bytes, on the same pair of hosts.

Two network namespaces with a wire of a stated rate between them (root is needed); each end is a
process of its own with the real links, files and proofs, without a model that could run. Both kinds
of copy take turns, so that what else the machine does slows both. With --itl: what such a download
does to a stream that runs on the node it comes from.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rig import ROOT, console, print_machine, print_table, spread

sys.path.insert(0, str(ROOT / "tests" / "weights"))

import download_itl
import swarm_netns
import uvloop
from link_pair import Build, LinkNode, Recorder, tcp_links
from weights_node import Node
from whole_model import Whole, raw, whole_at

from swarm.config import WeightsConfig
from swarm.fetch_facts import LayersFetched
from swarm.link.identity import Identity
from swarm.terms import Address, LayerRange

LAYERS = 8
FLOATS = 4_000_000
BLOCK = 1 << 20


async def end(seed: int, folder: Path, config: WeightsConfig) -> Node:
    identity = Identity(seed.to_bytes(32, "big"))
    events = Recorder()
    links = tcp_links(Build(seed=seed), identity, events)
    address = await links.listen("0.0.0.0", 0)  # noqa: S104
    return Node(LinkNode(links, events, address, identity), folder, config)


def giver(folder: Path) -> None:
    """Serves weights and a plain copy; ends with its standard input."""

    async def main() -> None:
        node = await end(1, folder / "giver", WeightsConfig())
        node.serves(whole_at(folder / "model", folder / "cache"))
        plain = await asyncio.start_server(copy_out, "0.0.0.0", 0)  # noqa: S104
        ports = (node.link.address.port, plain.sockets[0].getsockname()[1])
        print(*ports, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

    async def copy_out(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with (folder / "model" / "model.safetensors").open("rb") as file:
            while block := file.read(BLOCK):
                writer.write(block)
                await writer.drain()
        writer.close()

    uvloop.run(main())


def plain_seconds(host: str, port: int, target: Path) -> float:
    """A copy into a file, as a download ends in files."""
    began = time.perf_counter()
    with socket.create_connection((host, port)) as source, target.open("wb") as file:
        while block := source.recv(BLOCK):
            file.write(block)
    return time.perf_counter() - began


def getter(folder: Path, host: str, ports: tuple[int, int], name: str) -> None:
    """One plain copy, then one download of all layers; prints both times."""

    async def main() -> float:
        node = await end(2, folder / name, WeightsConfig())
        model: Whole = whole_at(folder / "model", folder / "cache")
        node.link.links.dial([Address(host, ports[0])], None)
        await node.link.events.until(lambda: node.link.events.up)
        began = time.perf_counter()
        fact = await node.fetch(model, LayerRange(0, LAYERS), LAYERS)
        took = time.perf_counter() - began
        assert isinstance(fact, LayersFetched), fact
        await node.weights.close()
        await node.link.links.close_all("done")
        return took

    print(plain_seconds(host, ports[1], folder / f"{name}.copy"), uvloop.run(main()), flush=True)


def inside(lan: swarm_netns.Lan, index: int, *arguments: str) -> list[str]:
    program = [sys.executable, str(Path(__file__))]
    return ["ip", "netns", "exec", lan.hosts[index], *program, *arguments]


def taker(folder: Path, endpoint: str) -> None:
    """The end that downloads for `download_itl`."""

    async def main() -> None:
        node = await end(2, folder / "taker", WeightsConfig())
        host, _, port = endpoint.rpartition(":")
        await download_itl.take(node, folder, Address(host, int(port)))
        await node.weights.close()
        await node.link.links.close_all("done")

    uvloop.run(main())


@contextlib.contextmanager
def wired(rate: str) -> Iterator[swarm_netns.Lan]:
    """Two hosts and a wire of this rate between them."""
    with swarm_netns.Lan(2, "d") as lan:
        for host in lan.hosts if rate else ():
            shape = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "20ms"]
            subprocess.run(
                ["ip", "netns", "exec", host, "tc", "qdisc", "add", "dev", "eth0", *shape],
                check=True,
            )
        yield lan


def measure(folder: Path, rounds: int, rate: str) -> tuple[list[float], list[float]]:
    with wired(rate) as lan:
        command = inside(lan, 0, "--role", "giver", "--folder", str(folder))
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as serving:
            assert serving.stdout is not None
            ports = serving.stdout.readline().split()
            plain, weights = [], []
            for number in range(rounds):
                ask = ["--role", "getter", "--folder", str(folder), "--name", f"get{number}",
                       "--host", lan.address(0), "--ports", *ports]  # fmt: skip
                done = subprocess.run(
                    inside(lan, 1, *ask), check=True, capture_output=True, text=True
                )
                one, other = (float(word) for word in done.stdout.split())
                plain.append(one)
                weights.append(other)
            serving.terminate()
        return plain, weights


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", default="1gbit", help="of the wire, as tc names it; '' for none")
    parser.add_argument("--itl", action="store_true",
                        help="what a download does to a running stream")  # fmt: skip
    parser.add_argument("--tokens", type=int, default=400, help="of each stream, with --itl")
    parser.add_argument("--role", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--host", help=argparse.SUPPRESS)
    parser.add_argument("--ports", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.role == "giver":
        giver(given.folder)
        return 0
    if given.role == "taker":
        taker(given.folder, given.host)
        return 0
    if given.role == "getter":
        getter(given.folder, given.host, tuple(given.ports), given.name)
        return 0
    if (reason := swarm_netns.why_not()) is not None:
        raise SystemExit(reason)
    print_machine()
    if given.itl:
        with (
            tempfile.TemporaryDirectory(prefix="swarm-download-") as name,
            wired(given.rate) as lan,
        ):
            return download_itl.measure(lan, inside, Path(name), given.rounds, given.tokens)
    compare(given.rounds, given.rate)
    return 0


def compare(rounds: int, rate: str) -> None:
    with tempfile.TemporaryDirectory(prefix="swarm-download-") as name:
        folder = Path(name)
        model = raw(folder, LAYERS, FLOATS)
        size = (model.path / "model.safetensors").stat().st_size
        plain, weights = measure(folder, rounds, rate)
    rows = [
        (what, spread(times), f"{size / spread(times).median / 1e6:.0f}")
        for what, times in (("plain TCP copy", plain), ("weights, proven and written", weights))
    ]
    print_table(f"{size >> 20} MiB, wire {rate or 'unlimited'}",
                ["", "seconds", "MB/s"], rows)  # fmt: skip
    share = 100 * spread(plain).median / spread(weights).median
    console.print(f"the download reaches {share:.0f} % of the plain copy")


if __name__ == "__main__":
    raise SystemExit(main())
