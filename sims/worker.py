"""A worker in simulated time: the stub stage behind the port that a node knows its worker by.

It is a process of its own on its machine, takes time after a speed table, runs sessions in turn,
and can be made to crash, to wedge (it takes work and never answers) or to slow down.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from sims.loop import SimLoop
from sims.machine import SECOND_NS, Machine, Process
from sims.paged import BlockStore
from sims.stage import REFERENCE_CLASS, ROW, ROW_BYTES, Chain, embed, salt_of, sample
from swarm.errors import LocalProtocolError, ShardError
from swarm.kernels.history import NO_PAST, TokenHistory
from swarm.messages import (
    KV_BLOCK_TOKENS,
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
    RowType,
    Run,
    RunFailed,
    SpeedReport,
    StepKind,
)
from swarm.routing.worker_watch import TRIAL
from swarm.terms import ModelId, ModelSpec, NumericClass, SampledToken, SessionId, ShardSpeed

ID_BYTES = 4
INSPECT_S = 0.02
REPORT_INTERVAL_S = 1.0
PIPE_NS = 20_000
"""One way through the socketpair."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Of one machine's worker. Seconds per layer unless said."""

    decode_s: float = 0.001
    prefill_s: float = 0.0001
    """Per token and layer."""
    head_s: float = 0.001
    load_s: float = 0.02


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the stub worker finds at any path. Bytes of weights per layer, embed and head."""

    model: ModelSpec
    layer_bytes: int = 1000
    end_bytes: int = 1000
    kv_bytes_per_token_layer: int = 100


class WorkerEvents(Protocol):
    def worker_message(self, message: Message) -> None: ...

    def worker_lost(self, reason: str) -> None: ...


@dataclass(slots=True)
class _Job:
    order: Begin
    chain: Chain
    blocks: BlockStore | None
    """None for the row that proves the worker: it has no room in any pool."""
    history: TokenHistory | None
    """Of a head whose tokens depend on those before."""
    runs: deque[Run] = field(default_factory=deque)


class SimWorker:
    """Implements `worker_client_io.WorkerPort`. Outlives its runs: each `start` is a new one."""

    def __init__(
        self,
        loop: SimLoop,
        machine: Machine,
        checkpoints: dict[str, Checkpoint],
        speed: Speed,
        numeric_class: NumericClass = REFERENCE_CLASS,
    ) -> None:
        self.speed = speed
        self.slowness = 1.0
        """What the speed is divided by now; the owner plays a game, the card gets hot."""
        self.is_wedged = False
        self.numeric_class = numeric_class
        self.corrupt_row: Callable[[int], int] = lambda row: row
        self.steps_done = 0
        self.on_step: Callable[[int], None] = lambda steps: None
        """Told the number of finished steps just before each result leaves."""
        self.told_start: Callable[[], None] = lambda: None
        self.told_step: Callable[[], None] = lambda: None
        """Told after each step, for whoever watches the world."""
        self._loop = loop
        self._machine = machine
        self._checkpoints = checkpoints
        self._daemon: Process | None = None
        self._events: WorkerEvents | None = None
        self._run: Process | None = None
        self._jobs: dict[SessionId, _Job] = {}
        self._loaded: dict[ModelId, Checkpoint] = {}
        self._pools: dict[ModelId, BlockStore] = {}
        self._turns: deque[SessionId] = deque()
        self._is_busy = False
        self._reported_ns = 0

    @property
    def session_count(self) -> int:
        return len(self._jobs)

    @property
    def process(self) -> Process | None:
        """Of the present run."""
        return self._run

    def attach(self, daemon: Process, events: WorkerEvents) -> None:
        """Whose worker it is from now on."""
        self._daemon, self._events = daemon, events

    def offer(self, path: str, checkpoint: Checkpoint) -> None:
        """One more checkpoint lies on the machine's disk."""
        self._checkpoints[path] = checkpoint

    # ------------------------------------------------------------ WorkerPort

    async def start(self) -> None:
        if self._run is not None:
            raise LocalProtocolError("the worker runs already")
        self._reset()
        self.told_start()
        self._run = self._loop.process(self._machine)

    def send(self, message: Message) -> None:
        if self._run is not None:
            self._later(PIPE_NS, self._handle, message)

    async def stop(self) -> None:
        self._end()

    # ------------------------------------------------------------ faults

    def crash(self, reason: str = "the worker was killed by SIGKILL") -> None:
        if self._run is None:
            return
        self._end()
        if self._daemon is not None and self._events is not None:
            at = self._loop.now_ns + PIPE_NS
            self._loop.post(at, self._daemon, self._events.worker_lost, reason)

    def _end(self) -> None:
        if self._run is not None:
            self._loop.kill(self._run)
        self._run = None
        self._reset()

    def _reset(self) -> None:
        self._jobs.clear()
        self._loaded.clear()
        self._pools.clear()
        self._turns.clear()
        self._is_busy = False
        self.is_wedged = False

    # ------------------------------------------------------------ orders

    def _handle(self, message: Message) -> None:
        match message:
            case Inspect():
                self._begun()
                self._later(self._ns(INSPECT_S), self._inspected, message)
            case Load():
                self._begun()
                self._later(self._ns(self.speed.load_s), self._load, message)
            case Begin():
                self._begin(message)
            case End():
                job = self._jobs.pop(message.session, None)
                if job is not None and job.blocks is not None:
                    job.blocks.end(message.session)
            case Recall():
                self._recall(message)
            case Run():
                self._queue(message)
            case _:
                pass

    def _inspected(self, order: Inspect) -> None:
        if self.is_wedged:
            return
        found = self._checkpoints[order.path]
        self._answer(
            Inspected(
                spec=found.model,
                layer_weight_bytes=found.layer_bytes,
                embed_weight_bytes=found.end_bytes,
                head_weight_bytes=found.end_bytes,
                kv_bytes_per_token_layer=found.kv_bytes_per_token_layer,
                manifest_path="",
                path=order.path,
            )
        )

    def _begun(self) -> None:
        if not self.is_wedged:
            self._answer(LoadProgress(0.0, "checkpoint"))

    def _load(self, order: Load) -> None:
        if self.is_wedged:
            return
        found = self._checkpoints[order.path]
        self._loaded[order.model_id] = found
        self._pools[order.model_id] = BlockStore(order.kv_blocks)
        self._answer(LoadProgress(0.9, "timing"))
        self._answer(
            Loaded(
                model_id=order.model_id,
                layers=order.layers,
                numeric_class=self.numeric_class,
                kv_bytes_per_token_layer=found.kv_bytes_per_token_layer,
                row_type=RowType.FLOAT32,
                row_bytes=ROW_BYTES,
                speed=self._speed_of(order.model_id),
                device="stub",
                kv_blocks=order.kv_blocks,
                prefix_unit=KV_BLOCK_TOKENS,
                reuses_generated=True,
            )
        )

    def _begin(self, order: Begin) -> None:
        chain = Chain(order.layers, salt_of(self.numeric_class))
        blocks = self._pools[order.model_id] if order.session != TRIAL else None
        if blocks is not None:
            state = blocks.begin(order.session, order.blocks, order.kv_length, order.layers)
            chain.kv = list(state or chain.kv)
            chain.length = order.kv_length
        needs = order.head and order.sampling.needs_history
        history = TokenHistory(order.sampling, order.prompt_count) if needs else None
        self._jobs[order.session] = _Job(order, chain, blocks, history)

    def _recall(self, order: Recall) -> None:
        job = self._jobs.get(order.session)
        if job is not None and job.history and job.order.generation == order.generation:
            try:
                job.history.recall(order.position, bytes(order.payload)[order.guide_bytes :])
            except ShardError as error:
                self._answer(_failed(order.session, order.generation, str(error)))

    def _queue(self, run: Run) -> None:
        job = self._jobs.get(run.session)
        if job is None or job.order.generation != run.generation:
            return
        if job.blocks is not None:
            job.blocks.append(run.session, run.blocks)
        job.runs.append(run)
        if len(job.runs) == 1:
            self._turns.append(run.session)
        if not self._is_busy:
            self._next()

    def _next(self) -> None:
        """Begin the oldest waiting session's next step."""
        while self._turns and not self.is_wedged:
            session = self._turns.popleft()
            job = self._jobs.get(session)
            if job is None or not job.runs:
                continue
            self._is_busy = True
            self._later(
                self._ns_plain(self._cost_s(job.order, job.runs[0])), self._done, session, job
            )
            return

    def _done(self, session: SessionId, job: _Job) -> None:
        if self.is_wedged:
            return
        self._is_busy = False
        if self._jobs.get(session) is job and job.runs:
            run = job.runs.popleft()
            answer = self._compute(job, run)
            self.steps_done += 1
            self.on_step(self.steps_done)
            self.told_step()
            if self._run is None or self.is_wedged:
                return
            self._answer(answer)
            if job.runs:
                self._turns.append(session)
        self._report()
        if not self._is_busy:
            self._next()

    def _report(self) -> None:
        if self._loop.now_ns - self._reported_ns >= self._ns_plain(REPORT_INTERVAL_S):
            self._reported_ns = self._loop.now_ns
            for model_id in self._loaded:
                report = SpeedReport(self._speed_of(model_id), 0, len(self._jobs))
                self._answer(report)

    # ------------------------------------------------------------ the stage

    def _compute(self, job: _Job, run: Run) -> Message:
        if run.position != job.chain.length:
            detail = f"rows from {run.position}, the KV holds {job.chain.length}"
            return _failed(run.session, run.generation, detail)
        begin, rows, tokens = job.order, [], []
        for index in range(run.count):
            position = run.position + index
            row = _run_row(job, position, self._input(run, index))
            if begin.head and position >= run.sample_from:
                try:
                    tokens.append(self._sampled(row, position, job))
                except ShardError as error:
                    return _failed(run.session, run.generation, str(error))
            rows.append(ROW.pack(self.corrupt_row(row)))
        return Ran(
            session=run.session,
            generation=run.generation,
            position=run.position,
            count=run.count,
            kind=run.kind,
            row_type=RowType.FLOAT32,
            compute_s=self._cost_s(begin, run),
            tokens=tuple(tokens),
            payload=b"" if begin.head else b"".join(rows),
        )

    def _sampled(self, row: int, position: int, job: _Job) -> SampledToken:
        """Raises ShardError where the ids before are not known."""
        past = job.history.before(position + 1) if job.history else NO_PAST
        token = sample(self.corrupt_row(row), position + 1, job.order.sampling, past)
        if job.history:
            job.history.chosen(token)
        return token

    def _input(self, run: Run, index: int) -> int:
        if run.row_type is RowType.IDS:
            start = ID_BYTES * index
            return embed(int.from_bytes(run.payload[start : start + ID_BYTES], "little"))
        row: int = ROW.unpack_from(run.payload, ROW_BYTES * index)[0]
        return row

    def _cost_s(self, begin: Begin, run: Run) -> float:
        per_row = self.speed.prefill_s if run.kind is StepKind.PREFILL else self.speed.decode_s
        head_s = self.speed.head_s if begin.head else 0.0
        return (len(begin.layers) * per_row * run.count + head_s) * self.slowness

    def _speed_of(self, model_id: ModelId) -> ShardSpeed:
        decode_s = self.speed.decode_s * self.slowness
        return ShardSpeed(
            model_id=model_id,
            decode_s_per_layer=decode_s,
            decode8_s_per_layer=8 * decode_s,
            prefill_s_per_token_layer=self.speed.prefill_s * self.slowness,
            head_s=self.speed.head_s * self.slowness,
            queue_s=0.0,
            kv_free_bytes=0,
        )

    # ------------------------------------------------------------ time and pipe

    def _answer(self, message: Message) -> None:
        if self._daemon is not None and self._events is not None:
            at = self._loop.now_ns + PIPE_NS
            self._loop.post(at, self._daemon, self._deliver, self._events, message)

    def _deliver(self, events: WorkerEvents, message: Message) -> None:
        if events is self._events:
            events.worker_message(message)

    def _later(self, delay_ns: int, callback: Callable[..., None], *args: object) -> None:
        assert self._run is not None
        self._loop.post(self._loop.now_ns + delay_ns, self._run, callback, *args)

    def _ns(self, seconds: float) -> int:
        return int(seconds * self.slowness * SECOND_NS)

    def _ns_plain(self, seconds: float) -> int:
        return int(seconds * SECOND_NS)


def _run_row(job: _Job, position: int, row: int) -> int:
    """One position through the stage, in the block that it belongs to."""
    chain, session = job.chain, job.order.session
    if job.blocks is None:
        return chain.run(position, row)
    block = job.blocks.row(session, position, chain.layers, chain.kv)
    result = chain.run(position, row)
    job.blocks.ran(block, session, position, chain.kv)
    return result


def _failed(session: SessionId, generation: int, detail: str) -> RunFailed:
    return RunFailed(session, generation, FailureCode.STEP_FAILED, detail)
