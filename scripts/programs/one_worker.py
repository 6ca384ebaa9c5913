"""One worker without a network: driven over its socketpair by the messages that a daemon sends."""

from __future__ import annotations

import itertools
import json
import os
import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from rig import ROOT
from streams import prompt_ids

from swarm.config import RoutingConfig, ShardConfig
from swarm.messages import (
    Begin,
    End,
    Inspect,
    Inspected,
    Load,
    Loaded,
    LoadProgress,
    Message,
    Ran,
    RowType,
    Run,
    SpeedReport,
    StepKind,
)
from swarm.shard.frames import FrameReader, pack
from swarm.terms import LayerRange, Sampling, SessionId
from swarm.worker_messages import KV_BLOCK_TOKENS

M = TypeVar("M", bound=Message)
BUFFER_BYTES = 4 << 20
NEVER = 1 << 30
"""A `sample_from` that no row reaches."""


class Port:
    """The daemon's end of the socketpair, without an event loop."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self._reader = FrameReader()
        self._waiting: list[Message] = []

    def send(self, messages: Sequence[Message]) -> None:
        self.channel.sendall(b"".join(part for message in messages for part in pack(message)))

    def receive(self) -> Message:
        """The next message that is neither progress nor a report."""
        while True:
            while self._waiting:
                message = self._waiting.pop(0)
                if not isinstance(message, LoadProgress | SpeedReport):
                    return message
            count = self.channel.recv_into(self._reader.space())
            if count == 0:
                raise SystemExit("the worker ended")
            self._waiting += self._reader.filled(count)

    def expect(self, kind: type[M]) -> M:
        message = self.receive()
        if not isinstance(message, kind):
            raise SystemExit(f"the worker answered {message}")
        return message


class Driver:
    """What a daemon would do: loads a shard, gives sessions blocks, sends runs."""

    def __init__(self, port: Port, seed: int = 1) -> None:
        self.port = port
        self._rng = random.Random(seed)
        self._names = itertools.count()
        self._free: list[int] = []
        self._held: dict[SessionId, list[int]] = {}
        self.loaded: Loaded
        self.layer_count = 0

    def load(self, model: Path, layers: LayerRange | None, kv_tokens: int, cache: Path) -> Loaded:
        """`layers`: None takes all. Room for `kv_tokens` positions."""
        self.port.send([Inspect(str(model), model.name, str(cache))])
        found = self.port.expect(Inspected)
        self.layer_count = found.spec.layer_count
        part = layers or LayerRange(0, self.layer_count)
        embed, head = part.start == 0, part.stop == self.layer_count
        blocks = -(-kv_tokens // KV_BLOCK_TOKENS)
        order = Load(str(model), found.spec.model_id, part, embed, head, kv_blocks=blocks)
        self.port.send([order])
        self.loaded = self.port.expect(Loaded)
        self._free = list(range(self.loaded.kv_blocks))
        return self.loaded

    @property
    def takes_ids(self) -> bool:
        return self.loaded.layers.start == 0

    def begin(self, prompt: int, limit: int, sampling: Sampling) -> SessionId:
        """A session with blocks for all `limit` positions."""
        key = SessionId(f"bench{next(self._names)}")
        count = -(-limit // KV_BLOCK_TOKENS) if self.loaded.kv_blocks else 0
        if count > len(self._free):
            raise SystemExit(f"{count} blocks wanted, {len(self._free)} are free")
        self._held[key] = [self._free.pop() for _ in range(count)]
        loaded = self.loaded
        head = loaded.layers.stop == self.layer_count
        order = Begin(
            key,
            1,
            loaded.model_id,
            loaded.layers,
            self.takes_ids,
            head,
            prompt,
            limit,
            sampling,
            blocks=struct.pack(f"<{count}i", *self._held[key]),
        )
        self.port.send([order])
        return key

    def end(self, key: SessionId) -> None:
        self.port.send([End(key)])
        self._free += self._held.pop(key)

    def rows(self, count: int) -> bytes:
        """A payload: ids, or hidden states that are nothing in particular."""
        if self.takes_ids:
            return struct.pack(f"<{count}i", *prompt_ids(count, self._rng))
        row = struct.pack("<4h", 0, 16256, 0, -16512)  # 1 and -1 as float32
        return (row * (count * self.loaded.row_bytes // len(row) + 1))[
            : count * self.loaded.row_bytes
        ]

    def run(self, key: SessionId, position: int, payload: bytes, last: int) -> Run:
        """A step; `last`: the position of the first row that a head samples."""
        width = 4 if self.takes_ids else self.loaded.row_bytes
        kind = StepKind.DECODE if len(payload) == width else StepKind.PREFILL
        row_type = RowType.IDS if self.takes_ids else self.loaded.row_type
        return Run(key, 1, position, len(payload) // width, kind, row_type, last, payload=payload)

    def prefill(self, keys: Sequence[SessionId], count: int) -> float:
        """Feed every session a prompt, in chunks as origins send them; seconds until all is run."""
        chunk = RoutingConfig().prefill_chunk_tokens
        width = 4 if self.takes_ids else self.loaded.row_bytes
        orders = []
        for key in keys:
            payload = self.rows(count)
            for first in range(0, count, chunk):
                piece = payload[first * width : (first + chunk) * width]
                orders.append(self.run(key, first, piece, count - 1))
        began = time.perf_counter()
        self.port.send(orders)
        for _ in orders:
            self.port.expect(Ran)
        return time.perf_counter() - began

    def decode(self, keys: Sequence[SessionId], position: int, steps: int) -> float:
        """One row of every session per step, all sent at once; seconds of all steps."""
        row = self.rows(1)
        began = time.perf_counter()
        for step in range(position, position + steps):
            self.port.send([self.run(key, step, row, step) for key in keys])
            for _ in keys:
                self.port.expect(Ran)
        return time.perf_counter() - began


class WorkerProcess:
    """A worker as a daemon starts it, and its end of the socketpair."""

    def __init__(self, config: ShardConfig, cores: str) -> None:
        self._config = config
        self._cores = cores

    def __enter__(self) -> Port:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        descriptor = theirs.fileno()
        arguments = [str(descriptor), json.dumps(asdict(self._config)), str(os.getpid())]
        pinned = ["taskset", "-c", self._cores, sys.executable]
        with theirs:
            self.process = subprocess.Popen(
                [*pinned, "-m", "swarm.shard.worker_io", *arguments],
                pass_fds=(descriptor,),
                stdin=subprocess.DEVNULL,
                env=worker_environment() | {"PYTHONPATH": str(ROOT)},
            )
        self._port = Port(ours)
        return self._port

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        channel = self._port.channel
        channel.shutdown(socket.SHUT_WR)
        while channel.recv(BUFFER_BYTES):  # what it still had to say, such as reports
            pass
        channel.close()
        self.process.wait()


def worker_environment() -> dict[str, str]:
    """As the daemon sets it: idle compute threads sleep soon, nothing is fetched."""
    quiet = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "GOMP_SPINCOUNT": "2000"}
    return quiet | dict(os.environ) | {"HF_HUB_OFFLINE": "1"}
