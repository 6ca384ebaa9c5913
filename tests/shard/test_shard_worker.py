"""Real worker processes: from inspection to tokens, and what happens when one of the two dies."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
import torch
from engine_chain import MODEL, engine, whole_part
from engine_chain import begin as begin_part
from engine_chain import load as load_part
from tiny_models import LAYERS, reference_ids, save_tiny

from swarm.config import ShardConfig
from swarm.errors import LocalProtocolError
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
    RunFailed,
    SpeedReport,
    StepKind,
    Unload,
    WorkerFailed,
)
from swarm.shard.frames import FrameReader, pack
from swarm.shard.paged_kv import choose_kv_dtype
from swarm.shard.worker_client_io import WorkerClient
from swarm.shard.worker_io import Worker
from swarm.terms import LayerRange, SampledToken, Sampling, SessionId
from swarm.worker_messages import KV_BLOCK_TOKENS

pytestmark = pytest.mark.xdist_group("processes")

PROMPT = [5, 17, 40, 8, 61, 33, 9, 72, 4]
CONFIG = ShardConfig(threads=1, memory_bytes=1 << 30)
SESSION = SessionId("s")
M = TypeVar("M", bound=Message)


class Listener:
    """Events of a worker, as a queue."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Message | str] = asyncio.Queue()

    def worker_message(self, message: Message) -> None:
        if not isinstance(message, SpeedReport):
            self.queue.put_nowait(message)

    def worker_lost(self, reason: str) -> None:
        self.queue.put_nowait(reason)

    async def expect(self, kind: type[M]) -> M:
        """The next message that is no progress must be of this kind."""
        while isinstance(message := await self.queue.get(), LoadProgress):
            pass
        assert isinstance(message, kind), message
        return message

    async def loss(self) -> str:
        reason = await self.queue.get()
        assert isinstance(reason, str), reason
        return reason


Story = Callable[[WorkerClient, Listener], Awaitable[None]]


def play(story: Story, config: ShardConfig = CONFIG) -> list[str]:
    """Run a story with a started worker; returns what it logged. Ends the worker whatever comes."""
    lines: list[str] = []

    async def scene() -> None:
        listener = Listener()
        client = WorkerClient(config, listener, lines.append)
        await client.start()
        try:
            await story(client, listener)
        finally:
            await client.stop()
        assert client.pid is None

    asyncio.run(scene())
    return lines


async def inspect(client: WorkerClient, listener: Listener, folder: Path) -> Inspected:
    client.send(Inspect(str(folder), "tiny", str(folder.parent / "cache")))
    return await listener.expect(Inspected)


async def load(
    client: WorkerClient, listener: Listener, folder: Path, layers: LayerRange, blocks: int = 0
) -> Loaded:
    await order(client, listener, folder, layers, blocks)
    return await listener.expect(Loaded)


async def order(
    client: WorkerClient, listener: Listener, folder: Path, layers: LayerRange, blocks: int
) -> None:
    found = await inspect(client, listener, folder)
    embed, head = layers.start == 0, layers.stop == LAYERS
    client.send(Load(str(folder), found.spec.model_id, layers, embed, head, blocks))


ALL = LayerRange(0, LAYERS)


def begin(loaded: Loaded) -> Begin:
    head = loaded.layers.stop == LAYERS
    sampling = Sampling(temperature=0.0)
    return Begin(SESSION, 1, loaded.model_id, loaded.layers, True, head, 1, 64, sampling)


def ids(position: int, *tokens: int) -> Run:
    kind = StepKind.PREFILL if position == 0 else StepKind.DECODE
    payload = struct.pack(f"<{len(tokens)}i", *tokens)
    last = position + len(tokens) - 1
    return Run(SESSION, 1, position, len(tokens), kind, RowType.IDS, last, payload=payload)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    folder = tmp_path_factory.mktemp("worker") / "tiny"
    model = save_tiny(folder, "llama")
    return folder, reference_ids(model, PROMPT, 6)


def test_from_inspection_to_tokens(tiny: tuple[Path, list[int]]) -> None:
    folder, expected = tiny

    async def story(client: WorkerClient, listener: Listener) -> None:
        found = await inspect(client, listener, folder)
        assert (found.spec.name, found.spec.layer_count) == ("tiny", LAYERS)
        assert Path(found.manifest_path).exists()
        assert found.memory_bytes == CONFIG.memory_bytes
        loaded = await load(client, listener, folder, LayerRange(0, LAYERS))
        assert (loaded.row_type, loaded.row_bytes) == (RowType.FLOAT32, 128)
        assert loaded.numeric_class.startswith("cpu-")
        assert loaded.speed.decode_s_per_layer > 0 < loaded.speed.head_s
        client.send(begin(loaded))
        client.send(ids(0, *PROMPT))
        tokens = []
        for _ in expected:
            (token,) = (await listener.expect(Ran)).tokens
            tokens.append(token.token_id)
            client.send(ids(token.position, token.token_id))
        assert tokens == expected
        client.send(End(SESSION))

    assert play(story) == [], "what went well is told by messages"


def test_rows_that_came_first_do_not_wait_for_an_order_that_takes_long(
    tiny: tuple[Path, list[int]],
) -> None:
    folder, expected = tiny

    async def story(client: WorkerClient, listener: Listener) -> None:
        loaded = await load(client, listener, folder, ALL)
        path, part = str(folder), (ALL, True, True)
        cache = str(folder.parent / "cache")
        for long in (Inspect(path, "tiny", cache), Load(path, loaded.model_id, *part)):
            client.send(begin(loaded))
            client.send(ids(0, *PROMPT))
            client.send(long)
            (token,) = (await listener.expect(Ran)).tokens
            assert token.token_id == expected[0]
            while not isinstance(await listener.queue.get(), Inspected | Loaded):
                pass

    play(story)


def test_tokens_over_blocks(tiny: tuple[Path, list[int]]) -> None:
    folder, expected = tiny

    async def story(client: WorkerClient, listener: Listener) -> None:
        loaded = await load(client, listener, folder, ALL, blocks=40)
        is_free = "paged-float32-free/" in loaded.numeric_class  # where floats have native products
        assert is_free or "paged-float32-tile16-p64" in loaded.numeric_class
        unit = KV_BLOCK_TOKENS if is_free else 64
        held = (loaded.kv_blocks, loaded.prefix_unit, loaded.reuses_generated)
        assert held == (40, unit, is_free)
        per_block = KV_BLOCK_TOKENS * LAYERS * loaded.kv_bytes_per_token_layer
        assert loaded.speed.kv_free_bytes == 40 * per_block
        for turn in (1, 2):  # the second one over the blocks that the first has used
            table = struct.pack("<2i", 39, 7)
            client.send(dataclasses.replace(begin(loaded), generation=turn, blocks=table))
            client.send(dataclasses.replace(ids(0, *PROMPT), generation=turn))
            tokens = []
            for _ in expected:
                (token,) = (await listener.expect(Ran)).tokens
                tokens.append(token.token_id)
                run = ids(token.position, token.token_id)
                client.send(dataclasses.replace(run, generation=turn))
            assert tokens == expected
            await listener.expect(Ran)

    assert play(story) == []


def test_a_model_with_another_state_is_served_without_blocks_and_says_so(tmp_path: Path) -> None:
    save_tiny(tmp_path / "next", "qwen3_next")

    async def story(client: WorkerClient, listener: Listener) -> None:
        loaded = await load(client, listener, tmp_path / "next", ALL, blocks=40)
        assert (loaded.kv_blocks, loaded.prefix_unit) == (0, 0)
        assert "/sdpa/" in loaded.numeric_class
        client.send(begin(loaded))
        client.send(ids(0, *PROMPT))
        assert len((await listener.expect(Ran)).tokens) == 1

    (line,) = play(story)
    assert "shard.plain_cache" in line and "cache of their own" in line


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kv_cache_dtype": "fp8"}, "KV in fp8 is not served"),
        ({"memory_bytes": 1 << 20, "activation_bytes": 1 << 20}, "there is no memory for the KV"),
        ({"dtype": "float8"}, "'float8' is not a dtype"),
    ],
)
def test_what_this_machine_cannot_hold_is_one_sentence(
    tiny: tuple[Path, list[int]], changes: dict[str, object], says: str
) -> None:
    folder, _ = tiny

    async def story(client: WorkerClient, listener: Listener) -> None:
        client.send(Inspect(str(folder), "tiny", str(folder.parent / "cache")))
        while isinstance(message := await listener.queue.get(), LoadProgress):
            pass
        if isinstance(message, Inspected):
            client.send(Load(str(folder), message.spec.model_id, ALL, True, True, 40))
            message = await listener.expect(WorkerFailed)
        assert isinstance(message, WorkerFailed) and says in message.detail
        assert "\n" not in message.detail

    play(story, dataclasses.replace(CONFIG, **changes))  # type: ignore[arg-type]


def test_kv_in_eight_bits_takes_less_and_is_another_class(tiny: tuple[Path, list[int]]) -> None:
    folder, _ = tiny
    found: list[Loaded] = []

    async def story(client: WorkerClient, listener: Listener) -> None:
        found.append(await load(client, listener, folder, ALL, blocks=40))
        client.send(begin(found[-1]))
        client.send(dataclasses.replace(ids(0, *PROMPT), blocks=struct.pack("<i", 3)))
        assert len((await listener.expect(Ran)).tokens) == 1

    for dtype in ("auto", "int8"):
        play(story, dataclasses.replace(CONFIG, kv_cache_dtype=dtype))
    own, small = found
    assert "paged-int8" in small.numeric_class and own.numeric_class != small.numeric_class
    assert small.kv_bytes_per_token_layer < own.kv_bytes_per_token_layer / 2


def test_integer_weights_keep_their_kv_in_halves() -> None:
    """Also as it is counted before the load."""
    for asked, own, quantization, kept in (
        ("auto", torch.float32, "int4", torch.float16),
        ("auto", torch.float32, "int8", torch.float16),
        ("auto", torch.float32, "none", torch.float32),
        ("auto", torch.bfloat16, "int4", torch.bfloat16),
        ("int8", torch.float32, "int4", torch.int8),
    ):
        assert choose_kv_dtype(asked, own, quantization) is kept


def test_a_killed_worker_is_told_once_and_starts_again(tiny: tuple[Path, list[int]]) -> None:
    folder, _ = tiny

    async def story(client: WorkerClient, listener: Listener) -> None:
        await load(client, listener, folder, LayerRange(0, 2))
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        assert await listener.loss() == "the worker was killed by SIGKILL"
        assert client.pid is None
        client.send(End(SESSION))
        await client.start()
        loaded = await load(client, listener, folder, LayerRange(0, 2))
        client.send(begin(loaded))
        client.send(ids(0, *PROMPT))
        assert len((await listener.expect(Ran)).payload) == len(PROMPT) * loaded.row_bytes
        assert listener.queue.empty()

    play(story)


def test_no_event_comes_after_a_stop_on_purpose() -> None:
    async def story(client: WorkerClient, listener: Listener) -> None:
        with pytest.raises(LocalProtocolError, match="runs already"):
            await client.start()
        await client.stop()
        await client.stop()
        client.send(End(SESSION))
        assert listener.queue.empty()

    play(story)


def test_a_device_that_cannot_be_used_is_said_and_no_crash(tmp_path: Path) -> None:
    """A restart would not help: each checkpoint is answered with the reason."""

    async def story(client: WorkerClient, listener: Listener) -> None:
        for name in ("a", "b"):
            client.send(Inspect(name, name, str(tmp_path)))
            failed = await listener.expect(WorkerFailed)
            assert failed.path == name
            assert "is not a device that can be used" in failed.detail

    play(story, dataclasses.replace(CONFIG, device="meta"))


def test_what_cannot_be_done_is_one_sentence_and_the_worker_goes_on(
    tiny: tuple[Path, list[int]], tmp_path: Path
) -> None:
    folder, _ = tiny
    (tmp_path / "cut").mkdir()
    for file in folder.iterdir():
        (tmp_path / "cut" / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "cut" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])

    async def story(client: WorkerClient, listener: Listener) -> None:
        client.send(Inspect(str(tmp_path / "none"), "none", str(tmp_path / "cache")))
        nowhere = await listener.expect(WorkerFailed)
        assert nowhere.path == str(tmp_path / "none")
        client.send(Inspect(str(tmp_path / "cut"), "cut", str(tmp_path / "cache")))
        assert "is cut short" in (await listener.expect(WorkerFailed)).detail
        weights.write_bytes(whole)
        found = await inspect(client, listener, tmp_path / "cut")
        weights.write_bytes(whole[:-1] + b"\x11")
        client.send(Load(str(tmp_path / "cut"), found.spec.model_id, LayerRange(0, 1), True, False))
        assert "its files have changed" in (await listener.expect(WorkerFailed)).detail

    play(story)


def test_sessions_without_a_shard_are_refused(tiny: tuple[Path, list[int]]) -> None:
    folder, _ = tiny

    async def story(client: WorkerClient, listener: Listener) -> None:
        client.send(End(SESSION))
        client.send(ids(0, *PROMPT))
        failed = await listener.expect(RunFailed)
        assert "no shard of the session's model is loaded here" in failed.detail
        loaded = await load(client, listener, folder, LayerRange(0, 2))
        client.send(begin(loaded))
        client.send(ids(0, *PROMPT))
        await listener.expect(Ran)
        client.send(Load(str(folder), loaded.model_id, LayerRange(0, LAYERS), True, True))
        assert "replaced by another one" in (await listener.expect(RunFailed)).detail
        assert (await listener.expect(Loaded)).layers == LayerRange(0, LAYERS)

    play(story)


def test_what_is_unloaded_ends_its_sessions_and_can_be_loaded_again(
    tiny: tuple[Path, list[int]],
) -> None:
    folder, expected = tiny

    async def story(client: WorkerClient, listener: Listener) -> None:
        loaded = await load(client, listener, folder, ALL)
        client.send(begin(loaded))
        client.send(ids(0, *PROMPT))
        assert (await listener.expect(Ran)).tokens[0].token_id == expected[0]
        client.send(Unload(loaded.model_id))
        assert "served here no more" in (await listener.expect(RunFailed)).detail
        client.send(Unload(loaded.model_id))
        client.send(ids(len(PROMPT), expected[0]))
        assert "no shard of the session's model" in (await listener.expect(RunFailed)).detail
        client.send(End(SESSION))
        again = await load(client, listener, folder, ALL)
        client.send(begin(again))
        client.send(ids(0, *PROMPT))
        assert (await listener.expect(Ran)).tokens[0].token_id == expected[0]

    play(story)


def test_an_answer_that_cannot_be_sent_costs_one_session(tiny: tuple[Path, list[int]]) -> None:
    folder, _ = tiny
    ours, theirs = socket.socketpair()
    config = dataclasses.replace(CONFIG, threads=1)
    with ours, theirs, contextlib.closing(Worker(theirs, config)) as worker:
        one = engine(load_part(folder, whole_part(LAYERS)))
        worker._engines[MODEL], worker._homes[SESSION] = one, MODEL
        one.handle(begin_part("s", whole_part(LAYERS)))
        token = SampledToken(1, 1 << 70)
        answer = Ran(SESSION, 1, 0, 1, StepKind.DECODE, RowType.FLOAT32, 0.1, (token,))
        large = dataclasses.replace(answer, tokens=(SampledToken(1, 5),) * 40_000)
        for unsendable in (answer, large):
            worker._send([unsendable])
            reader = FrameReader()
            (failed,) = reader.filled(ours.recv_into(reader.space()))
            assert isinstance(failed, RunFailed)
            assert failed.session == SESSION and "cannot be sent" in failed.detail


def test_what_a_step_gives_goes_in_few_writes_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, contextlib.closing(Worker(theirs, CONFIG)) as worker:
        writes: list[int] = []
        channel = worker._channel

        class Counted:
            def sendall(self, data: bytes | memoryview) -> None:
                writes.append(len(data))
                channel.sendall(data)

        monkeypatch.setattr(worker, "_channel", Counted())
        small = Ran(SESSION, 1, 0, 1, StepKind.DECODE, RowType.FLOAT32, 0.1, (), b"1234")
        large = dataclasses.replace(small, payload=bytes(70_000))
        sent = [dataclasses.replace(small, position=position) for position in range(6)]
        sent[3] = dataclasses.replace(large, position=3)
        worker._send(sent)
        size = sum(len(part) for part in pack(small))
        assert (writes[0], writes[-1]) == (3 * size, 2 * size), "around the large one's own"
        reader, came = FrameReader(), []
        while len(came) < len(sent):
            came += reader.filled(ours.recv_into(reader.space()))
        assert [one.position for one in came] == [0, 1, 2, 3, 4, 5]
        assert bytes(came[3].payload) == large.payload
        count = len(writes)
        worker._send([])
        assert len(writes) == count


def test_two_models_of_one_worker_share_what_is_left_for_kv(
    tiny: tuple[Path, list[int]], tmp_path: Path
) -> None:
    folder, _ = tiny
    save_tiny(tmp_path / "second", "qwen3")

    async def story(client: WorkerClient, listener: Listener) -> None:
        first = await load(client, listener, folder, LayerRange(0, LAYERS))
        second = await load(client, listener, tmp_path / "second", LayerRange(0, LAYERS))
        room = CONFIG.memory_bytes - CONFIG.activation_bytes
        weights = room - first.speed.kv_free_bytes
        assert weights > 0
        assert second.speed.kv_free_bytes < first.speed.kv_free_bytes

    play(story)


def test_a_worker_dies_with_its_daemon(tmp_path: Path) -> None:
    """Also when the daemon is killed: a stand-in for one starts a worker and gets SIGKILL."""
    program = (
        "import asyncio, sys\n"
        "from swarm.config import ShardConfig\n"
        "from swarm.shard.worker_client_io import WorkerClient\n"
        "class Events:\n"
        "    def worker_message(self, message): print(self.client.pid, flush=True)\n"
        "    def worker_lost(self, reason): print(reason, flush=True)\n"
        "async def main():\n"
        "    events = Events()\n"
        "    events.client = client = WorkerClient(ShardConfig(threads=1), events)\n"
        "    await client.start()\n"
        "    from swarm.messages import Inspect\n"
        "    client.send(Inspect('nowhere', 'x', sys.argv[1]))\n"
        "    await asyncio.get_running_loop().create_future()\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as daemon:
        assert daemon.stdout is not None
        worker = psutil.Process(int(daemon.stdout.readline()))
        daemon.kill()
    worker.wait(timeout=20)


def test_a_worker_ends_when_its_socket_does() -> None:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "swarm.shard.worker_io", str(theirs.fileno())]
    with (
        ours,
        theirs,
        subprocess.Popen(
            [*command, json.dumps(dataclasses.asdict(CONFIG)), str(os.getpid())],
            pass_fds=[theirs.fileno()],
            stderr=subprocess.PIPE,
            text=True,
        ) as worker,
    ):
        theirs.close()
        ours.sendall(b"".join(bytes(part) for part in pack(Inspect("nowhere", "x", "y"))))
        assert ours.recv(1)
        worker.send_signal(signal.SIGINT)
        ours.close()
        assert worker.wait(timeout=20) == 0
