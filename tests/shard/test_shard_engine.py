"""The engine, by the messages that go in and come out."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from engine_chain import (
    GREEDY,
    MODEL,
    Chain,
    begin,
    drain,
    engine,
    ids_run,
    load,
    on_blocks,
    onward,
    parts,
    run_through,
    whole_part,
)
from tiny_models import LAYERS, VOCAB, save_tiny

from swarm.messages import (
    WORKER_MESSAGES,
    Begin,
    End,
    FailureCode,
    Ran,
    RowType,
    Run,
    RunFailed,
    SpeedReport,
    StepKind,
    decode,
    encode,
)
from swarm.shard.cut import Part
from swarm.shard.engine import DETAIL_CHARACTERS, Engine
from swarm.shard.host_io import give_memory_back
from swarm.shard.stage import Stage
from swarm.terms import LayerRange, ModelId, Sampling, SessionId
from swarm.worker_messages import RUN_ROWS_MAX, SAMPLED_ROWS_MAX, TOP_LOGPROBS_MAX

PROMPT = [5, 17, 40, 8, 61, 33, 9, 72, 4, 28, 90, 55]
DECODED = [31, 7, 88, 50, 12, 64, 3]
WHOLE = whole_part(LAYERS)
WARM = Sampling(temperature=0.8, seed=11)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    save_tiny(folder, "llama")
    return folder


@pytest.fixture(scope="module", params=["plain", "paged"])
def stage(llama: Path, request: pytest.FixtureRequest) -> Stage:
    """With a cache for each session, and over KV blocks: what an engine promises is the same."""
    one = load(llama, WHOLE)
    return on_blocks(one, 300) if request.param == "paged" else one


def failure(one: Engine, run: Run) -> RunFailed:
    answers = one.handle(run) + drain(one)
    assert len(answers) == 1, answers
    assert isinstance(answers[0], RunFailed), answers
    return answers[0]


# ---------------------------------------------------------------- results


def test_a_chunk_in_the_middle_of_a_prompt_gives_no_token(stage: Stage) -> None:
    one = engine(stage)
    one.handle(begin("s", WHOLE))
    first = run_through(one, ids_run("s", 0, PROMPT[:8], sample_from=11))
    assert (first.position, first.count, first.tokens, first.payload) == (0, 8, (), b"")
    second = run_through(one, ids_run("s", 8, PROMPT[8:], sample_from=11))
    assert [token.position for token in second.tokens] == [12]


def test_every_row_from_sample_from_on_is_sampled(stage: Stage) -> None:
    one = engine(stage)
    one.handle(begin("s", WHOLE))
    ran = run_through(one, ids_run("s", 0, PROMPT, sample_from=9))
    assert [token.position for token in ran.tokens] == [10, 11, 12]


def test_rows_of_a_middle_hop_are_those_of_the_stage(llama: Path) -> None:
    first, second = (load(llama, part) for part in parts(LAYERS, [2]))
    one = engine(first)
    one.handle(begin("s", first.part))
    ran = run_through(one, ids_run("s", 0, PROMPT))
    rows = first.forward(torch.tensor([PROMPT]), 0, first.new_cache(first.part, 20))
    assert ran.row_type is RowType.FLOAT32
    assert bytes(ran.payload) == rows.numpy().tobytes()
    two = engine(second)
    two.handle(begin("s", second.part))
    assert len(run_through(two, onward(ran, 11)).tokens) == 1


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3_next", "lfm2", "qwen3_moe"])
@pytest.mark.parametrize("cuts", [[], [2]])
def test_rebuilding_gives_the_bits_of_the_first_time(
    family: str, cuts: list[int], tmp_path: Path
) -> None:
    """The prompt in its chunks, then all generated positions in one DECODE run."""
    save_tiny(tmp_path, family)
    head = [ids_run("s", 0, PROMPT[:8]), ids_run("s", 8, PROMPT[8:], sample_from=11)]
    singles = [
        ids_run("s", 12 + i, [token], kind=StepKind.DECODE, sample_from=12)
        for i, token in enumerate(DECODED)
    ]
    together = [ids_run("s", 12, DECODED, kind=StepKind.DECODE, sample_from=12)]
    feeds = [head + singles, head + together]
    for part in parts(LAYERS, cuts):
        one = load(tmp_path, part)
        rans = [_all_runs(one, runs) for runs in feeds]
        first, again = (
            (
                b"".join(bytes(ran.payload) for ran in each),
                [token for ran in each for token in ran.tokens],
            )
            for each in rans
        )
        assert first == again
        feeds = [[onward(ran, 11) for ran in each] for each in rans]


def _all_runs(stage: Stage, runs: list[Run]) -> list[Ran]:
    one = engine(stage)
    one.handle(begin("s", stage.part, sampling=WARM))
    return [run_through(one, run) for run in runs]


def test_a_long_rebuild_answers_once_and_lets_others_through(stage: Stage) -> None:
    one = engine(stage)
    one.handle(begin("long", WHOLE))
    one.handle(begin("other", WHOLE))
    run_through(one, ids_run("long", 0, PROMPT))
    run_through(one, ids_run("other", 0, PROMPT))
    rows = [3 + i % 90 for i in range(100)]
    one.handle(ids_run("long", 12, rows, kind=StepKind.DECODE, sample_from=111))
    one.step()
    one.handle(ids_run("other", 12, [5], kind=StepKind.DECODE, sample_from=12))
    answers = drain(one)
    assert [message.session for message in answers if isinstance(message, Ran)] == ["other", "long"]
    last = answers[-1]
    assert isinstance(last, Ran)
    assert (last.position, last.count, [t.position for t in last.tokens]) == (12, 100, [112])


def test_two_interleaved_sessions_equal_two_serial_ones(llama: Path) -> None:
    other = [70, 2, 19, 44, 81]
    serial = Chain.of(llama, [2])
    expected = [
        serial.generate(PROMPT, 12, chunk=8, sampling=WARM),
        serial.generate(other, 12, chunk=4, sampling=GREEDY),
    ]
    chain = Chain.of(llama, [2])
    chain.begin("a", sampling=WARM)
    chain.begin("b", sampling=GREEDY)
    pairs = zip(chain.tokens("a", PROMPT, 12, 8), chain.tokens("b", other, 12, 4), strict=True)
    ids = [[a.token_id, b.token_id] for a, b in pairs]
    assert [list(column) for column in zip(*ids, strict=True)] == expected


def test_seeded_sampling_repeats_itself_over_any_cut(llama: Path) -> None:
    whole = Chain.of(llama, []).generate(PROMPT, 16, chunk=8, sampling=WARM)
    assert Chain.of(llama, [1, 3]).generate(PROMPT, 16, chunk=8, sampling=WARM) == whole
    other_seed = Sampling(temperature=0.8, seed=12)
    assert Chain.of(llama, []).generate(PROMPT, 16, chunk=8, sampling=other_seed) != whole


def test_a_session_may_use_part_of_a_shard(llama: Path) -> None:
    whole = Chain.of(llama, []).generate(PROMPT, 8, chunk=8)
    wide = [load(llama, Part(LayerRange(0, 3), True, False)), load(llama, WHOLE)]
    for border in (1, 2, 3):
        chain = Chain(wide, parts(LAYERS, [border]))
        assert chain.generate(PROMPT, 8, chunk=8) == whole


# ---------------------------------------------------------------- what cannot be right


def test_rows_that_do_not_follow_end_the_session_and_never_rewind(stage: Stage) -> None:
    for position in (0, 7, 9):
        one = engine(stage)
        one.handle(begin("s", WHOLE))
        run_through(one, ids_run("s", 0, PROMPT[:8]))
        failed = failure(one, ids_run("s", position, PROMPT[8:]))
        assert failed.code is FailureCode.STEP_FAILED
        assert f"rows start at {position}, the KV holds 8 positions" in failed.detail
        assert one.kv_used_bytes == 0


def test_a_failed_session_stays_silent_until_it_begins_anew(stage: Stage) -> None:
    one = engine(stage)
    one.handle(begin("s", WHOLE))
    failure(one, ids_run("s", 5, PROMPT))
    assert one.handle(ids_run("s", 0, PROMPT)) + drain(one) == []
    one.handle(begin("s", WHOLE, generation=2))
    assert run_through(one, ids_run("s", 0, PROMPT, generation=2)).generation == 2


def test_results_of_an_older_beginning_never_come(stage: Stage) -> None:
    one = engine(stage)
    one.handle(begin("s", WHOLE))
    one.handle(ids_run("s", 0, PROMPT))
    one.handle(begin("s", WHOLE, generation=2))
    assert drain(one) == []
    assert one.handle(ids_run("s", 12, [5], generation=1)) + drain(one) == []
    assert run_through(one, ids_run("s", 0, PROMPT, generation=2)).position == 0


def test_a_run_without_a_beginning_is_refused(stage: Stage) -> None:
    one = engine(stage)
    assert "never began" in failure(one, ids_run("s", 0, PROMPT)).detail
    one.handle(begin("s", WHOLE))
    assert "generation 2" in failure(one, ids_run("s", 0, PROMPT, generation=2)).detail


def test_a_session_of_another_model_is_refused(stage: Stage) -> None:
    other = Begin(SessionId("s"), 1, ModelId("f" * 32), WHOLE.layers, True, True, 1, 50, GREEDY)
    (failed,) = engine(stage).handle(other)
    assert isinstance(failed, RunFailed)
    assert "another model" in failed.detail


def test_layers_not_held_are_refused(llama: Path) -> None:
    one = engine(load(llama, Part(LayerRange(1, 3), False, False)))
    (failed,) = one.handle(begin("s", WHOLE))
    assert isinstance(failed, RunFailed)
    assert "not (all) held here" in failed.detail


def test_payloads_that_do_not_fit_are_refused(llama: Path) -> None:
    middle = load(llama, Part(LayerRange(1, 3), False, False))
    cases = [
        (RowType.IDS, 1, b"\0" * 4, "IDS rows where the session does not take them"),
        (RowType.FLOAT32, 1, b"\0" * 127, "127 bytes for 1 rows of 128 bytes"),
        (RowType.BFLOAT16, 2, b"\0" * 127, "127 bytes for 2 rows of 64 bytes"),
        (RowType.FLOAT32, 0, b"", "a step of 0 rows"),
    ]
    for row_type, count, payload, detail in cases:
        one = engine(middle)
        one.handle(begin("s", middle.part))
        run = Run(SessionId("s"), 1, 0, count, StepKind.PREFILL, row_type, 0, payload=payload)
        assert failure(one, run).detail == detail


def test_ids_outside_the_vocabulary_are_refused(stage: Stage) -> None:
    for token in (-1, VOCAB):
        one = engine(stage)
        one.handle(begin("s", WHOLE))
        assert "outside the vocabulary" in failure(one, ids_run("s", 0, [5, token])).detail


def test_positions_beyond_the_reservation_are_refused(stage: Stage) -> None:
    one = engine(stage)
    one.handle(begin("s", WHOLE, limit=11))
    assert "above the 11 reserved" in failure(one, ids_run("s", 0, PROMPT)).detail


def test_numbers_that_are_not_finite_end_the_session(llama: Path) -> None:
    middle = load(llama, Part(LayerRange(1, 3), False, False))
    one = engine(middle)
    one.handle(begin("s", middle.part))
    rows = torch.full((1, 32), float("nan")).numpy().tobytes()
    run = Run(SessionId("s"), 1, 0, 1, StepKind.DECODE, RowType.FLOAT32, 0, payload=rows)
    failed = failure(one, run)
    assert failed.code is FailureCode.STEP_FAILED
    assert "not a finite number" in failed.detail


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (torch.OutOfMemoryError("out of memory"), FailureCode.OUT_OF_MEMORY),
        (MemoryError(), FailureCode.OUT_OF_MEMORY),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
         FailureCode.OUT_OF_MEMORY),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), FailureCode.STEP_FAILED),
    ],
)  # fmt: skip
def test_an_error_in_a_kernel_costs_one_session(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, error: Exception, code: FailureCode
) -> None:
    one = engine(stage)
    for name in ("bad", "good"):
        one.handle(begin(name, WHOLE))
    with monkeypatch.context() as patch:
        patch.setattr(stage._core, "forward", _raise(error))
        assert failure(one, ids_run("bad", 0, PROMPT)).code is code
    assert run_through(one, ids_run("good", 0, PROMPT)).count == 12
    assert one.session_count == 2
    one.handle(End(SessionId("bad")))
    assert one.session_count == 1


def test_an_error_of_the_accelerator_is_left_to_end_the_process(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = engine(stage)
    one.handle(begin("s", WHOLE))
    one.handle(ids_run("s", 0, PROMPT))
    monkeypatch.setattr(stage._core, "forward", _raise(torch.AcceleratorError("device lost")))
    with pytest.raises(torch.AcceleratorError):
        one.step()


def _raise(error: Exception):  # type: ignore[no-untyped-def]
    def forward(*_: object, **__: object) -> None:
        raise error

    return forward


def test_too_many_waiting_steps_fail_their_session(stage: Stage) -> None:
    one = engine(stage, queue_max=2)
    one.handle(begin("s", WHOLE))
    one.handle(begin("t", WHOLE))
    one.handle(ids_run("s", 0, PROMPT))
    one.handle(ids_run("t", 0, PROMPT))
    one.handle(ids_run("t", 12, PROMPT))
    (failed,) = one.handle(ids_run("t", 24, PROMPT))
    assert isinstance(failed, RunFailed) and failed.session == "t"
    assert "2 steps of the session wait already" in failed.detail
    one.handle(ids_run("s", 12, PROMPT))
    assert [message.session for message in drain(one) if isinstance(message, Ran)] == ["s", "s"]


@pytest.mark.parametrize(
    ("sampling", "says"),
    [
        (Sampling(logprobs=1 << 40), "alternatives"),
        (Sampling(logprobs=TOP_LOGPROBS_MAX + 1), "alternatives"),
        (Sampling(logprobs=-1), "alternatives"),
        (Sampling(temperature=-1.0), "temperature"),
    ],
)
def test_sampling_that_no_gateway_asks_for_is_refused(
    stage: Stage, sampling: Sampling, says: str
) -> None:
    (failed,) = engine(stage).handle(begin("s", WHOLE, sampling=sampling))
    assert isinstance(failed, RunFailed) and says in failed.detail


def test_a_session_without_positions_is_refused(stage: Stage) -> None:
    (failed,) = engine(stage).handle(begin("s", WHOLE, limit=-3))
    assert isinstance(failed, RunFailed) and "-3 positions" in failed.detail


def test_steps_too_large_for_an_answer_cost_their_session_only(stage: Stage) -> None:
    one = engine(stage)
    for name in ("bad", "good"):
        one.handle(begin(name, WHOLE, limit=5000))
    many = [5] * (SAMPLED_ROWS_MAX + 1)
    failed = failure(one, ids_run("bad", 0, many, sample_from=0))
    assert f"{SAMPLED_ROWS_MAX + 1} rows of one step to be sampled" in failed.detail
    one.handle(begin("bad", WHOLE, limit=5000, generation=2))
    longest = ids_run("bad", 0, [5] * (RUN_ROWS_MAX + 1), generation=2)
    assert f"a step of {RUN_ROWS_MAX + 1} rows" in failure(one, longest).detail
    assert run_through(one, ids_run("good", 0, many)).count == len(many)


def test_rows_that_would_not_fit_into_a_message_are_not_computed(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(llama, parts(LAYERS, [2])[0])
    monkeypatch.setattr("swarm.shard.engine.PAYLOAD_LIMIT", 11 * first.row_bytes)
    one = engine(first)
    one.handle(begin("s", first.part))
    assert "12 rows of 128 bytes do not fit" in failure(one, ids_run("s", 0, PROMPT)).detail


def test_the_largest_answer_a_head_gives_is_a_message_that_decodes(stage: Stage) -> None:
    one = engine(stage)
    one.handle(begin("s", WHOLE, sampling=Sampling(logprobs=TOP_LOGPROBS_MAX)))
    ran = run_through(one, ids_run("s", 0, [5] * SAMPLED_ROWS_MAX, sample_from=0))
    assert len(ran.tokens) == SAMPLED_ROWS_MAX
    wide = replace(
        ran,
        tokens=tuple(
            replace(t, token_id=1 << 30, top=tuple(replace(a, token_id=1 << 30) for a in t.top))
            for t in ran.tokens
        ),
    )
    assert decode(b"".join(encode(wide)), WORKER_MESSAGES, None) == wide


def test_an_error_of_many_words_is_cut(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    one = engine(stage)
    one.handle(begin("s", WHOLE))
    monkeypatch.setattr(stage._core, "forward", _raise(RuntimeError("x" * 10_000)))
    assert len(failure(one, ids_run("s", 0, PROMPT)).detail) == DETAIL_CHARACTERS


# ---------------------------------------------------------------- memory and figures


def test_the_end_of_a_session_gives_its_memory_back(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama", head_dim=64, max_position_embeddings=8192)
    one = engine(load(tmp_path, WHOLE))
    process = psutil.Process()

    def resident() -> int:
        gc.collect()
        give_memory_back(torch.device("cpu"))
        return int(process.memory_info().rss)

    def fill(name: str) -> None:
        """4 layers x 2 x 2 heads x 64 x 4 bytes = 4 KiB a position, 12 MiB in all."""
        one.handle(begin(name, WHOLE, limit=3072))
        for start in range(0, 3072, 1024):
            run_through(one, ids_run(name, start, [5 + start % 90] * 1024))

    fill("warm")
    one.handle(End(SessionId("warm")))
    before = resident()
    fill("s")
    assert resident() - before > 9 << 20
    assert one.kv_used_bytes == 3072 * LAYERS * 128
    one.handle(End(SessionId("s")))
    assert one.kv_used_bytes == one.session_count == 0
    assert resident() - before < 3 << 20


def test_a_report_comes_first_and_then_only_with_news(stage: Stage) -> None:
    one = engine(stage)
    (first,) = one.report()
    assert isinstance(first, SpeedReport)
    assert first.speed.model_id == MODEL
    assert one.report() == []
    one.handle(begin("s", WHOLE))
    reports: list[SpeedReport] = []
    for index in range(200):
        kind = StepKind.DECODE if index else StepKind.PREFILL
        run_through(one, ids_run("s", index, [5], kind=kind))
        reports += [message for message in one.report() if isinstance(message, SpeedReport)]
    assert reports
    assert all(report.session_count == 1 for report in reports)
    assert reports[-1].speed.decode_s_per_layer < first.speed.decode_s_per_layer


def test_waiting_work_shows_as_queue(stage: Stage) -> None:
    one = engine(stage)
    one.report()
    for name in "abcd":
        one.handle(begin(name, WHOLE))
        one.handle(ids_run(name, 0, PROMPT, sample_from=11))
    (report,) = one.report()
    assert isinstance(report, SpeedReport)
    per_run = len(PROMPT) * LAYERS * 1e-4 + 1e-3
    assert report.speed.queue_s == pytest.approx(4 * per_run)


def test_another_shard_in_its_place_fails_what_still_lives(stage: Stage) -> None:
    one = engine(stage)
    one.handle(begin("a", WHOLE))
    one.handle(begin("b", WHOLE))
    failure(one, ids_run("b", 3, PROMPT))
    assert [m.session for m in one.close("replaced") if isinstance(m, RunFailed)] == ["a"]
    assert one.session_count == 0
