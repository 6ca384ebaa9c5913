"""Over KV blocks: what transformers gives, and rows whose bits do not depend on their company."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_chain import (
    CONFIG,
    BlockEngine,
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
from tiny_models import LAYERS, VOCAB, reference_ids, save_tiny

from swarm.kernels.attention import KvPool
from swarm.kernels.float_linear import has_float_product
from swarm.kernels.tiles import Company
from swarm.messages import End, Message, Ran, RowType, Run, RunFailed, StepKind
from swarm.shard import paged_check
from swarm.shard.batch import PIECE_TOKENS
from swarm.shard.cut import Part
from swarm.shard.engine import GATHER_GAP, MIXED_MOST, Engine
from swarm.shard.paged_check import plain_reason
from swarm.shard.stage import Stage
from swarm.terms import LayerRange, Sampling, SessionId
from swarm.worker_messages import KV_BLOCK_TOKENS

PAGED = (
    "llama", "qwen3", "qwen3_moe", "gemma3_text", "gemma4_text", "gpt_oss", "deepseek_v3",
    "mixtral", "gemma2", "phi3", "granite", "cohere2",
)  # fmt: skip
PLAIN = {
    "qwen3_next": "cache of their own",
    "qwen3_5_text": "cache of their own",
    "lfm2": "cache of their own",
    "llama4_text": "neither all that came before nor a window",
    "deepseek_v32": "cache of their own",
}
BY_LENGTH = {
    "longrope": {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "factor": 4.0},
    "dynamic": {"factor": 4.0},
}
FIRST = parts(LAYERS, [2])[0]
"""Layers without a head: rows come out, whose bits can be compared."""
DTYPES = [torch.float32, torch.bfloat16]
LONG = 3 * PIECE_TOKENS + 5


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(length + 1000 * seed).choices(range(3, VOCAB), k=length)


def paged_chain(path: Path, cuts: Sequence[int], dtype: torch.dtype = torch.float32) -> Chain:
    return Chain([on_blocks(load(path, part, dtype)) for part in parts(LAYERS, cuts)])


@pytest.mark.parametrize("family", PAGED)
@pytest.mark.parametrize("cuts", [[], [1, 3]])
def test_blocks_give_what_the_whole_model_generates(
    family: str, cuts: list[int], tmp_path: Path
) -> None:
    """Longer than any window, over borders of pieces and blocks."""
    model = save_tiny(tmp_path, family)
    chain = paged_chain(tmp_path, cuts)
    for length in (1, KV_BLOCK_TOKENS - 2, PIECE_TOKENS + 9):
        expected = reference_ids(model, prompt_of(length), 10)
        assert chain.generate(prompt_of(length), 10, chunk=40) == expected


@pytest.mark.parametrize("family", PLAIN)
def test_what_keeps_more_than_keys_and_values_says_why_it_does_not_fit(
    family: str, tmp_path: Path
) -> None:
    save_tiny(tmp_path, family)
    stage = load(tmp_path, whole_part(LAYERS))
    reason = plain_reason(stage, stage.dtype, exact=True)
    assert reason is not None and PLAIN[family] in reason
    assert stage.kv is None
    assert len(Chain([stage]).generate(prompt_of(9), 3, chunk=8)) == 3


@pytest.mark.parametrize("kind", BY_LENGTH)
def test_angles_that_depend_on_the_longest_of_a_batch_do_not_fit(kind: str, tmp_path: Path) -> None:
    rope = BY_LENGTH[kind] | {
        "rope_type": kind, "rope_theta": 10000.0, "original_max_position_embeddings": 64
    }  # fmt: skip
    save_tiny(tmp_path, "llama", rope_parameters=rope)
    stage = load(tmp_path, whole_part(LAYERS))
    reason = plain_reason(stage, stage.dtype, exact=True)
    assert reason is not None and f"{kind} rotary" in reason


def test_coarse_kv_is_not_taken_for_a_lost_part_of_the_past(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight bits are off by more than that here, and random rows may blow it up at will."""
    monkeypatch.setattr(paged_check, "TOLERANCE", 1e-4)
    save_tiny(tmp_path, "llama")
    stage = load(tmp_path, whole_part(LAYERS))
    assert plain_reason(stage, torch.int8, exact=True) is None
    assert stage.kv is not None and stage.kv.dtype is torch.int8


# ---------------------------------------------------------------- bits


class Bits:
    """Sessions on an engine without a head, and the bits of their rows by position."""

    def __init__(self, stage: Stage) -> None:
        self.engine = engine(stage)
        self.rows: dict[tuple[str, int], bytes] = {}

    def begin(self, name: str, prompt: int = LONG) -> None:
        part = self.engine.stage.part
        assert self.engine.handle(begin(name, part, limit=400, prompt=prompt)) == []

    def give(self, name: str, position: int, ids: Sequence[int], kind: StepKind) -> None:
        assert self.engine.handle(ids_run(name, position, ids, kind=kind)) == []

    def run(self) -> None:
        for answer in drain(self.engine):
            assert isinstance(answer, Ran), answer
            width = len(answer.payload) // answer.count
            for row in range(answer.count):
                bits = bytes(answer.payload[row * width : (row + 1) * width])
                self.rows[answer.session, answer.position + row] = bits

    def prefill(self, name: str, ids: Sequence[int], chunks: Sequence[int] = (1000,)) -> None:
        start = 0
        for chunk in (*chunks, len(ids)):
            if start < len(ids):
                self.give(name, start, ids[start : start + chunk], StepKind.PREFILL)
            start += chunk
        self.run()

    def of(self, name: str, first: int, stop: int) -> list[bytes]:
        return [self.rows[name, position] for position in range(first, stop)]


DENSE = ("llama", "gemma3_text")
"""Families without experts, all of whose products have a native form where the processor does."""


@pytest.fixture(scope="module", params=["llama", "qwen3_moe", "gemma3_text", "gpt_oss"])
def family_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(str(request.param))
    save_tiny(folder, request.param, hidden_size=64, head_dim=16)
    return folder


@pytest.fixture(params=DTYPES, ids=str)
def stage(family_path: Path, request: pytest.FixtureRequest) -> Stage:
    return on_blocks(load(family_path, FIRST, request.param), 200)


def test_a_decode_row_does_not_depend_on_the_rows_beside_it(stage: Stage) -> None:
    """Alone, then in crowds of many sizes and at many places, with others' rows of any content."""
    is_free = stage.config.model_type in DENSE and has_float_product(
        torch.empty(0, dtype=stage.dtype)
    )
    assert stage.company is (Company.ANY if is_free else Company.TILE)
    generated = prompt_of(12, seed=5)
    bits = Bits(stage)
    bits.begin("alone", 70)
    bits.prefill("alone", prompt_of(70))
    for index, token in enumerate(generated):
        bits.give("alone", 70 + index, [token], StepKind.DECODE)
        bits.run()
    for seed, crowd in enumerate((1, 5, 15, 16, 20, 40)):
        names = [f"{crowd}-{index}" for index in range(crowd)]
        mine = f"mine-{crowd}"
        for index, name in enumerate([*names, mine]):
            bits.begin(name, 70 if name == mine else 3)
            bits.prefill(name, prompt_of(70) if name == mine else prompt_of(3, seed=index))
        for step, token in enumerate(generated):
            order = [*names, mine]
            random.Random(seed * 100 + step).shuffle(order)
            for name in order:
                position = (70 if name == mine else 3) + step
                own = token if name == mine else random.Random(step + seed).randrange(3, VOCAB)
                bits.give(name, position, [own], StepKind.DECODE)
            bits.run()
        assert bits.of(mine, 0, 82) == bits.of("alone", 0, 82), crowd
        for name in [*names, mine]:
            bits.engine.handle(End(SessionId(name)))


def test_rebuilt_rows_have_the_bits_of_the_first_time(stage: Stage) -> None:
    """Generated positions come as bundles, beside each other, and beside another session's."""
    generated = prompt_of(50, seed=5)
    bits = Bits(stage)
    for name in ("first", "other"):
        bits.begin(name, 70)
        bits.prefill(name, prompt_of(70))
    for index, token in enumerate(generated):
        bits.give("first", 70 + index, [token], StepKind.DECODE)
        bits.run()
    for bundle in (16, 50):
        again = f"again-{bundle}"
        bits.begin(again, 70)
        bits.prefill(again, prompt_of(70))
        for index in range(0, len(generated), bundle):
            run = generated[index : index + bundle]
            bits.give(again, 70 + index, run, StepKind.DECODE)
        bits.begin("other", 70)
        bits.prefill("other", prompt_of(70))
        bits.give("other", 70, [5], StepKind.DECODE)
        bits.run()
        assert bits.of(again, 0, 120) == bits.of("first", 0, 120)


@pytest.mark.parametrize("chunks", [(64, 64), (256,), (1, 1, 1), (50, 50, 50), (63, 2, 70)])
def test_prompt_rows_do_not_depend_on_the_chunks_they_came_in(
    stage: Stage, chunks: tuple[int, ...]
) -> None:
    bits = Bits(stage)
    for name, cut in (("whole", (LONG,)), ("cut", chunks)):
        bits.begin(name)
        bits.prefill(name, prompt_of(LONG), cut)
    assert bits.of("whole", 0, LONG) == bits.of("cut", 0, LONG)


def test_a_session_may_start_from_the_blocks_of_another(stage: Stage) -> None:
    bits = Bits(stage)
    bits.begin("first")
    bits.prefill("first", prompt_of(LONG))
    one = bits.engine
    assert isinstance(one, BlockEngine)
    shared = one.held[SessionId("first")][: PIECE_TOKENS // KV_BLOCK_TOKENS]
    order = begin("second", stage.part, limit=400, prompt=LONG)
    blocks = struct.pack(f"<{len(shared)}i", *shared)
    Engine.handle(one, replace(order, blocks=blocks, kv_length=PIECE_TOKENS))
    one.held[SessionId("second")] = list(shared)
    one.generations[SessionId("second")] = 1
    rest = prompt_of(LONG)[PIECE_TOKENS:]
    bits.give("second", PIECE_TOKENS, rest, StepKind.PREFILL)
    bits.run()
    assert bits.of("second", PIECE_TOKENS, LONG) == bits.of("first", PIECE_TOKENS, LONG)


def test_without_the_promise_of_exactness_rows_come_in_one_pass(
    family_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = on_blocks(load(family_path, FIRST), exact=False)
    assert stage.company is Company.NONE
    sizes: list[int] = []
    run = stage.run
    monkeypatch.setattr(
        stage, "run", lambda batch, *rest: (sizes.append(batch.shape.rows), run(batch, *rest))[1]
    )
    bits = Bits(stage)
    for index in range(20):
        bits.begin(str(index), 3)
        bits.give(str(index), 0, [5], StepKind.DECODE)
    bits.run()
    assert sizes == [20]


def test_a_step_with_rows_of_prompts_takes_twice_as_long_as_the_tokens_alone(
    tmp_path: Path,
) -> None:
    """By the figures, at most."""
    save_tiny(tmp_path, "llama")
    stage = on_blocks(load(tmp_path, FIRST))
    stage.is_row_invariant = True
    one = engine(stage)
    for name in "pd":
        one.handle(begin(name, FIRST, prompt=150))
    one.handle(ids_run("d", 0, [5], kind=StepKind.DECODE))
    one.handle(ids_run("p", 0, prompt_of(150)))
    step_s = one._tracker.predict_s(StepKind.DECODE, 1, len(FIRST.layers), 0)
    row_s = step_s / len(FIRST.layers)
    for share, most in ((100, 8 + MIXED_MOST), (16, 16), (14, 8), (1, 8)):
        one._tracker.figures = replace(one._tracker.figures, prefill_s=row_s / share)
        assert one._rows_most() == most, share
    stage.is_row_invariant = False
    assert one._rows_most() is None


def test_a_row_waits_a_moment_for_those_of_others_and_no_longer(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama")
    one = engine(on_blocks(load(tmp_path, FIRST)))
    now = one._clock = Hands()
    one._tracker.figures = replace(one._tracker.figures, decode_s=0.5)  # a step of FIRST: a second
    for name in "abc":
        one.handle(begin(name, FIRST))
        one.handle(ids_run(name, 0, [5], kind=StepKind.DECODE))
    assert one.gather_s() == 0.0, "all who decode are there"
    one.step()
    one.handle(ids_run("a", 1, [5], kind=StepKind.DECODE))
    whole = one._tracker.predict_s(StepKind.DECODE, 1, len(FIRST.layers), 0)
    gap = GATHER_GAP * whole
    assert one.gather_s() == pytest.approx(gap)
    now.at += gap / 2
    assert one.gather_s() == pytest.approx(gap / 2)
    one.handle(ids_run("b", 1, [5], kind=StepKind.DECODE))
    assert one.gather_s() == pytest.approx(gap), "one came, so another may"
    now.at += gap
    assert one.gather_s() == 0.0
    assert len(one.step()) == 2
    one.handle(ids_run("a", 2, [5], kind=StepKind.DECODE))
    one.handle(ids_run("b", 2, [5], kind=StepKind.DECODE))
    assert one.gather_s() == 0.0, "the third was waited for in vain"


class Hands:
    """A clock that is set."""

    at = 5.0

    def __call__(self) -> float:
        return self.at


# ---------------------------------------------------------------- tokens


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0), Sampling(temperature=0.9, seed=4)])
def test_many_sessions_at_once_generate_what_each_generates_alone(
    sampling: Sampling, tmp_path: Path
) -> None:
    save_tiny(tmp_path, "llama")
    stage = on_blocks(load(tmp_path, whole_part(LAYERS)))
    prompts = {str(index): prompt_of(3 + 11 * index, seed=index) for index in range(9)}
    alone = {
        name: Chain([stage]).generate(prompt, 12, chunk=64, sampling=sampling)
        for name, prompt in prompts.items()
    }
    one = engine(stage)
    together: dict[str, list[int]] = {name: [] for name in prompts}
    for name, prompt in prompts.items():
        one.handle(begin(name, stage.part, sampling=sampling, prompt=len(prompt)))
        one.handle(ids_run(name, 0, prompt, sample_from=len(prompt) - 1))
    while one.has_work:
        for answer in one.step():
            assert isinstance(answer, Ran), answer
            (token,) = answer.tokens
            together[answer.session].append(token.token_id)
            if len(together[answer.session]) < 12:
                position = token.position
                run = ids_run(
                    answer.session, position, [token.token_id], kind=StepKind.DECODE,
                    sample_from=position,
                )  # fmt: skip
                one.handle(run)
    assert together == alone


def test_sessions_that_use_other_layers_run_beside_each_other(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama")
    stage = on_blocks(load(tmp_path, Part(LayerRange(0, 3), True, False)))
    uses = [Part(LayerRange(0, stop), True, False) for stop in (1, 2, 3)]
    alone = [bytes(_one_row(engine(stage), [part])[0].payload) for part in uses]
    together = [bytes(ran.payload) for ran in _one_row(engine(stage), uses)]
    assert len(set(alone)) == 3
    assert together == alone


def _one_row(one: Engine, uses: Sequence[Part]) -> list[Ran]:
    for index, part in enumerate(uses):
        one.handle(begin(str(index), part))
        one.handle(ids_run(str(index), 0, [5], kind=StepKind.DECODE))
    answers = one.step()
    assert not one.has_work
    return sorted(
        (answer for answer in answers if isinstance(answer, Ran)), key=lambda ran: ran.session
    )


# ---------------------------------------------------------------- what cannot be right


@pytest.fixture(scope="module")
def middle(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    folder = tmp_path_factory.mktemp("middle")
    save_tiny(folder, "llama")
    return on_blocks(load(folder, Part(LayerRange(1, 3), False, False)), 20)


def rows_run(name: str, position: int, rows: torch.Tensor, blocks: bytes = b"") -> Run:
    payload = rows.numpy().tobytes()
    kind, row_type = StepKind.DECODE, RowType.FLOAT32
    return Run(SessionId(name), 1, position, len(rows), kind, row_type, 0, blocks, payload=payload)


def plain_engine(stage: Stage) -> Engine:
    """One that gets its blocks from the test."""
    one = engine(stage)
    one.__class__ = Engine
    return one


def block_bytes(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


@pytest.mark.parametrize(
    ("blocks", "rows", "says"),
    [
        (b"", 1, "end at 0, not at 1"),
        (block_bytes(3), 33, "end at 32, not at 33"),
        (block_bytes(20), 1, "outside the pool of 20"),
        (block_bytes(-1), 1, "outside the pool of 20"),
        (b"\0\0\0", 1, "3 bytes are no list of KV blocks"),
    ],
)
def test_rows_without_sound_blocks_end_their_session_with_a_sentence(
    middle: Stage, blocks: bytes, rows: int, says: str
) -> None:
    one = plain_engine(middle)
    one.handle(begin("s", middle.part))
    (failed,) = one.handle(rows_run("s", 0, torch.ones(rows, 32), blocks)) + drain(one)
    assert isinstance(failed, RunFailed) and says in failed.detail


def test_a_prefix_must_be_covered_by_blocks(middle: Stage) -> None:
    one = plain_engine(middle)
    for length, blocks in ((33, block_bytes(1)), (1, b""), (-1, block_bytes(1))):
        order = replace(begin("s", middle.part), blocks=blocks, kv_length=length)
        (failed,) = one.handle(order)
        assert isinstance(failed, RunFailed) and f"{length} positions in" in failed.detail


def test_a_row_that_is_not_finite_costs_its_own_session_only(middle: Stage) -> None:
    one = engine(middle)
    rows = {name: torch.randn(1, 32) for name in "abc"}
    alone = {}
    for name, row in rows.items():
        single = engine(middle)
        single.handle(begin(name, middle.part))
        alone[name] = bytes(run_through(single, rows_run(name, 0, row)).payload)
    for name in "abc":
        one.handle(begin(name, middle.part))
        row = rows[name] if name != "b" else torch.full((1, 32), torch.nan)
        one.handle(rows_run(name, 0, row))
    answers = one.step()
    assert _by_session(answers) == {"a": alone["a"], "b": None, "c": alone["c"]}
    failed = next(answer for answer in answers if isinstance(answer, RunFailed))
    assert "not a finite number" in failed.detail


def _by_session(answers: Sequence[Message]) -> dict[str, bytes | None]:
    return {
        answer.session: bytes(answer.payload) if isinstance(answer, Ran) else None
        for answer in answers
        if isinstance(answer, Ran | RunFailed)
    }


@pytest.mark.parametrize("error", [RuntimeError("no"), torch.OutOfMemoryError("out of memory")])
def test_of_a_batch_that_fails_only_those_end_that_make_it_fail(
    middle: Stage, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A session that asks for too much, say: the others are run again without it."""
    one = engine(middle)
    for name, rows in (("a", 1), ("b", 7), ("c", 1)):
        one.handle(begin(name, middle.part))
        one.handle(rows_run(name, 0, torch.randn(rows, 32)))
    run = middle.run

    def limited(batch, *rest):  # type: ignore[no-untyped-def]
        if int(batch.places.context.max()) > 3:
            raise error
        return run(batch, *rest)

    monkeypatch.setattr(middle, "run", limited)
    answers = one.step()
    by_session = _by_session(answers)
    assert by_session["b"] is None and None not in (by_session["a"], by_session["c"])
    monkeypatch.undo()
    after = run_through(one, rows_run("a", 1, torch.randn(1, 32)))
    assert after.position == 1, "what was run again is acknowledged once"


def test_rows_of_a_step_that_failed_are_not_held(
    middle: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = engine(middle)
    one.handle(begin("s", middle.part))
    run_through(one, rows_run("s", 0, torch.randn(2, 32)))
    with monkeypatch.context() as patch:
        patch.setattr(middle, "run", _fail)
        (failed,) = one.handle(rows_run("s", 2, torch.randn(1, 32))) + drain(one)
    assert isinstance(failed, RunFailed)
    assert one.kv_used_bytes == 0
    one.handle(replace(begin("s", middle.part), generation=2))
    late = replace(rows_run("s", 2, torch.randn(1, 32)), generation=2)
    (gap,) = one.handle(late) + drain(one)
    assert isinstance(gap, RunFailed) and "the KV holds 0 positions" in gap.detail


def _fail(*_: object) -> None:
    raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


def test_a_chain_of_hops_over_blocks_gives_the_bits_of_one(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama", hidden_size=64, head_dim=16)
    prompt = prompt_of(PIECE_TOKENS + 7)
    whole = on_blocks(load(tmp_path, Part(LayerRange(0, 3), True, False)))
    halves = [
        on_blocks(load(tmp_path, part))
        for part in (Part(LayerRange(0, 2), True, False), Part(LayerRange(2, 3), False, False))
    ]
    run = ids_run("s", 0, prompt)
    payloads = []
    for stages in ([whole], halves):
        given = run
        for stage in stages:
            one = engine(stage)
            one.handle(begin("s", stage.part, prompt=len(prompt)))
            ran = run_through(one, given)
            given = onward(ran, 1 << 30)
        payloads.append(bytes(ran.payload))
    assert payloads[0] == payloads[1]


def test_blocks_come_in_the_sizes_the_model_has(tmp_path: Path) -> None:
    """Found from the layers themselves: keys and values may differ in size."""
    save_tiny(tmp_path, "deepseek_v3")
    stage = on_blocks(load(tmp_path, whole_part(LAYERS)), 3)
    assert stage.kv is not None
    pool: KvPool = stage.kv.pools[0]
    assert pool.keys.shape[1:] == (KV_BLOCK_TOKENS, 4, 16)
    assert pool.values.shape[1:] == (KV_BLOCK_TOKENS, 4, 8)
    assert stage.kv.block_bytes == LAYERS * KV_BLOCK_TOKENS * 4 * (16 + 8) * 4
    assert CONFIG.exact
