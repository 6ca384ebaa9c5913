"""A part of a GGUF file, laid out as the file it came from while it is loaded.

The tensors that a node has fetched lie in files of their own, proven, as those of any model do.
For the loader they are put where they stand in the whole file; what is not here is a hole, which
takes no room on the disk and is read as zeros that no layer of this part uses.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from swarm.errors import ShardError
from swarm.shard import checkpoint as rules
from swarm.shard.checkpoint_io import part_files
from swarm.shard.gguf_head import GgufHead, gguf_head

PREFIX = ".load-"
STALE_S = 3600.0
"""A file that a worker left when it was killed is removed after this."""


@contextlib.contextmanager
def as_loaded(path: Path) -> Iterator[Path]:
    """What the loader is to be given for a checkpoint: a GGUF file for a part of one. Raises
    ShardError when the part is not one."""
    if not (path / rules.GGUF_HEAD_NAME).is_file():
        yield path
        return
    _remove_stale(path)
    handle, name = tempfile.mkstemp(".gguf", PREFIX, path)
    try:
        with os.fdopen(handle, "wb") as stream:
            head = (path / rules.GGUF_HEAD_NAME).read_bytes()
            stream.write(head)
            found = gguf_head(head)
            for file in part_files(path):
                _lay_out(file, found, stream.fileno())
            _fill(path, found, stream.fileno())
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _lay_out(file: Path, head: GgufHead, target: int) -> None:
    size = file.stat().st_size
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        length = rules.header_length(data[:8], str(file))
        for span in rules.parse_safetensors_header(data[: 8 + length], size, str(file)):
            if span.name not in head.starts:
                raise ShardError(f"{file} holds {span.name}, which the GGUF file does not")
            with memoryview(data) as view, view[span.start : span.stop] as content:
                _write_at(target, content, head.starts[span.name])


def _write_at(target: int, content: memoryview, start: int) -> None:
    at = 0
    while at < len(content):
        at += os.pwrite(target, content[at:], start + at)


def _fill(path: Path, head: GgufHead, target: int) -> None:
    """As long as the whole file: the reader maps every tensor."""
    manifest = rules.parse_manifest((path / rules.MANIFEST_NAME).read_bytes())
    ends = [
        head.starts[name] + entry.byte_count
        for name, entry in manifest.tensors.items()
        if name in head.starts
    ]
    os.truncate(target, max([os.fstat(target).st_size, *ends]))


def _remove_stale(path: Path) -> None:
    for file in path.glob(f"{PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - file.stat().st_mtime > STALE_S:
                file.unlink()
