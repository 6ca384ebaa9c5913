"""What no peer has of a model any more comes from the hub: of its files, those that hold it.

The manifest is the proof here too: what the hub has may be another version by now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

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


async def fill_from_hub(hub: str, manifest: Manifest, download: Download, sink: NoteSink) -> bool:
    """Give the download what it misses; False where the hub does not give it, or has another
    version by now."""
    parts = list(download.missing())
    sink(note("hub.fetch", model=hub, parts=",".join(parts)))
    try:
        await _fill(await files_of_hub(hub, parts), manifest, download)
    except (LinkError, ShardError) as error:
        sink(note("hub.failed", Level.WARNING, model=hub, reason=str(error)))
        return False
    return True


async def _fill(files: Sequence[Path], manifest: Manifest, download: Download) -> None:
    places = await asyncio.to_thread(_places, files)
    names = sorted(manifest.tensors)
    for number in [number for numbers in download.missing().values() for number in numbers]:
        piece = download.piece(number)
        file, first = places.get(names[piece.tensor], (None, 0))
        data = b""
        if file is not None:
            start = first + piece.index * PIECE_BYTES
            data = await asyncio.to_thread(_read, file, start, piece.byte_count)
        if not await download.given(number, data):
            raise ShardError("what the hub has is another version of the model")


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
