"""A head that must know more than logits: guides that come later, histories, and heads anew."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_chain import BlockEngine, begin, drain, engine, ids_run, load, on_blocks, whole_part
from transformers import LlamaConfig, LlamaForCausalLM

from swarm.gateway.token_table import pack, unpack
from swarm.guides import GuideError, Matcher, Vocabulary
from swarm.messages import FailureCode, Message, Ran, Recall, RunFailed, StepKind
from swarm.shard.engine import Engine
from swarm.shard.stage import Stage
from swarm.terms import Guide, GuideKind, Sampling, SessionId

LETTERS = {0: "<end>"} | {i: chr(0x20 + i) for i in range(1, 95)}
END, VOCABULARY, LAYERS = 0, 100, 2
DECODER = json.dumps(
    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
)
TABLE = unpack(*pack(LETTERS, frozenset({0}), frozenset({0}), DECODER))
WORDS = Vocabulary(TABLE, VOCABULARY, [END])
PROMPT = (5, 9, 33, 41)
DATE = Guide(GuideKind.REGEX, "(19|20)[0-9]{2}-[01][0-9](-[0-3][0-9])?")
SCHEMA = Guide(GuideKind.JSON_SCHEMA, json.dumps({"enum": ["a", "bcd", "bce"]}))
GUIDED = Sampling(temperature=0.9, seed=7, guide=GuideKind.REGEX, stop_ids=(END,))
PENALIZED = Sampling(
    temperature=0.9, seed=3, presence_penalty=1.5, frequency_penalty=0.5, repetition_penalty=1.3
)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS,
        num_attention_heads=2, num_key_value_heads=1, initializer_range=0.2,
        max_position_embeddings=256,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return on_blocks(load(Path(folder), whole_part(LAYERS)))


def text_of(ids: Sequence[int]) -> str:
    return b"".join(TABLE.token_bytes(i) for i in ids if i != END).decode()


class Head:
    """An engine with one session, which is told and fed as a relay does it."""

    def __init__(self, stage: Stage, sampling: Sampling, guide: Guide | None = None) -> None:
        self.engine = engine(stage)
        self.ordered: list[tuple[SessionId, int, Guide]] = []
        self.engine._make_guide = lambda *order: self.ordered.append(order)
        self.guide, self.sampling = guide, sampling
        part = whole_part(LAYERS)
        order = begin("s", part, sampling=sampling, prompt=len(PROMPT))
        assert self.engine.handle(order) == []

    def tell(self, generated: Sequence[int]) -> list[Message]:
        source = self.guide.source.encode() if self.guide else b""
        first = 0 if self.sampling.needs_prompt else len(PROMPT)
        ids = [*PROMPT, *generated][first:]
        payload = source + struct.pack(f"<{len(ids)}i", *ids)
        recall = Recall(SessionId("s"), 1, len(source), first, payload)
        return self.engine.handle(recall)

    def make_guides(self) -> list[Message]:
        orders, self.ordered = self.ordered, []
        return [
            answer
            for session, generation, guide in orders
            for answer in self.engine.guide_made(session, generation, compiled(guide))
        ]

    def run(self, position: int, ids: Sequence[int], sampled_from: int) -> list[Message]:
        kind = StepKind.PREFILL if position < len(PROMPT) else StepKind.DECODE
        run = ids_run("s", position, ids, kind=kind, sample_from=sampled_from)
        return [*self.engine.handle(run), *drain(self.engine)]

    def start(self, generated: Sequence[int] = ()) -> int:
        """From nothing to the token after these."""
        assert self.tell(generated) == [] and self.make_guides() == []
        last = len(PROMPT) + len(generated) - 1
        answers = self.run(0, PROMPT, last)
        if generated:
            answers = self.run(len(PROMPT), generated, last)
        return token_of(answers)

    def next(self, generated: Sequence[int]) -> int:
        position = len(PROMPT) + len(generated) - 1
        return token_of(self.run(position, generated[-1:], position))


def compiled(guide: Guide) -> Matcher | GuideError:
    try:
        return Matcher(WORDS, guide)
    except GuideError as error:
        return error


def token_of(answers: Sequence[Message]) -> int:
    ran = answers[-1]
    assert isinstance(ran, Ran), ran
    return ran.tokens[-1].token_id


def generate(head: Head, count: int) -> list[int]:
    ids = [head.start()]
    while ids[-1] != END and len(ids) < count:
        ids.append(head.next(ids))
    return ids


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_an_answer_follows_its_guide_and_ends(stage: Stage, seed: int, temperature: float) -> None:
    sampling = replace(GUIDED, seed=seed, temperature=temperature)
    ids = generate(Head(stage, sampling, DATE), 40)
    assert ids[-1] == END
    assert re.fullmatch(DATE.source, text_of(ids))
    chosen = replace(sampling, guide=GuideKind.JSON_SCHEMA)
    assert json.loads(text_of(generate(Head(stage, chosen, SCHEMA), 40))) in ("a", "bcd", "bce")


@pytest.mark.parametrize(
    ("sampling", "guide"),
    [(GUIDED, DATE), (PENALIZED, None), (replace(PENALIZED, guide=GuideKind.REGEX), DATE)],
)
def test_a_head_anew_goes_on_as_the_lost_one_would_have(
    stage: Stage, sampling: Sampling, guide: Guide | None
) -> None:
    sampling = replace(sampling, stop_ids=(END,))
    ids = generate(Head(stage, sampling, guide), 12)
    for known in range(1, len(ids)):
        head = Head(stage, sampling, guide)
        assert head.start(ids[:known]) == ids[known]
        if known + 1 < len(ids):
            assert head.tell(ids[: known + 1]) == [], "told again what it sampled itself"
            assert head.tell(ids[:known]) == [], "or less than that"
            assert head.next(ids[: known + 1]) == ids[known + 1]


def test_rows_are_sampled_only_when_the_guide_is_there(stage: Stage) -> None:
    head = Head(stage, GUIDED, DATE)
    head.tell(())
    answers = head.run(0, PROMPT[:-1], 3)
    assert [type(answer) for answer in answers] == [Ran], "what is not sampled need not wait"
    assert head.run(3, PROMPT[3:], 3) == []
    assert head.make_guides() == []
    assert text_of([token_of(drain(head.engine))]) in ("1", "2")


def test_no_history_no_token(stage: Stage) -> None:
    head = Head(stage, PENALIZED)
    (failure,) = head.run(0, PROMPT, 3)
    assert isinstance(failure, RunFailed) and failure.code is FailureCode.STEP_FAILED


def test_a_guide_that_cannot_be_costs_its_session_only(stage: Stage) -> None:
    head = Head(stage, GUIDED, Guide(GuideKind.REGEX, "(a"))
    head.tell(())
    assert head.run(0, PROMPT, 3) == []
    (failure,) = head.make_guides()
    assert isinstance(failure, RunFailed) and failure.code is FailureCode.GUIDE_FAILED
    assert "invalid regex" in failure.detail
    assert head.engine.session_count == 1 and not head.engine.has_work


def test_ids_that_do_not_follow_the_guide_end_the_session(stage: Stage) -> None:
    """An origin that tells others than it was given."""
    head = Head(stage, GUIDED, DATE)
    head.tell((60, 60))
    head.make_guides()
    head.run(0, PROMPT, 5)
    (failure,) = head.run(len(PROMPT), (60, 60), 5)
    assert isinstance(failure, RunFailed) and failure.code is FailureCode.GUIDE_FAILED


def test_company_changes_no_token(stage: Stage) -> None:
    """Greedy, guided and penalized rows in one batch give what each gives alone."""
    kinds = [(GUIDED, DATE), (PENALIZED, None), (Sampling(temperature=0.0), None)]
    alone = [generate(Head(stage, *kind), 6) for kind in kinds]
    one = engine(stage)
    assert isinstance(one, BlockEngine)
    one._make_guide = lambda *order: None
    for index, (sampling, guide) in enumerate(kinds):
        name = f"s{index}"
        one.handle(begin(name, whole_part(LAYERS), sampling=sampling, prompt=len(PROMPT)))
        source = guide.source.encode() if guide else b""
        first = 0 if sampling.needs_prompt else len(PROMPT)
        ids = PROMPT[first:]
        payload = source + struct.pack(f"<{len(ids)}i", *ids)
        one.handle(Recall(SessionId(name), 1, len(source), first, payload))
        if guide:
            one.guide_made(SessionId(name), 1, compiled(guide))
        one.handle(ids_run(name, 0, PROMPT, sample_from=len(PROMPT) - 1))
    together = _together(one, len(kinds), 6)
    assert together == alone


def _together(one: Engine, sessions: int, count: int) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(sessions)]
    while one.has_work:
        for answer in one.step():
            assert isinstance(answer, Ran), answer
            index = int(answer.session[1:])
            found[index] += [token.token_id for token in answer.tokens]
            ids = found[index]
            if ids and ids[-1] != END and len(ids) < count:
                position = len(PROMPT) + len(ids) - 1
                one.handle(
                    ids_run(answer.session, position, ids[-1:], kind=StepKind.DECODE, sample_from=0)
                )
    return found
