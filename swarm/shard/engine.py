"""The worker's engine: takes runs of sessions in, gives rows and tokens out.

    schedule -> run -> settle

Every run ends in exactly one `Ran` or, for its session as a whole, one `RunFailed`. A step that
fails costs its session, whose KV is then of no use, and nobody else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import assert_never

import torch

from swarm.errors import CapacityError, ShardError
from swarm.kernels.sampling import sample
from swarm.messages import (
    PAYLOAD_LIMIT,
    Begin,
    End,
    FailureCode,
    Message,
    Ran,
    RowType,
    Run,
    RunFailed,
    SpeedReport,
    StepKind,
)
from swarm.shard.cut import Part
from swarm.shard.kv_cache import SessionCache
from swarm.shard.scheduler import Scheduler, Slice
from swarm.shard.speed import SpeedTracker, StepTime, sampled_rows
from swarm.shard.stage import ELEMENT_TYPES, Stage
from swarm.terms import ModelId, SampledToken, SessionId
from swarm.worker_messages import RUN_ROWS_MAX, SAMPLED_ROWS_MAX, TOP_LOGPROBS_MAX

STEP_ERRORS = (RuntimeError, MemoryError, ValueError, IndexError, ArithmeticError, ShardError)
"""What a forward pass may raise for one session without harm to the process."""
DETAIL_CHARACTERS = 500
"""Of an error's text: messages have a limit, and people too."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    queue_max: int
    kv_capacity_bytes: int
    kv_bytes_per_token_layer: int


@dataclass(slots=True)
class _Output:
    """What the slices of the run in progress have given so far."""

    rows: list[torch.Tensor] = field(default_factory=list)
    tokens: list[SampledToken] = field(default_factory=list)
    compute_s: float = 0.0


@dataclass(slots=True)
class _Session:
    begin: Begin
    cache: SessionCache | None
    """None once a step failed: the session waits for its end or a new beginning."""
    reserved_bytes: int
    output: _Output = field(default_factory=_Output)


class Engine:
    def __init__(
        self,
        stage: Stage,
        model_id: ModelId,
        tracker: SpeedTracker,
        limits: EngineLimits,
        clock: Callable[[], float],
    ) -> None:
        self.stage = stage
        self._model_id = model_id
        self._tracker = tracker
        self._limits = limits
        self._kv_capacity_bytes = limits.kv_capacity_bytes
        self._clock = clock
        self._scheduler = Scheduler(limits.queue_max)
        self._sessions: dict[SessionId, _Session] = {}

    @property
    def has_work(self) -> bool:
        return len(self._scheduler) > 0

    @property
    def session_count(self) -> int:
        return len(self._sessions)

    @property
    def kv_used_bytes(self) -> int:
        return sum(session.reserved_bytes for session in self._sessions.values())

    def resize_kv(self, capacity_bytes: int) -> None:
        """Another shard came or went beside this one."""
        self._kv_capacity_bytes = capacity_bytes

    def handle(self, message: Begin | Run | End) -> list[Message]:
        """Take one order of the daemon in; the answer is empty unless it cannot be followed."""
        match message:
            case Begin():
                return self._begin(message)
            case Run():
                return self._queue(message)
            case End():
                self._forget(message.session)
                return []
            case _:
                assert_never(message)

    def step(self) -> list[Message]:
        """Run the next slice of work, if there is any."""
        part = self._scheduler.next()
        if part is None:
            return []
        session = self._sessions[part.run.session]
        started = self._clock()
        try:
            self._run(session, part)
        except STEP_ERRORS as error:
            if _is_fatal(error):
                raise
            return [self._fail(part.run.session, _failure_code(error), _first_line(error))]
        return self._settle(session, part, self._clock() - started)

    def report(self) -> list[Message]:
        """A speed report when one is due."""
        free = max(0, self._kv_capacity_bytes - self.kv_used_bytes)
        speed = self._tracker.speed(self._queue_s(), free)
        if not self._tracker.due(speed, self._clock()):
            return []
        return [SpeedReport(speed, self.kv_used_bytes, len(self._sessions))]

    def fail(self, key: SessionId, detail: str) -> RunFailed:
        """The session, which is known here, cannot go on."""
        return self._fail(key, FailureCode.STEP_FAILED, detail)

    def close(self, reason: str) -> list[Message]:
        """Fail every session that still lives, before another shard takes this one's place."""
        alive = [key for key, session in self._sessions.items() if session.cache is not None]
        failures: list[Message] = [
            self._fail(key, FailureCode.STEP_FAILED, reason) for key in alive
        ]
        self._sessions.clear()
        return failures

    # ------------------------------------------------------------ orders

    def _begin(self, begin: Begin) -> list[Message]:
        self._forget(begin.session)
        part = Part(begin.layers, begin.embed, begin.head)
        session = _Session(begin, None, 0)
        self._sessions[begin.session] = session
        problem = self._begin_problem(begin)
        if problem is not None:
            return [self.fail(begin.session, problem)]
        try:
            session.cache = self.stage.new_cache(part, begin.position_limit)
        except STEP_ERRORS as error:
            return [self._fail(begin.session, _failure_code(error), _first_line(error))]
        per_position = len(begin.layers) * self._limits.kv_bytes_per_token_layer
        session.reserved_bytes = begin.position_limit * per_position
        return []

    def _begin_problem(self, begin: Begin) -> str | None:
        """Why a session cannot be right, or None. What it asks for may come from any member."""
        sampling = begin.sampling
        if begin.model_id != self._model_id:
            return "this worker holds another model"
        if begin.position_limit < 1:
            return f"a session of {begin.position_limit} positions"
        if not 0 <= (sampling.logprobs or 0) <= TOP_LOGPROBS_MAX:
            return f"{sampling.logprobs} alternatives asked for, at most {TOP_LOGPROBS_MAX} given"
        if sampling.temperature < 0.0:
            return f"a temperature of {sampling.temperature}"
        return None

    def _queue(self, run: Run) -> list[Message]:
        session = self._sessions.get(run.session)
        if session is None:
            detail = "a step came for a session that never began"
            return [RunFailed(run.session, run.generation, FailureCode.STEP_FAILED, detail)]
        if run.generation < session.begin.generation or session.cache is None:
            return []  # its failure was told, or its session has begun anew since
        problem = self._problem(run, session)
        if problem is None:
            try:
                self._scheduler.add(run)
            except CapacityError as error:
                problem = str(error)
        return [] if problem is None else [self.fail(run.session, problem)]

    def _problem(self, run: Run, session: _Session) -> str | None:
        """Why a run cannot be right, or None."""
        if run.generation > session.begin.generation:
            return f"generation {run.generation} of the session never began"
        if not 1 <= run.count <= RUN_ROWS_MAX:
            return f"a step of {run.count} rows"
        if session.begin.head:
            if (sampled := sampled_rows(run, 0, run.count)) > SAMPLED_ROWS_MAX:
                return f"{sampled} rows of one step to be sampled, at most {SAMPLED_ROWS_MAX} are"
        elif run.count * self.stage.row_bytes > PAYLOAD_LIMIT:
            return f"{run.count} rows of {self.stage.row_bytes} bytes do not fit into one answer"
        if (run.row_type is RowType.IDS) is not session.begin.embed:
            return f"{run.row_type.name} rows where the session does not take them"
        width = 4 if run.row_type is RowType.IDS else self._row_bytes(run.row_type)
        if len(run.payload) != run.count * width:
            return f"{len(run.payload)} bytes for {run.count} rows of {width} bytes"
        return None

    def _row_bytes(self, row_type: RowType) -> int:
        return self.stage.hidden_size * int(ELEMENT_TYPES[row_type].itemsize)

    def _forget(self, key: SessionId) -> None:
        self._scheduler.drop(key)
        self._sessions.pop(key, None)

    def _fail(self, key: SessionId, code: FailureCode, detail: str) -> RunFailed:
        """The session loses its KV; what still waits of it is dropped with it."""
        self._scheduler.drop(key)
        session = self._sessions[key]
        session.cache, session.reserved_bytes, session.output = None, 0, _Output()
        return RunFailed(key, session.begin.generation, code, detail[:DETAIL_CHARACTERS])

    # ------------------------------------------------------------ run and settle

    def _run(self, session: _Session, part: Slice) -> None:
        """Prefill rows go through together, decode rows one position at a time, each through the
        very call that a single decode step makes: so rebuilt rows have the same bits."""
        width = part.count if part.run.kind is StepKind.PREFILL else 1
        for first in range(part.first, part.first + part.count, width):
            self._forward(session, part.run, first, width)

    def _forward(self, session: _Session, run: Run, first: int, count: int) -> None:
        """Rows [first, first + count) of a run. Raises one of STEP_ERRORS."""
        cache = session.cache
        assert cache is not None
        position = run.position + first
        sampled = sampled_rows(run, first, count) if session.begin.head else 0
        wanted = tuple(range(count - sampled, count))
        rows = self._rows(run, first, count)
        output = self.stage.forward(rows, position, cache, wanted)[0]
        if not bool(torch.isfinite(output).all()):
            raise ArithmeticError(f"not a finite number in the output at position {position}")
        if not session.begin.head:
            session.output.rows.append(output)
            return
        for logits, index in zip(output, wanted, strict=True):
            token = sample(logits, session.begin.sampling, position + index + 1)
            session.output.tokens.append(token)

    def _rows(self, run: Run, first: int, count: int) -> torch.Tensor:
        """[1, count] ids or [1, count, E] rows of a run, on the device."""
        is_ids = run.row_type is RowType.IDS
        width = 4 if is_ids else self._row_bytes(run.row_type)
        data = bytearray(run.payload[first * width : (first + count) * width])
        if not is_ids:
            rows = torch.frombuffer(data, dtype=ELEMENT_TYPES[run.row_type])
            rows = rows.view(1, count, self.stage.hidden_size)
            return rows.to(self.stage.device, self.stage.dtype)
        ids = torch.frombuffer(data, dtype=torch.int32).to(torch.int64)[None]
        if int(ids.min()) < 0 or int(ids.max()) >= self.stage.vocab_size:
            raise ValueError(f"a token id outside the vocabulary of {self.stage.vocab_size}")
        return ids.to(self.stage.device)

    def _settle(self, session: _Session, part: Slice, compute_s: float) -> list[Message]:
        """Learn from the slice; answer once the whole run is through."""
        run, output = part.run, session.output
        sampled = sampled_rows(run, part.first, part.count) if session.begin.head else 0
        layers = len(session.begin.layers)
        self._tracker.step_done(StepTime(run.kind, part.count, layers, sampled, compute_s))
        output.compute_s += compute_s
        if not part.is_last:
            return []
        session.output = _Output()
        return [
            Ran(
                session=run.session,
                generation=run.generation,
                position=run.position,
                count=run.count,
                kind=run.kind,
                row_type=self.stage.row_type,
                compute_s=output.compute_s,
                tokens=tuple(output.tokens),
                payload=_payload(output.rows),
            )
        ]

    def _queue_s(self) -> float:
        waiting = []
        for part in self._scheduler.waiting():
            begin = self._sessions[part.run.session].begin
            sampled = sampled_rows(part.run, part.first, part.count) if begin.head else 0
            waiting.append((part, len(begin.layers), sampled))
        return self._tracker.queue_s(waiting)


def _payload(rows: list[torch.Tensor]) -> memoryview | bytes:
    """[count, E] as raw little-endian elements."""
    if not rows:
        return b""
    joined = rows[0] if len(rows) == 1 else torch.cat(rows)
    return memoryview(joined.cpu().contiguous().view(torch.uint8).numpy().reshape(-1))


def _is_fatal(error: BaseException) -> bool:
    """An accelerator that reported an error gives nothing but errors until the process ends."""
    return isinstance(error, torch.AcceleratorError) and not isinstance(
        error, torch.OutOfMemoryError
    )


def _failure_code(error: BaseException) -> FailureCode:
    no_room = isinstance(error, MemoryError | torch.OutOfMemoryError)
    if no_room or "allocate memory" in str(error):
        return FailureCode.OUT_OF_MEMORY
    return FailureCode.STEP_FAILED


def _first_line(error: BaseException) -> str:
    """Also of an error that quotes bytes which are no text."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line.encode(errors="replace").decode()
