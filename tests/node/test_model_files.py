"""Text files of models between nodes: verified, in pieces, from another peer when one lies."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from swarm import model_files_io
from swarm.disk_io import _read_piece
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
        self.whole_reads = 0

    async def read(self, model_id: ModelId, name: str) -> bytes | None:
        self.whole_reads += 1
        return self.files.get(name) if model_id == MODEL else None

    async def read_piece(
        self, model_id: ModelId, name: str, offset: int, count: int
    ) -> tuple[int, bytes] | None:
        data = self.files.get(name) if model_id == MODEL else None
        return None if data is None else (len(data), data[offset : offset + count])


class Net:
    """Joins `ModelFiles` of several nodes; `spoil` may change or swallow what is sent."""

    def __init__(self, files: dict[str, dict[str, bytes]]) -> None:
        self.spoil: Callable[[str, Message], Message | None] = lambda sender, message: message
        self.locals = {name: Local(content) for name, content in files.items()}
        self.nodes = {
            name: ModelFiles(
                self.locals[name], self._sender(name), lambda model: self.holders(files)
            )
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


def test_handing_out_reads_no_more_than_the_piece() -> None:
    net = Net({"me": {}, "a": FILES})
    run(net, "tokenizer.json")
    assert net.locals["a"].whole_reads == 0


def test_a_piece_is_read_where_it_lies(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_bytes(b"0123456789")
    assert _read_piece(file, 4, 3) == (10, b"456")
    assert _read_piece(file, 8, 5) == (10, b"89")
    assert _read_piece(file, 20, 5) == (10, b"")
    assert _read_piece(file, 0, -1) == (10, b"0123456789")
    assert _read_piece(tmp_path / "nothing", 0, 1) is None


def crumbs(message: Message) -> Message:
    """One letter a piece: each is news, and the file would take a day."""
    if isinstance(message, FileChunk) and message.name == "tokenizer.json":
        return replace(message, payload=bytes(message.payload)[:1])
    return message


def growing(message: Message) -> Message:
    if isinstance(message, FileChunk) and message.offset:
        return replace(message, total=message.total + model_files_io.CHUNK_BYTES)
    return message


def elsewhere(message: Message) -> Message:
    if isinstance(message, FileChunk) and message.offset:
        return replace(message, offset=message.offset + 1)
    return message


@pytest.mark.parametrize("spoil", [crumbs, growing, elsewhere])
def test_whoever_sends_other_than_whole_pieces_is_passed_over(
    spoil: Callable[[Message], Message],
) -> None:
    net = Net({"me": {}, "evil": FILES, "good": FILES})
    asked: list[Message] = []

    def between(sender: str, message: Message) -> Message:
        asked.append(message)
        return spoil(message) if sender == "evil" else message

    net.spoil = between
    assert run(net, "tokenizer.json") == TOKENIZER
    assert len(asked) <= 2 * 2 + 2 * 2 + 2 * 3, "given up at the first bad piece"


def test_a_file_takes_no_longer_than_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_files_io, "FILE_TIMEOUT_S", 0.02)
    net = Net({"me": {}, "mute": FILES})
    net.spoil = lambda sender, message: None if sender == "mute" else message
    with pytest.raises(LinkError):
        run(net, "tokenizer.json")


def test_a_slow_peer_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_files_io, "FILE_TIMEOUT_S", 0.5)
    net = Net({"me": {}, "a mute one": FILES, "b": FILES})
    net.spoil = lambda sender, message: None if sender == "a mute one" else message
    assert run(net, "tokenizer.json") == TOKENIZER


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
