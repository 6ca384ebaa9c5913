"""The worker's engine: takes runs of sessions in, gives rows and tokens out.

    schedule -> run -> settle

Every run ends in exactly one `Ran` or, for its session as a whole, one `RunFailed`. A step that
fails costs its session, whose KV is then of no use, and nobody else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import assert_never

import numpy
import torch

from swarm.errors import CapacityError, ShardError
from swarm.guides import GuideError, Matcher
from swarm.messages import (
    PAYLOAD_LIMIT,
    Begin,
    End,
    FailureCode,
    Message,
    Ran,
    Recall,
    RowType,
    Run,
    RunFailed,
    SpeedReport,
    StepKind,
)
from swarm.shard.batch import MIX_ROWS, Table
from swarm.shard.choice import Choice, GuideMaker
from swarm.shard.cut import Part
from swarm.shard.engine_limits import EngineLimits
from swarm.shard.runners import Outcome, PagedRunner, PlainRunner
from swarm.shard.scheduler import ROOM_LEAST, Scheduler
from swarm.shard.speed import SpeedTracker, StepTime, sampled_rows
from swarm.shard.stage import ELEMENT_TYPES, Stage
from swarm.shard.work import Output, Session, Work
from swarm.terms import ModelId, SessionId
from swarm.worker_messages import KV_BLOCK_TOKENS, RUN_ROWS_MAX, SAMPLED_ROWS_MAX, TOP_LOGPROBS_MAX

STEP_ERRORS = (RuntimeError, MemoryError, ValueError, IndexError, ArithmeticError, ShardError)
"""What a forward pass may raise for one session without harm to the process."""
MIXED_MOST = 64
"""Rows of prompts beside tokens, about."""
STEP_PER_TOKEN = 2.0
"""Times the step of the tokens alone that a step with rows of prompts is to take: late rows of a
long prompt cost more than predicted, and three times is what is asked for."""
GATHER_GAP = 0.2
"""Times a single row's step that may pass without another row before those that are there run."""
GATHER_WHOLE = 1.0
"""The same for all waiting together: what a second batch would cost at least."""
DETAIL_CHARACTERS = 500
"""Of an error's text: messages have a limit, and people too."""


class Engine:
    def __init__(
        self,
        stage: Stage,
        model_id: ModelId,
        tracker: SpeedTracker,
        limits: EngineLimits,
        clock: Callable[[], float],
        make_guide: GuideMaker | None = None,
    ) -> None:
        """Over the stage's KV blocks where it has some, else with a cache for each session.

        make_guide  has guides compiled, each answered by `guide_made`; None: this head has none
        """
        self._make_guide = make_guide
        self.stage = stage
        self._model_id = model_id
        self._tracker = tracker
        self._limits = limits
        self._kv_capacity_bytes = limits.kv_capacity_bytes
        self._clock = clock
        self._runner: PagedRunner | PlainRunner = (
            PlainRunner(stage) if stage.kv is None else PagedRunner(stage)
        )
        self._scheduler = Scheduler(limits.queue_max, limits.step)
        self._sessions: dict[SessionId, Session] = {}
        self._gathers_from: float | None = None
        """When the rows that wait could have run, once they are kept from it."""
        self._row_came_at = 0.0

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

    def handle(self, message: Begin | Recall | Run | End) -> list[Message]:
        """Take one order of the daemon in; the answer is empty unless it cannot be followed."""
        match message:
            case Begin():
                return self._begin(message)
            case Recall():
                return self._recall(message)
            case Run():
                return self._queue(message)
            case End():
                self._forget(message.session)
                return []
            case _:
                assert_never(message)

    def gather_s(self) -> float:
        """How much longer what waits should do so for rows of other sessions, which cost little
        where they run with it; 0: it runs now. Asked for before each step."""
        if not self._scheduler.lacks_rows(mixes=self.stage.is_row_invariant):
            return 0.0
        now, part = self._clock(), self.stage.part
        step_s = self._tracker.predict_s(StepKind.DECODE, 1, len(part.layers), int(part.head))
        if self._gathers_from is None:
            self._gathers_from = self._row_came_at = now
        gap_end = self._row_came_at + GATHER_GAP * step_s
        end = min(gap_end, self._gathers_from + GATHER_WHOLE * step_s)
        if now >= end:
            self._scheduler.give_up()
        return max(0.0, end - now)

    def step(self) -> list[Message]:
        """Run what is next, if anything waits."""
        self._gathers_from = None
        slices = self._scheduler.next(self._rows_most())
        works = [Work(self._sessions[each.run.session], each) for each in slices]
        return [answer for group in _by_part(works) for answer in self._run(group)]

    def guide_made(
        self, key: SessionId, generation: int, matcher: Matcher | GuideError
    ) -> list[Message]:
        """The guide that a session waits for, if it still does."""
        session = self._sessions.get(key)
        if session is None or session.choice is None or session.kv is None:
            return []
        if session.begin.generation != generation:
            return []
        if isinstance(matcher, GuideError):
            return [self._fail(key, FailureCode.GUIDE_FAILED, str(matcher))]
        session.choice.follow(matcher)
        parked, session.parked = session.parked, []
        for run in parked:
            self._scheduler.add(run)
        return []

    def report(self) -> list[Message]:
        """A speed report when one is due."""
        free = max(0, self._kv_capacity_bytes - self.kv_used_bytes)
        speed = self._tracker.speed(self._queue_s(), free, self._scheduler.batch_rows)
        if not self._tracker.due(speed, self._clock()):
            return []
        return [SpeedReport(speed, self.kv_used_bytes, len(self._sessions))]

    def fail(self, key: SessionId, detail: str) -> RunFailed:
        """The session, which is known here, cannot go on."""
        return self._fail(key, FailureCode.STEP_FAILED, detail)

    def close(self, reason: str) -> list[Message]:
        """Fail every session that still lives, before another shard takes this one's place."""
        alive = [key for key, session in self._sessions.items() if session.kv is not None]
        failures: list[Message] = [
            self._fail(key, FailureCode.STEP_FAILED, reason) for key in alive
        ]
        self._sessions.clear()
        return failures

    def _rows_most(self) -> int | None:
        """Rows of a step in which rows of prompts run with decode rows; None where these rows' bits
        would depend on it. One of few numbers, so that each is known."""
        if not self.stage.is_row_invariant:
            return None
        part, rows = self.stage.part, self._scheduler.batch_rows
        layers, sampled = len(part.layers), rows * part.head
        token_s = self._tracker.predict_s(StepKind.DECODE, rows, layers, sampled)
        least = rows + ROOM_LEAST + -(rows + ROOM_LEAST) % MIX_ROWS
        for count in range(least + MIXED_MOST, least, -MIX_ROWS):
            step_s = self._tracker.predict_mixed_s(rows, count - rows, layers, sampled)
            if step_s <= STEP_PER_TOKEN * token_s:
                return count
        return least

    # ------------------------------------------------------------ orders

    def _begin(self, begin: Begin) -> list[Message]:
        self._forget(begin.session)
        part = Part(begin.layers, begin.embed, begin.head)
        session = self._sessions[begin.session] = Session(begin, part, None)
        problem = self._begin_problem(begin)
        if problem is not None:
            return [self.fail(begin.session, problem)]
        try:
            session.kv = self._runner.new_kv(begin, part)
        except STEP_ERRORS as error:
            return [self._fail(begin.session, _failure_code(error), _first_line(error))]
        if begin.head and begin.sampling.needs_history:
            session.choice = Choice(begin)
        self._scheduler.begin(begin.session, begin.hop_count)
        self._reserve(session)
        return []

    def _recall(self, message: Recall) -> list[Message]:
        session = self._sessions.get(message.session)
        if session is None or session.choice is None or session.kv is None:
            return []
        if message.generation != session.begin.generation:
            return []
        try:
            guide = session.choice.recall(message)
        except ShardError as error:
            return [self.fail(message.session, str(error))]
        if guide is not None and self._make_guide is not None:
            self._make_guide(message.session, message.generation, guide)
        return []

    def _reserve(self, session: Session) -> None:
        """Take into the books what a session holds, which its messages have grown."""
        per_position = len(session.part.layers) * self._limits.kv_bytes_per_token_layer
        held = session.begin.position_limit
        if isinstance(session.kv, Table):
            held = len(session.kv.blocks) * KV_BLOCK_TOKENS
        session.reserved_bytes = held * per_position

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
        if begin.head and sampling.guide is not None and self._make_guide is None:
            return "this head cannot follow a guide"
        return None

    def _queue(self, run: Run) -> list[Message]:
        session = self._sessions.get(run.session)
        if session is None:
            detail = "a step came for a session that never began"
            return [RunFailed(run.session, run.generation, FailureCode.STEP_FAILED, detail)]
        if run.generation < session.begin.generation or session.kv is None:
            return []  # its failure was told, or its session has begun anew since
        problem = self._problem(run, session)
        if problem is None:
            try:
                self._grow(session, run.blocks)
                self._add(session, run)
            except (CapacityError, ShardError) as error:
                problem = str(error)
        return [] if problem is None else [self.fail(run.session, problem)]

    def _add(self, session: Session, run: Run) -> None:
        """To the scheduler, unless its rows cannot be sampled yet. Raises CapacityError."""
        waits = session.choice is not None and session.choice.is_waiting
        if not session.parked and not (waits and sampled_rows(run, 0, run.count)):
            self._scheduler.add(run)
            self._row_came_at = self._clock()
        elif len(session.parked) < self._limits.queue_max:
            session.parked.append(run)
        else:
            raise CapacityError(f"{len(session.parked)} steps wait for the guide already")

    def _grow(self, session: Session, blocks: bytes) -> None:
        if not blocks:
            return
        if not isinstance(session.kv, Table):
            raise ShardError("KV blocks came for a session that has a cache of its own")
        session.kv.extend(blocks)
        self._reserve(session)

    def _problem(self, run: Run, session: Session) -> str | None:
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
        return self._ids_problem(run) if run.row_type is RowType.IDS else None

    def _ids_problem(self, run: Run) -> str | None:
        ids = numpy.frombuffer(run.payload, dtype="<i4")
        if int(ids.min()) < 0 or int(ids.max()) >= self.stage.vocab_size:
            return f"a token id outside the vocabulary of {self.stage.vocab_size}"
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
        session.kv, session.reserved_bytes, session.output = None, 0, Output()
        session.choice = None
        session.parked.clear()
        return RunFailed(key, session.begin.generation, code, detail[:DETAIL_CHARACTERS])

    # ------------------------------------------------------------ run and settle

    def _run(self, works: Sequence[Work]) -> list[Message]:
        """What failed together is tried one by one, so that only those fail that cause it."""
        started = self._clock()
        try:
            outcomes = self._runner.run(works)
        except STEP_ERRORS as error:
            if _is_fatal(error):
                raise
            if len(works) > 1:
                return [answer for work in works for answer in self._run([work])]
            key = works[0].slice.run.session
            return [self._fail(key, _failure_code(error), _first_line(error))]
        compute_s = self._clock() - started
        self._learn(works, compute_s)
        settled = zip(works, outcomes, strict=True)
        return [
            answer for work, outcome in settled for answer in self._settle(work, outcome, compute_s)
        ]

    def _learn(self, works: Sequence[Work], compute_s: float) -> None:
        rows = sum(work.slice.count for work in works)
        sampled = sum(work.sampled for work in works)
        layers = len(works[0].session.part.layers)
        prompt_rows = sum(w.slice.count for w in works if w.slice.run.kind is StepKind.PREFILL)
        kind = StepKind.PREFILL if prompt_rows == rows else StepKind.DECODE
        beside = prompt_rows if kind is StepKind.DECODE else 0
        step = StepTime(kind, rows, layers, sampled, compute_s, beside)
        self._tracker.step_done(step)

    def _settle(self, work: Work, outcome: Outcome, compute_s: float) -> list[Message]:
        """Answer once the whole run is through."""
        run, session = work.slice.run, work.session
        if isinstance(outcome, ShardError):
            return [self._fail(run.session, _failure_code(outcome), _first_line(outcome))]
        output = session.output
        output.tokens += outcome.tokens
        output.compute_s += compute_s
        if outcome.rows is not None:
            output.rows.append(outcome.rows)
        if not work.slice.is_last:
            return []
        session.output = Output()
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


def _by_part(works: Iterable[Work]) -> list[list[Work]]:
    """Sessions that use other layers cannot share a forward pass."""
    groups: dict[Part, list[Work]] = {}
    for work in works:
        groups.setdefault(work.session.part, []).append(work)
    return list(groups.values())


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
    if isinstance(error, GuideError):
        return FailureCode.GUIDE_FAILED
    no_room = isinstance(error, MemoryError | torch.OutOfMemoryError)
    if no_room or "allocate memory" in str(error):
        return FailureCode.OUT_OF_MEMORY
    return FailureCode.STEP_FAILED


def _first_line(error: BaseException) -> str:
    """Also of an error that quotes bytes which are no text."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line.encode(errors="replace").decode()
