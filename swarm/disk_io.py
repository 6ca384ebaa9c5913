"""What a running node reads and writes on its disk, beside the loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from swarm.errors import ConfigError
from swarm.home_io import Home
from swarm.node import NodeCore
from swarm.notes import Level, NoteSink, note
from swarm.terms import Address, Incarnation, ModelId

CONFIG_NAME = "config.json"
GGUF_MAGIC = b"GGUF"


def check_model_path(path: Path) -> None:
    """What is seen at a glance not to be a checkpoint. Raises ConfigError."""
    if path.is_dir():
        if not (path / CONFIG_NAME).exists():
            raise ConfigError(f"{path} has no {CONFIG_NAME}, so it is not a model folder")
        return
    try:
        with path.open("rb") as stream:
            magic = stream.read(len(GGUF_MAGIC))
    except FileNotFoundError as error:
        raise ConfigError(
            f"there is no model at {path}; give a Hugging Face folder or a .gguf"
        ) from error
    except OSError as error:
        raise ConfigError(f"the model {path} cannot be read: {error.strerror}") from error
    if path.suffix != ".gguf" or magic != GGUF_MAGIC:
        raise ConfigError(f"{path} is neither a model folder nor a GGUF file")


class LocalCheckpoints:
    """Text files of this node's checkpoints: they lie beside the manifest."""

    def __init__(self) -> None:
        self.core: NodeCore | None = None

    async def read(self, model_id: ModelId, name: str) -> bytes | None:
        found = await self.read_piece(model_id, name, 0, -1)
        return None if found is None else found[1]

    async def read_piece(
        self, model_id: ModelId, name: str, offset: int, count: int
    ) -> tuple[int, bytes] | None:
        known = self.core.manifests().get(model_id) if self.core is not None else None
        if known is None:
            return None
        file = Path(known[1]).with_name(name)
        return await asyncio.to_thread(_read_piece, file, offset, count)


def _read_piece(file: Path, offset: int, count: int) -> tuple[int, bytes] | None:
    """The file's size and `count` bytes (-1: all) from `offset` on; None when it is not there."""
    try:
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            stream.seek(offset)
            return size, stream.read(count)
    except OSError:
        return None


class NodeDisk:
    """`node_io.Store` over the home folder.

    Peers are written beside the loop, one after the other. The incarnation is written before
    anything else happens: whoever hears of it must find it on the disk after a crash.
    """

    def __init__(self, home: Home, told: Callable[[Incarnation], None], sink: NoteSink) -> None:
        self._home = home
        self._told = told
        self._sink = sink
        self._writer = ThreadPoolExecutor(1, "swarm-disk")
        self._closed = False

    def save_incarnation(self, incarnation: int) -> None:
        self._told(Incarnation(incarnation))
        self._home.save_incarnation(incarnation)

    def save_peers(self, addresses: tuple[Address, ...]) -> None:
        if not self._closed:
            self._writer.submit(self._save_peers, addresses)

    def save_stays(self, data: bytes) -> None:
        if not self._closed:
            self._writer.submit(self._save_stays, data)

    def close(self) -> None:
        self._closed = True
        self._writer.shutdown()

    def _save_stays(self, data: bytes) -> None:
        try:
            self._home.save_stays(data)
        except ConfigError as error:
            self._sink(note("home.not_saved", Level.WARNING, detail=str(error)))

    def _save_peers(self, addresses: tuple[Address, ...]) -> None:
        try:
            self._home.save_peers(addresses)
        except ConfigError as error:
            self._sink(note("home.not_saved", Level.WARNING, detail=str(error)))
