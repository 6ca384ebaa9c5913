"""What no peer has of a model any more comes from the hub: of its files, those that hold it.

The manifest is the proof here too: what the hub has may be another version by now.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from swarm.config import WeightsConfig
from swarm.errors import LinkError, ShardError
from swarm.notes import Level, NoteSink, note
from swarm.shard.checkpoint import PIECE_BYTES, Manifest
from swarm.shard.gguf_head import gguf_head
from swarm.weights.fetch_io import Download
from swarm.weights.hub_fetch_io import files_of_hub
from swarm.weights.store_io import tensor_spans

HEAD_BYTES_MAX = 256 << 20

Places = Mapping[str, tuple[Path, int]]
"""Of tensors by name: file, and the first byte in it."""


class HubFill:
    """Of one download."""

    def __init__(self, hub: str, manifest: Manifest, config: WeightsConfig, sink: NoteSink) -> None:
        self._hub = hub
        self._manifest = manifest
        self._config = config
        self._sink = sink
        self._pause_s = config.retry_min_s
        self._not_before = -math.inf

    async def fill(self, download: Download, now: float) -> None:
        """Give the download what it misses, unless the hub could not be asked a moment ago. Raises
        ShardError where the hub refuses, or has another version."""
        if now < self._not_before:
            return
        parts = list(download.missing())
        self._sink(note("hub.fetch", model=self._hub, parts=",".join(parts)))
        try:
            files = await files_of_hub(self._hub, parts)
        except LinkError as error:
            self._sink(note("hub.failed", Level.WARNING, model=self._hub, reason=str(error)))
            self._not_before = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, self._config.retry_max_s)
            return
        places = await asyncio.to_thread(_places, files)
        names = sorted(self._manifest.tensors)
        for number in [number for numbers in download.missing().values() for number in numbers]:
            piece = download.piece(number)
            file, first = places.get(names[piece.tensor], (None, 0))
            data = b""
            if file is not None:
                start = first + piece.index * PIECE_BYTES
                data = await asyncio.to_thread(_read, file, start, piece.byte_count)
            if not await download.given(number, data):
                raise ShardError(f"{self._hub} on the hub is another version of the model now")


def _places(files: Sequence[Path]) -> Places:
    found: dict[str, tuple[Path, int]] = {}
    for file in files:
        if file.suffix == ".gguf":
            with file.open("rb") as stream:
                starts = gguf_head(stream.read(HEAD_BYTES_MAX)).starts
            found |= {name: (file, start) for name, start in starts.items()}
        else:
            found |= {span.name: (file, span.start) for span in tensor_spans(file)}
    return found


def _read(file: Path, start: int, count: int) -> bytes:
    with file.open("rb") as stream:
        stream.seek(start)
        return stream.read(count)
