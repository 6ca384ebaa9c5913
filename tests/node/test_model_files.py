"""Text files of models between nodes: verified, in pieces, from another peer when one lies."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable

import pytest

from swarm import model_files_io
from swarm.errors import LinkError
from swarm.messages import FileChunk, FileRequest, Message
from swarm.model_files_io import ANSWERS_MAX, ModelFiles
from swarm.shard.checkpoint import MANIFEST_NAME, model_id_of
from swarm.terms import ModelId, NodeId

TOKENIZER = b"t" * 700_000
MANIFEST = json.dumps(
    {"config": "c", "texts": {"tokenizer.json": hashlib.sha256(TOKENIZER).hexdigest()},
     "tensors": {}}, sort_keys=True, separators=(",", ":"),
).encode()  # fmt: skip
MODEL = model_id_of(MANIFEST)
FILES = {MANIFEST_NAME: MANIFEST, "tokenizer.json": TOKENIZER}


class Local:
    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files

    async def read(self, model_id: ModelId, name: str) -> bytes | None:
        return self.files.get(name) if model_id == MODEL else None


class Net:
    """Joins `ModelFiles` of several nodes; `spoil` may change or swallow what is sent."""

    def __init__(self, files: dict[str, dict[str, bytes]]) -> None:
        self.spoil: Callable[[str, Message], Message | None] = lambda sender, message: message
        self.nodes = {
            name: ModelFiles(Local(content), self._sender(name), lambda model: self.holders(files))
            for name, content in files.items()
        }

    def holders(self, files: dict[str, dict[str, bytes]]) -> list[NodeId]:
        return [NodeId(name) for name, content in files.items() if content]

    def _sender(self, sender: str) -> Callable[[NodeId, Message], bool]:
        def send(peer: NodeId, message: Message) -> bool:
            spoiled = self.spoil(sender, message)
            if spoiled is not None:
                asyncio.get_running_loop().call_soon(self._arrive, sender, peer, spoiled)
            return True

        return send

    def _arrive(self, sender: str, peer: NodeId, message: Message) -> None:
        node = self.nodes[peer]
        if isinstance(message, FileRequest):
            node.requested(NodeId(sender), message)
        elif isinstance(message, FileChunk):
            node.arrived(NodeId(sender), message)

    async def close(self) -> None:
        for node in self.nodes.values():
            await node.close()


def run(net: Net, name: str) -> bytes:
    async def body() -> bytes:
        try:
            return await net.nodes["me"].get(MODEL, name)
        finally:
            await net.close()

    return asyncio.run(body())


def test_own_files_need_nobody() -> None:
    assert run(Net({"me": FILES}), "tokenizer.json") == TOKENIZER


def test_a_pure_gateway_fetches_in_pieces() -> None:
    assert run(Net({"me": {}, "a": FILES}), "tokenizer.json") == TOKENIZER


def test_a_lying_peer_is_passed_over() -> None:
    net = Net({"me": {}, "liar": {MANIFEST_NAME: MANIFEST, "tokenizer.json": b"evil"}, "a": FILES})
    assert run(net, "tokenizer.json") == TOKENIZER


def test_a_forged_manifest_is_passed_over() -> None:
    net = Net({"me": {}, "liar": {MANIFEST_NAME: b"{}", "tokenizer.json": b""}, "a": FILES})
    assert run(net, "tokenizer.json") == TOKENIZER


def test_a_file_the_model_does_not_have() -> None:
    with pytest.raises(FileNotFoundError):
        run(Net({"me": {}, "a": FILES}), "chat_template.jinja")


def test_nobody_has_it() -> None:
    with pytest.raises(LinkError):
        run(Net({"me": {}}), "tokenizer.json")


def test_a_silent_peer_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_files_io, "CHUNK_TIMEOUT_S", 0.01)
    net = Net({"me": {}, "mute": FILES, "a": FILES})
    net.spoil = lambda sender, message: None if sender == "mute" else message
    assert run(net, "tokenizer.json") == TOKENIZER


def test_only_text_files_are_handed_out() -> None:
    net = Net({"me": {}, "a": {**FILES, "model.safetensors": b"w", "../key": b"secret"}})
    sent: list[FileChunk] = []

    def watch(sender: str, message: Message) -> Message | None:
        if isinstance(message, FileChunk):
            sent.append(message)
        return message

    net.spoil = watch

    async def body() -> None:
        for name in ("model.safetensors", "../key", "nothing"):
            net.nodes["a"].requested(NodeId("me"), FileRequest(MODEL, name, 0))
        net.nodes["a"].requested(NodeId("me"), FileRequest(MODEL, MANIFEST_NAME, 10**9))
        for _ in range(5):
            await asyncio.sleep(0)
        await net.close()

    asyncio.run(body())
    assert [chunk.total for chunk in sent] == [-1] * 4


def test_a_flood_of_requests_is_refused_beyond_the_limit() -> None:
    net = Net({"me": {}, "a": FILES})
    sent: list[FileChunk] = []
    net.spoil = lambda sender, message: (
        sent.append(message) if isinstance(message, FileChunk) else message
    )

    async def body() -> None:
        for _ in range(ANSWERS_MAX + 10):
            net.nodes["a"].requested(NodeId("me"), FileRequest(MODEL, "tokenizer.json", 0))
        assert [chunk.total for chunk in sent] == [-1] * 10
        await net.close()

    asyncio.run(body())
