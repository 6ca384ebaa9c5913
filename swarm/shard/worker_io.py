"""The worker process: `python -m swarm.shard.worker_io FD CONFIG PARENT_PID`.

The daemon starts it. One thread: take in what the daemon says, run one slice, answer, again. It
ends when the socket does.
"""

from __future__ import annotations

import gc
import json
import os
import select
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from swarm.config import ShardConfig
from swarm.errors import ConfigError, LocalProtocolError, ShardError
from swarm.kernels.capture import Capture
from swarm.kernels.native_io import start_native
from swarm.kernels.tiles import Company
from swarm.messages import (
    Begin,
    End,
    FailureCode,
    Inspect,
    Inspected,
    Load,
    Loaded,
    LoadProgress,
    Message,
    Ran,
    Recall,
    Run,
    RunFailed,
    Unload,
    WorkerFailed,
)
from swarm.notes import FieldValue, Level, as_text, note
from swarm.shard import checkpoint as rules
from swarm.shard.batch import PIECE_TOKENS
from swarm.shard.checkpoint_io import Checkpoint, inspect
from swarm.shard.cut import Part
from swarm.shard.engine import DETAIL_CHARACTERS, Engine
from swarm.shard.engine_limits import engine_limits
from swarm.shard.frames import FrameReader, pack
from swarm.shard.gguf_io import gguf_texts
from swarm.shard.guide_io import GuideBench, Lexicon
from swarm.shard.host_io import give_memory_back, memory_budget, settle_in, use_threads
from swarm.shard.load_io import (
    choose_device,
    choose_dtype,
    load_stage,
    quiet_transformers,
    read_config,
)
from swarm.shard.numeric_class_io import device_name, numeric_class
from swarm.shard.paged_check import plain_reason
from swarm.shard.paged_kv import bytes_per_block, choose_kv_dtype, make_paged_kv
from swarm.shard.selfcheck import check_pieces, measure
from swarm.shard.speed import SpeedTracker
from swarm.shard.stage import Stage
from swarm.terms import ModelId, SessionId
from swarm.worker_messages import KV_BLOCK_TOKENS

UNSENDABLE = (LocalProtocolError, ValueError, OverflowError)
"""What encoding raises for an answer that does not fit into a message."""
_JOIN_BYTES = 64 * 1024
"""Frames below this are copied into one write; above, a copy costs more than a call."""


class Worker:
    """Serves one daemon over one socket, for any number of models on one device."""

    def __init__(self, channel: socket.socket, config: ShardConfig) -> None:
        self._channel = channel
        self._config = config
        self._reader = FrameReader()
        self._device = choose_device(config.device)
        self._budget_bytes = memory_budget(config.memory_bytes, self._device)
        self._cache_dir = Path()
        self._gguf_texts: dict[tuple[str, int, int], Mapping[str, bytes]] = {}
        self._engines: dict[ModelId, Engine] = {}
        self._homes: dict[SessionId, ModelId] = {}
        self._freed = False
        self._kernels_started = False
        self._guides = GuideBench()

    def close(self) -> None:
        """For a process that goes on without it."""
        self._guides.close()

    def serve(self) -> None:
        """Until the daemon closes the socket, which an answer may be the first to find."""
        with suppress(BrokenPipeError, ConnectionResetError):
            while self._receive():
                self._step()

    def _step(self) -> None:
        for engine in self._engines.values():
            self._send(engine.step())
            self._send(engine.report())

    def _finish_work(self) -> None:
        """Before an order that takes long: rows that came before it do not wait for it, and the
        daemon may take their absence for what it is (`routing/worker_watch.py`)."""
        while self._has_work:
            self._step()

    @property
    def _has_work(self) -> bool:
        return any(engine.has_work for engine in self._engines.values())

    # ------------------------------------------------------------ socket

    def _receive(self) -> bool:
        """Take in what has come; wait for something only when idle. False at the end."""
        if self._freed and not self._has_work:
            give_memory_back(self._device)
            self._freed = False
        wait = self._wait_s() if self._has_work else None
        while ready := select.select([self._channel, self._guides.bell], [], [], wait)[0]:
            if self._guides.bell in ready:
                self._take_guides()
            if self._channel not in ready:
                return True
            try:
                count = self._channel.recv_into(self._reader.space())
            except ConnectionResetError:
                return False
            if count == 0:
                return False
            for message in self._reader.filled(count):
                self._send(self._handle(message))
            wait = self._wait_s()
        return True

    def _wait_s(self) -> float:
        """For more rows, before those that are there run."""
        return min((e.gather_s() for e in self._engines.values() if e.has_work), default=0.0)

    def _take_guides(self) -> None:
        for made in self._guides.take():
            engine = self._engine_of(made.session)
            if engine is not None:
                self._send(engine.guide_made(made.session, made.generation, made.matcher))

    def _send(self, messages: Iterable[Message]) -> None:
        """What a step gave goes in as few writes as can be: the daemon wakes once for all of it,
        and the sessions' next rows come back side by side."""
        small: list[bytes | memoryview] = []
        size = 0
        for message in messages:
            if isinstance(message, RunFailed):
                self._failed(message)
            buffers = self._packed(message)
            added = sum(len(buffer) for buffer in buffers)
            if size + added >= _JOIN_BYTES:
                self._write(small)
                small, size = [], 0
            if added < _JOIN_BYTES:
                small += buffers
                size += added
                continue
            for buffer in buffers:
                self._channel.sendall(buffer)
        self._write(small)

    def _write(self, buffers: list[bytes | memoryview]) -> None:
        if buffers:
            self._channel.sendall(b"".join(buffers))

    def _packed(self, message: Message) -> list[bytes | memoryview]:
        """The frame. An answer that cannot become one costs its session, not the worker."""
        try:
            return pack(message)
        except UNSENDABLE as error:
            engine = self._engine_of(message.session) if isinstance(message, Ran) else None
            if engine is None or not isinstance(message, Ran):
                raise
            failed = engine.fail(message.session, f"the answer cannot be sent: {error}")
            self._failed(failed)
            return pack(failed)

    def _failed(self, message: RunFailed) -> None:
        self._freed = True
        log("worker.run_failed", session=message.session, detail=message.detail)

    def _engine_of(self, session: SessionId) -> Engine | None:
        home = self._homes.get(session)
        return self._engines.get(home) if home is not None else None

    # ------------------------------------------------------------ orders

    def _handle(self, message: Message) -> Iterable[Message]:
        match message:
            case Inspect():
                self._finish_work()
                return self._guarded(message.path, lambda: self._inspect(message))
            case Load():
                self._finish_work()
                return self._guarded(message.path, lambda: self._load(message))
            case Unload():
                self._unload(message.model_id)
                return []
            case Begin() | Recall() | Run() | End():
                return self._session_order(message)
            case _:
                log("worker.ignored", kind=type(message).__name__)
                return []

    def _guarded(self, path: str, work: Callable[[], Message]) -> list[Message]:
        """What cannot be done is said in one sentence; the worker goes on."""
        try:
            return [work()]
        except (ShardError, ConfigError, OSError) as error:
            return [WorkerFailed(path, str(error)[:DETAIL_CHARACTERS])]
        except (MemoryError, torch.OutOfMemoryError):
            self._freed = True
            return [WorkerFailed(path, f"{path} does not fit into the memory of {self._device}")]

    def _inspect(self, order: Inspect) -> Inspected:
        self._send([LoadProgress(0.0, "checkpoint")])  # Python is up: that alone can take minutes
        self._cache_dir = Path(order.cache_dir)
        path = Path(order.path)
        config = read_config(path)
        found = self._identify(path)
        filled = config.to_dict()
        spec = rules.model_spec(found.model_id, order.name or path.stem, filled, found.texts)
        dtype = self._dtype(config)
        sizes = rules.weight_sizes(found.manifest.tensors, dtype.itemsize)
        kept = choose_kv_dtype(self._config.kv_cache_dtype, dtype, self._config.quantization)
        return Inspected(
            spec=spec,
            layer_weight_bytes=sizes.largest_layer,
            embed_weight_bytes=sizes.embed,
            head_weight_bytes=sizes.head,
            kv_bytes_per_token_layer=rules.kv_bytes_per_token_layer(filled, kept.itemsize),
            manifest_path=str(found.manifest_path),
            path=order.path,
            memory_bytes=self._budget_bytes,
        )

    def _identify(self, path: Path) -> Checkpoint:
        return inspect(path, self._cache_dir, self._texts_of)

    def _texts_of(self, path: Path) -> Mapping[str, bytes]:
        """Of a GGUF file. Making them takes seconds, so they are kept while it is the same."""
        state = path.stat()
        key = (str(path), state.st_size, state.st_mtime_ns)
        if key not in self._gguf_texts:
            self._gguf_texts[key] = gguf_texts(path)
        return self._gguf_texts[key]

    def _load(self, order: Load) -> Loaded:
        """Check the identity once more, read the weights, prove the pieces, take the time."""
        self._send([LoadProgress(0.0, "checkpoint")])
        path, part = Path(order.path), Part(order.layers, order.embed, order.head)
        found = self._identify(path)
        if found.model_id != order.model_id:
            raise ShardError(f"{path} is not the model that was announced: its files have changed")
        self._send([LoadProgress(0.0, "kernels")])
        self._start_kernels()
        self._drop(order.model_id, "the shard was replaced by another one")
        self._send([LoadProgress(0.0, "weights")])
        config = read_config(path)
        dtype, quantization = self._dtype(config), self._config.quantization
        stage = load_stage(path, part, dtype, self._device, quantization)
        self._send([LoadProgress(0.8, "checks")])
        check_pieces(stage)
        if order.kv_blocks:
            self._make_blocks(stage, order)
        elif self._config.kv_cache_dtype != "auto":
            raise ShardError(f"KV in {self._config.kv_cache_dtype} needs blocks, none were ordered")
        self._send([LoadProgress(0.9, "timing")])
        tracker = SpeedTracker(order.model_id, measure(stage, time.perf_counter), _pass_rows(stage))
        self._know(found, stage, config)
        return self._serve_stage(order, stage, tracker, config)

    def _know(self, found: Checkpoint, stage: Stage, config: Any) -> None:
        """What guides for the model are made of: its text files are in the cache."""
        spec = rules.model_spec(found.model_id, "", config.to_dict(), found.texts)
        tokenizer = found.manifest_path.with_name(rules.TOKENIZER_NAME)
        if not stage.part.head or rules.TOKENIZER_NAME not in found.texts:
            self._guides.forget(found.model_id)
        else:
            self._guides.know(found.model_id, Lexicon(tokenizer, stage.vocab_size, spec.eos_ids))

    def _start_kernels(self) -> None:
        """The native ones, if this machine can build them: once, seconds on its first day."""
        if not self._kernels_started and self._device.type == "cpu":
            native = start_native()
            if native.problem:
                log("worker.slow_kernels", reason=native.problem)
        self._kernels_started = True

    def _make_blocks(self, stage: Stage, order: Load) -> None:
        """Give the stage its KV blocks, if it can work on them. Raises ShardError for want of
        memory, or of the dtype asked for."""
        asked = self._config.kv_cache_dtype
        kv_dtype = choose_kv_dtype(asked, stage.dtype, stage.quantization)
        reason = plain_reason(stage, kv_dtype, exact=self._config.exact)
        if reason is not None:
            if asked != "auto":
                raise ShardError(f"{order.path} cannot be served with KV in {kv_dtype}: {reason}")
            log("shard.plain_cache", path=order.path, reason=reason)
            return
        assert stage.kv is not None
        kinds = stage.kv.kinds
        stage.kv = None
        per_block = bytes_per_block(kinds, kv_dtype)
        blocks = min(order.kv_blocks, self._spare_bytes(stage) // per_block)
        if blocks == 0:
            raise ShardError(
                f"there is no memory for the KV of {order.path} beside its weights: one block of "
                f"{KV_BLOCK_TOKENS} positions takes {per_block} bytes"
            )
        stage.kv = make_paged_kv(kinds, blocks, kv_dtype, self._device)
        stage.capture = Capture(enabled=not self._config.enforce_eager)

    def _serve_stage(self, order: Load, stage: Stage, tracker: SpeedTracker, config: Any) -> Loaded:
        limits = engine_limits(self._config, stage, config, self._spare_bytes(stage))
        make_guide = self._guides.maker(order.model_id)
        engine = Engine(stage, order.model_id, tracker, limits, time.perf_counter, make_guide)
        self._engines[order.model_id] = engine
        self._share_memory()
        self._freed = True
        return Loaded(
            model_id=order.model_id,
            layers=order.layers,
            numeric_class=numeric_class(stage),
            kv_bytes_per_token_layer=limits.kv_bytes_per_token_layer,
            row_type=stage.row_type,
            row_bytes=stage.row_bytes,
            speed=tracker.speed(0.0, limits.kv_capacity_bytes),
            device=device_name(self._device),
            kv_blocks=0 if stage.kv is None else stage.kv.blocks,
            prefix_unit=_prefix_unit(stage),
            reuses_generated=stage.kv is not None and stage.is_row_invariant,
            guides=make_guide is not None,
        )

    def _share_memory(self) -> None:
        """Plain caches take what the blocks leave."""
        for engine in self._engines.values():
            if engine.stage.kv is None:
                engine.resize_kv(self._spare_bytes())

    def _spare_bytes(self, *added: Stage) -> int:
        """What the KV of all models may still take together, beside weights and blocks."""
        stages = [*(engine.stage for engine in self._engines.values()), *added]
        taken = sum(stage.parameter_bytes for stage in stages)
        taken += sum(stage.kv.byte_count for stage in stages if stage.kv is not None)
        return max(0, self._budget_bytes - taken - self._config.activation_bytes)

    def _dtype(self, config: Any) -> torch.dtype:
        own = config.dtype or config.get_text_config(decoder=True).dtype
        return choose_dtype(self._config.dtype, own, self._device)

    def _unload(self, model_id: ModelId) -> None:
        self._drop(model_id, "the model is served here no more")
        self._guides.forget(model_id)
        self._share_memory()
        log("shard.unloaded", model_id=model_id)

    def _drop(self, model_id: ModelId, why: str) -> None:
        """The shard that served this model makes room; its sessions are told."""
        engine = self._engines.pop(model_id, None)
        if engine is not None:
            self._send(engine.close(why))
            del engine
            gc.collect()  # modules and their hooks hold each other
            give_memory_back(self._device)

    def _session_order(self, message: Begin | Recall | Run | End) -> list[Message]:
        key = message.session
        known = self._homes.get(key)
        if isinstance(message, Begin):
            if known is not None and known != message.model_id:
                self._session_order(End(key))
            self._homes[key] = known = message.model_id
        engine = self._engines.get(known) if known is not None else None
        if isinstance(message, End):
            self._homes.pop(key, None)
            self._freed = True
        if engine is not None:
            return engine.handle(message)
        if isinstance(message, End):
            return []
        detail = "no shard of the session's model is loaded here"
        return [RunFailed(key, message.generation, FailureCode.STEP_FAILED, detail)]


def _pass_rows(stage: Stage) -> int | None:
    """Decode rows that one pass takes at most; None: any number."""
    return 1 if stage.kv is None else stage.company.rows_max


def _prefix_unit(stage: Stage) -> int:
    if stage.kv is None or stage.company is Company.NONE:
        return 0
    return KV_BLOCK_TOKENS if stage.is_row_invariant else PIECE_TOKENS


def log(event: str, **fields: FieldValue) -> None:
    """One line on stderr, which the daemon reads."""
    sys.stderr.write(as_text(note(event, Level.INFO, **fields)) + "\n")
    sys.stderr.flush()


def report_crash(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """An exception that nobody caught ends the process: in one line, with the place."""
    frames = traceback.extract_tb(trace)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    text = " ".join(str(error).split())[:DETAIL_CHARACTERS]
    log("worker.crashed", error=f"{kind.__name__}: {text}", place=place)


def refuse_all(channel: socket.socket, reason: str) -> None:
    """What the owner asked for cannot be: say so for each checkpoint, and do not crash over it."""
    reader = FrameReader()
    while count := channel.recv_into(reader.space()):
        for message in reader.filled(count):
            if isinstance(message, Inspect):
                channel.sendall(b"".join(pack(WorkerFailed(message.path, reason))))


def main(arguments: list[str]) -> None:
    descriptor, config, parent = arguments
    sys.excepthook = report_crash
    settle_in(int(parent))
    quiet_transformers()
    gc.freeze()  # what was imported is no garbage: to look through it stops all models for 0.3 s
    shard = ShardConfig(**json.loads(config))
    use_threads(shard.threads)
    with socket.socket(fileno=int(descriptor)) as channel:
        try:
            worker = Worker(channel, shard)
        except ConfigError as error:
            refuse_all(channel, str(error))
        else:
            worker.serve()
    os._exit(0)  # there is nothing left to do, and tearing torch down takes a second


if __name__ == "__main__":
    main(sys.argv[1:])
