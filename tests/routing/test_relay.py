"""The hop's side of running sessions: facts in, the exact list of effects out."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from relay_bench import (
    AFTER,
    BEFORE,
    CONFIG,
    CREDITS,
    END,
    FIRST,
    LAST,
    LIMIT,
    MIDDLE,
    ORIGIN,
    OTHER,
    PROMPT,
    ROW,
    SESSION,
    WORKER_ID,
    Bench,
    chunk,
    credit,
    data,
    decode_step,
    gap,
    opened,
    rows_ran,
    rows_run,
    shard_of,
    under,
)

from swarm.effects import Effect, Send, ToWorker
from swarm.errors import RemoteProtocolError
from swarm.messages import (
    PAYLOAD_LIMIT,
    WORKER_MESSAGES,
    Begin,
    Credit,
    FailureCode,
    Gap,
    HopFailed,
    Opened,
    Ran,
    Resume,
    RowType,
    Run,
    RunFailed,
    Step,
    StepKind,
    Token,
    decode,
    encode,
)
from swarm.routing.outbox import DECODE_BUNDLE
from swarm.routing.relay_rules import LOGPROBS_MAX, STEP_ROWS_MAX, unanswered_max
from swarm.terms import (
    Epoch,
    SampledToken,
    SessionId,
    TokenLogprob,
)

# ---------------------------------------------------------------- rows in


def test_rows_go_to_the_worker_and_on() -> None:
    bench = Bench()
    bench.begin(MIDDLE)
    assert bench.step(chunk(0, 10)) == [rows_run(0, 10, StepKind.PREFILL, 19)]
    assert bench.ran(rows_ran(0, 10, StepKind.PREFILL)) == [Send(AFTER, chunk(0, 10)), credit(10)]


def test_a_single_decode_row_gets_no_credit() -> None:
    bench = Bench()
    bench.hold(MIDDLE, 20)
    assert bench.step(decode_step(20)) == [rows_run(20, 1, StepKind.DECODE, 19)]
    assert bench.ran(rows_ran(20, 1, StepKind.DECODE)) == [Send(AFTER, decode_step(20))]


def test_rows_already_held_are_trimmed() -> None:
    bench = Bench()
    bench.hold(MIDDLE, 22)
    assert bench.step(decode_step(20, 4)) == [rows_run(22, 2, StepKind.DECODE, 19)]
    assert bench.ran(rows_ran(22, 2, StepKind.DECODE)) == [
        Send(AFTER, decode_step(22, 2)), credit(24),
    ]  # fmt: skip


def test_a_bundle_trimmed_to_one_row_still_gets_its_credit() -> None:
    """The feeder counts the bundle that it sent; without credit its window would shrink."""
    bench = Bench()
    bench.hold(MIDDLE, 22)
    assert bench.step(decode_step(20, 3)) == [rows_run(22, 1, StepKind.DECODE, 19)]
    assert bench.ran(rows_ran(22, 1, StepKind.DECODE)) == [
        Send(AFTER, decode_step(22)), credit(23),
    ]  # fmt: skip


def test_an_exact_duplicate_is_answered_with_credit() -> None:
    bench = Bench()
    bench.hold(MIDDLE, 22)
    assert bench.step(chunk(0, 10)) == [credit(22)]
    assert bench.step(decode_step(21)) == []


def test_a_duplicate_of_what_is_still_computed_gets_credit_when_that_is_done() -> None:
    bench = Bench()
    bench.begin(MIDDLE)
    bench.step(chunk(0, 10))
    bench.open(under(MIDDLE, 2))
    bench.resume(10, 0, epoch=2)
    assert bench.step(chunk(0, 10, epoch=2)) == []
    assert bench.ran(rows_ran(0, 10, StepKind.PREFILL)) == [
        Send(AFTER, chunk(0, 10, epoch=2)), credit(10, 2),
    ]  # fmt: skip


def test_rows_beyond_the_length_are_a_gap() -> None:
    bench = Bench()
    bench.begin(MIDDLE)
    assert bench.step(chunk(5, 5)) == [gap(5, 0)]


def test_steps_of_old_epochs_are_dropped() -> None:
    bench = Bench()
    bench.open(under(MIDDLE, 2))
    bench.resume(0, 0, epoch=2)
    assert bench.step(chunk(0, 10)) == []
    bench.credit(10, epoch=1)
    assert bench.effects() == []


def test_a_step_for_no_session_here_is_said_to_its_feeder() -> None:
    """And no link is closed: an origin may have told a hop to feed whom it likes."""
    bench = Bench()
    unknown = Send(BEFORE, Gap(SESSION, Epoch(1), 0, 0, ORIGIN))
    assert bench.step(chunk(0, 10)) == [unknown]
    bench.begin(MIDDLE)
    assert bench.step(chunk(0, 10), OTHER) == [replace(unknown, peer=OTHER)]
    early = Gap(SESSION, Epoch(2), 0, 0, ORIGIN)
    assert bench.step(chunk(0, 10, epoch=2)) == [Send(BEFORE, early)]


def test_ids_come_from_the_origin_without_its_name() -> None:
    bench = Bench(shard_of(0, 4))
    bench.begin(FIRST)
    (run,) = bench.step(Step(SESSION, Epoch(1), 0, 2, StepKind.PREFILL, RowType.IDS, data(0, 2)),
                        ORIGIN)  # fmt: skip
    assert isinstance(run, ToWorker)
    assert isinstance(run.message, Run)
    assert run.message.payload == data(0, 2)


@pytest.mark.parametrize(
    "step",
    [
        replace(chunk(0, 10), count=0),
        replace(chunk(0, 10), count=-1),
        replace(chunk(0, 10), position=-1),
        replace(chunk(0, 10), payload=b""),
        replace(chunk(0, 10), payload=bytes(41)),
        replace(chunk(0, 10), row_type=RowType.IDS, payload=bytes(80)),
        replace(chunk(0, 10), count=STEP_ROWS_MAX + 1, payload=bytes(4 * STEP_ROWS_MAX + 4)),
    ],
)
def test_what_is_not_rows_closes_the_link(step: Step) -> None:
    bench = Bench()
    bench.begin(MIDDLE)
    with pytest.raises(RemoteProtocolError):
        bench.step(step)
    assert bench.effects() == []


MISFITS = [
    decode_step(LIMIT - 1, 2),
    replace(chunk(0, 10), row_type=RowType.IDS),
    replace(chunk(10, 11), kind=StepKind.PREFILL),
    replace(decode_step(10), payload=bytes(4)),
    decode_step(20, DECODE_BUNDLE + 1),
]


@pytest.mark.parametrize("step", MISFITS)
def test_a_step_that_does_not_fit_costs_its_session_only(step: Step) -> None:
    """The feeder sent what the origin made it send: its link stays."""
    bench = Bench()
    bench.begin(MIDDLE)
    (told, ended) = bench.step(step)
    assert ended == END
    assert isinstance(told, Send)
    assert isinstance(told.message, HopFailed)
    assert (told.peer, told.message.node) == (ORIGIN, BEFORE)
    assert bench.spoken_for == 0


def test_an_origin_answers_for_its_own_steps() -> None:
    bench = Bench(shard_of(0, 4))
    bench.begin(FIRST)
    with pytest.raises(RemoteProtocolError, match="do"):
        bench.step(chunk(0, 10), ORIGIN)


def test_results_that_fit_no_step_are_not_begun() -> None:
    wide = replace(shard_of(4, 8), row_bytes=PAYLOAD_LIMIT // 8)
    bench = Bench(wide)
    bench.begin(MIDDLE)
    assert len(bench.step(chunk(0, 8))) == 1
    assert bench.step(chunk(8, 9))[-1] == END


@pytest.mark.parametrize("resumed", [True, False])
def test_steps_far_beyond_the_credits_are_not_kept(resumed: bool) -> None:
    bench = Bench()
    bench.open(MIDDLE)
    if resumed:
        bench.resume(0, 0)
    for position in range(unanswered_max(CREDITS)):
        bench.step(chunk(position, 1))
        assert bench.relay.session_count() == 1
    bench.step(chunk(10, 1))
    assert bench.relay.session_count() == 0


def test_what_an_earlier_epoch_left_in_the_worker_is_not_counted() -> None:
    bench = Bench()
    bench.begin(MIDDLE)
    for position in range(unanswered_max(CREDITS)):
        bench.step(chunk(position, 1))
    bench.open(under(MIDDLE, 2))
    held = unanswered_max(CREDITS)
    bench.resume(held, 0, epoch=2)
    for position in range(held):
        assert bench.step(chunk(held + position, 1, epoch=2))
    assert bench.relay.session_count() == 1


# ---------------------------------------------------------------- rows out


def test_credits_bound_what_is_sent_on() -> None:
    bench = Bench()
    bench.begin(MIDDLE)
    for position in (0, 5, 10):
        bench.step(chunk(position, 5))
        bench.ran(rows_ran(position, 5, StepKind.PREFILL))
    assert bench.credit(5, peer=OTHER) == []
    assert bench.credit(5, epoch=9) == []
    assert bench.credit(5) == [Send(AFTER, chunk(10, 5))]


def test_room_on_a_link_serves_every_session_that_uses_it() -> None:
    config = replace(CONFIG, link_inflight_bytes_max=5 * ROW)
    bench = Bench(config=config)
    bench.begin(MIDDLE)
    bench.step(chunk(0, 5))
    assert Send(AFTER, chunk(0, 5)) in bench.ran(rows_ran(0, 5, StepKind.PREFILL))
    bench.step(chunk(5, 5))
    assert bench.ran(rows_ran(5, 5, StepKind.PREFILL)) == [credit(10)]
    assert bench.credit(5) == [Send(AFTER, chunk(5, 5))]


def test_a_head_sends_tokens_from_where_it_was_told() -> None:
    bench = Bench(shard_of(8, 12))
    bench.begin(LAST, send_from=21)
    bench.step(chunk(0, 20))
    assert bench.ran(rows_ran(0, 20, StepKind.PREFILL, head=True)) == [credit(20)]
    assert bench.step(decode_step(20, 2)) == [rows_run(20, 2, StepKind.DECODE, 21)]
    assert bench.ran(rows_ran(20, 2, StepKind.DECODE, head=True)) == [
        Send(ORIGIN, Token(SESSION, Epoch(1), SampledToken(22, 122))), credit(22),
    ]  # fmt: skip


def test_results_while_reopened_are_kept_for_the_resume() -> None:
    bench = Bench()
    bench.begin(MIDDLE)
    bench.step(chunk(0, 10))
    assert bench.open(under(MIDDLE, 2)) == [opened(2, 10, 0)]
    assert bench.ran(rows_ran(0, 10, StepKind.PREFILL)) == []
    assert bench.resume(10, 0, epoch=2) == [Send(AFTER, chunk(0, 10, epoch=2))]


def test_results_of_an_older_beginning_are_ignored() -> None:
    bench = Bench()
    bench.begin(MIDDLE)
    bench.step(chunk(0, 10))
    bench.open(under(MIDDLE, 2))
    bench.resume(0, 0, epoch=2)
    assert bench.ran(rows_ran(0, 10, StepKind.PREFILL)) == []
    bench.relay.run_failed(RunFailed(WORKER_ID, 1, FailureCode.STEP_FAILED, "late"))
    assert bench.effects() == []
    assert bench.relay.session_count() == 1


def test_rows_of_an_opened_session_are_not_evicted() -> None:
    """Its origin was told what can be sent again, and counts on it."""
    bench = Bench(config=replace(CONFIG, outbox_bytes_max=20 * ROW))
    bench.hold(MIDDLE, 20)
    second = replace(MIDDLE, session=SessionId("cd" * 8))
    assert bench.open(under(MIDDLE, 2)) == [opened(2, 20, 0)]
    bench.now += 1
    bench.open(second)
    bench.relay.resume(ORIGIN, Resume(second.session, Epoch(1), 0, 0))
    for position in (0, 10):
        bench.step(replace(chunk(position, 10), session=second.session))
        result = rows_ran(position, 10, StepKind.PREFILL)
        bench.ran(replace(result, session=SessionId(f"{2:016x}")))
    outboxes = {view.session: view.outbox_bytes for view in bench.relay.views()}
    assert outboxes == {SESSION: 20 * ROW, second.session: 0}
    assert bench.resume(20, 0, epoch=2) == [
        Send(AFTER, chunk(0, 10, epoch=2)), Send(AFTER, chunk(10, 10, epoch=2)),
    ]  # fmt: skip


# ---------------------------------------------------------------- everything at once


def test_the_largest_result_of_a_step_fits_a_message() -> None:
    top = tuple(TokenLogprob((1 << 31) - 1, -1.5) for _ in range(LOGPROBS_MAX))
    tokens = tuple(SampledToken(1 << 24, (1 << 31) - 1, -1.5, top) for _ in range(DECODE_BUNDLE))
    result = Ran(WORKER_ID, 1, 1 << 24, DECODE_BUNDLE, StepKind.DECODE, RowType.FLOAT32, 0.1,
                 tokens)  # fmt: skip
    assert decode(b"".join(encode(result)), WORKER_MESSAGES, None) == result


class Play:
    """An origin, a feeder, a worker and a next hop that all do what chance tells them."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.bench = Bench(config=replace(CONFIG, outbox_bytes_max=self.rng.choice([40, 10_000])))
        self.epoch = 0
        self.held = 0
        self.outbox_start = 0
        self.lost = 0
        self.gaps = 0
        self.begun: dict[int, int] = {}
        """Rows given to the worker, per generation."""
        self.sent: dict[int, int] = {}
        """Where the rows sent on end, per epoch."""
        self.waiting: list[Run] = []
        self.unacked: list[int] = []

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case ToWorker(Begin() as begin):
                    self.begun[begin.generation] = 0
                    self.waiting.clear()
                case ToWorker(Run() as run):
                    assert run.position == self.begun[run.generation]
                    assert run.payload == data(run.position, run.count)
                    self.begun[run.generation] += run.count
                    self.waiting.append(run)
                case Send(_, Opened() as answer):
                    self.held, self.outbox_start = answer.kv_length, answer.outbox_start
                case Send(_, Step() as step):
                    assert step.position == self.sent[step.epoch]
                    assert step.payload == data(step.position, step.count)
                    self.sent[step.epoch] += step.count
                case Send(_, Gap()):
                    self.gaps += 1
                case Send(_, Credit() as message):
                    self.unacked = [stop for stop in self.unacked if stop > message.kv_length]
                case _:
                    pass
        self.lost += self.bench.relay.session_count() == 0

    def reroute(self, *, honest: bool = False) -> None:
        """As `recovery.starts` has it; or, now and then, at a position that cannot be sent."""
        self.epoch += 1
        self.unacked.clear()
        self.take(self.bench.open(under(MIDDLE, self.epoch)))
        send_from = self.rng.randrange(STOP)
        self.sent[self.epoch] = send_from
        can_deliver = send_from >= min(self.outbox_start, self.held)
        if not can_deliver and not honest and self.rng.random() < 0.3:
            gaps = self.gaps
            self.take(self.bench.resume(self.held, send_from, self.epoch))
            assert self.gaps == gaps + 1
        if not can_deliver:
            self.held = 0
        self.take(self.bench.resume(self.held, send_from, self.epoch))

    def feed(self) -> None:
        """From a place at or before the end of what was given, as resent rows are."""
        held = self.begun[max(self.begun)]
        position = max(0, held - self.rng.choice([0, 0, 0, 1, 7]))
        is_prompt = position < PROMPT
        count = min((PROMPT if is_prompt else STOP) - position, self.rng.randint(1, 8))
        needs_credit = is_prompt or count > 1
        if count < 1 or (len(self.unacked) >= CREDITS if needs_credit else self.waiting):
            return
        if needs_credit:
            self.unacked.append(position + count)
        make = chunk if is_prompt else decode_step
        self.take(self.bench.step(make(position, count, self.epoch)))

    def work(self) -> None:
        if self.waiting:
            run = self.waiting.pop(0)
            result = rows_ran(run.position, run.count, run.kind, generation=run.generation)
            self.take(self.bench.ran(result))

    def credit(self) -> None:
        self.take(self.bench.credit(self.sent[self.epoch], self.epoch))


STOP = 40


@pytest.mark.parametrize("seed", range(100))
def test_whatever_happens_rows_run_once_in_order_and_all_arrive(seed: int) -> None:
    play = Play(seed)
    play.reroute()
    for _ in range(60):
        act = play.rng.choice([play.feed, play.work, play.work, play.credit, play.reroute])
        act()
    play.reroute(honest=True)
    for _ in range(200):
        play.feed()
        play.work()
        play.credit()
    assert play.sent[play.epoch] == STOP
    assert not play.lost
