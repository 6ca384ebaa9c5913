"""Small text files of models: handed out to peers that ask, fetched and verified where missing.

A node without the checkpoint (a pure gateway) needs the tokenizer. It fetches the manifest, whose
hash is the ModelId, and then files whose hashes the manifest names: nothing unverified is used.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import Protocol

from swarm.errors import LinkError, ShardError
from swarm.messages import FileChunk, FileRequest, Message
from swarm.shard.checkpoint import (
    GGUF_HEAD_NAME,
    MANIFEST_NAME,
    PIECES_NAME,
    TEXT_NAMES,
    model_id_of,
    parse_manifest,
    piece_hashes,
    text_digests,
)
from swarm.terms import ModelId, NodeId

CHUNK_BYTES = 256 * 1024
FILE_BYTES_MAX = 256 * 1024 * 1024
"""Tokenizers of large vocabularies take some 30 MB."""
CHUNK_TIMEOUT_S = 5.0
FILE_TIMEOUT_S = 60.0
"""For a whole file over all peers; each gets an equal part of what is left when it is asked."""
CACHED_FILES_MAX = 64
ANSWERS_MAX = 64
"""Pieces being read for peers at one time; each takes at most one chunk of memory."""

Key = tuple[ModelId, str]


class LocalFiles(Protocol):
    """This node's own checkpoints."""

    async def read(self, model_id: ModelId, name: str) -> bytes | None:
        """The file's bytes, or None when this node does not have it."""

    async def read_piece(
        self, model_id: ModelId, name: str, offset: int, count: int
    ) -> tuple[int, bytes] | None:
        """The file's size and up to `count` bytes from `offset` on, without reading the rest."""


class ModelFiles:
    """Both ends of the exchange. Runs on the node's event loop."""

    def __init__(
        self,
        local: LocalFiles,
        send: Callable[[NodeId, Message], bool],
        holders: Callable[[ModelId], Sequence[NodeId]],
    ) -> None:
        self._local = local
        self._send = send
        self._holders = holders
        self._cache: dict[Key, bytes] = {}
        self._fetches: dict[Key, asyncio.Task[bytes]] = {}
        self._waiting: dict[tuple[NodeId, ModelId, str], asyncio.Future[FileChunk]] = {}
        self._answers: set[asyncio.Task[None]] = set()

    async def get(self, model_id: ModelId, name: str) -> bytes:
        """Raises FileNotFoundError when the model has no such file, LinkError when none came."""
        key = (model_id, name)
        if key in self._cache:
            return self._cache[key]
        own = await self._local.read(model_id, name)
        if own is not None:
            return self._keep(key, own)
        task = self._fetches.get(key)
        if task is None:
            task = self._fetches[key] = asyncio.get_running_loop().create_task(self._fetch(key))
            task.add_done_callback(lambda done: self._fetches.pop(key, None))
        return await asyncio.shield(task)

    def requested(self, peer: NodeId, message: FileRequest) -> None:
        """A peer asks for a piece. Over the limit it is told at once to ask elsewhere."""
        if len(self._answers) >= ANSWERS_MAX:
            self._send(peer, FileChunk(message.model_id, message.name, message.offset, -1))
            return
        task = asyncio.get_running_loop().create_task(self._answer(peer, message))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    def arrived(self, peer: NodeId, message: FileChunk) -> None:
        future = self._waiting.get((peer, message.model_id, message.name))
        if future is not None and not future.done():
            future.set_result(message)

    async def close(self) -> None:
        tasks = [*self._fetches.values(), *self._answers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _keep(self, key: Key, data: bytes) -> bytes:
        while len(self._cache) >= CACHED_FILES_MAX:
            self._cache.pop(next(iter(self._cache)))
        self._cache[key] = data
        return data

    async def _fetch(self, key: Key) -> bytes:
        model_id, name = key
        manifest = b""
        if name != MANIFEST_NAME:
            manifest = await self.get(model_id, MANIFEST_NAME)
            if name != PIECES_NAME and name not in await asyncio.to_thread(text_digests, manifest):
                raise FileNotFoundError(name)
        clock = asyncio.get_running_loop().time
        ends_at = clock() + FILE_TIMEOUT_S
        holders = list(self._holders(model_id))
        for index, peer in enumerate(holders):
            share_s = (ends_at - clock()) / (len(holders) - index)
            data = await self._fetch_within(share_s, peer, model_id, name)
            if data is None:
                continue
            if await asyncio.to_thread(_is_genuine, data, name, model_id, manifest):
                return self._keep(key, data)
        raise LinkError(f"no peer could hand out {name} of the model")

    async def _fetch_within(
        self, limit_s: float, peer: NodeId, model_id: ModelId, name: str
    ) -> bytes | None:
        try:
            return await asyncio.wait_for(self._fetch_from(peer, model_id, name), limit_s)
        except TimeoutError:
            return None

    async def _fetch_from(self, peer: NodeId, model_id: ModelId, name: str) -> bytes | None:
        """Whole pieces only: whoever sends less than it must would keep us busy for ever."""
        data = bytearray()
        total: int | None = None
        while total is None or len(data) < total:
            chunk = await self._ask(peer, FileRequest(model_id, name, len(data)))
            if chunk is None or not 0 <= chunk.total <= FILE_BYTES_MAX:
                return None
            if chunk.offset != len(data) or chunk.total != (total or chunk.total):
                return None
            total = chunk.total
            if len(chunk.payload) != min(CHUNK_BYTES, total - len(data)):
                return None
            data += chunk.payload
        return bytes(data)

    async def _ask(self, peer: NodeId, request: FileRequest) -> FileChunk | None:
        where = (peer, request.model_id, request.name)
        future: asyncio.Future[FileChunk] = asyncio.get_running_loop().create_future()
        self._waiting[where] = future
        try:
            if not self._send(peer, request):
                return None
            return await asyncio.wait_for(future, CHUNK_TIMEOUT_S)
        except TimeoutError:
            return None
        finally:
            self._waiting.pop(where, None)

    async def _answer(self, peer: NodeId, request: FileRequest) -> None:
        known = request.name in (MANIFEST_NAME, PIECES_NAME, GGUF_HEAD_NAME, *TEXT_NAMES)
        model_id, name, offset = request.model_id, request.name, request.offset
        found = None
        if known and 0 <= offset <= FILE_BYTES_MAX:
            found = await self._local.read_piece(model_id, name, offset, CHUNK_BYTES)
        if found is None or offset > found[0]:
            reply = FileChunk(model_id, name, offset, -1)
        else:
            reply = FileChunk(model_id, name, offset, *found)
        self._send(peer, reply)


def _is_genuine(data: bytes, name: str, model_id: ModelId, manifest: bytes) -> bool:
    try:
        if name == MANIFEST_NAME:
            text_digests(data)
            return model_id_of(data) == model_id
        if name == PIECES_NAME:
            piece_hashes(parse_manifest(manifest), data)
            return True
    except ShardError:
        return False
    return hashlib.sha256(data).hexdigest() == text_digests(manifest)[name]
