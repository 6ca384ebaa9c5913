"""Bias, bans, penalties and guides against plain torch, and transformers where it has them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MinPLogitsWarper, RepetitionPenaltyLogitsProcessor

from swarm.errors import ShardError
from swarm.kernels.history import NO_PAST, Past, TokenHistory
from swarm.kernels.sampling import sample
from swarm.kernels.steer import steer
from swarm.terms import GuideKind, SampledToken, Sampling, TokenBias

V = 12
PROMPT, GENERATED = (1, 2, 2), (3, 3, 4, 2)
PAST = Past(PROMPT, GENERATED)


def logits(seed: int = 0) -> torch.Tensor:
    return torch.randn(V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3


def bits(*ids: int) -> bytes:
    mask = numpy.zeros(16, dtype=numpy.uint8)
    mask[list(ids)] = 1
    return numpy.packbits(mask, bitorder="little").tobytes()


def reference(plain: torch.Tensor, sampling: Sampling, past: Past) -> torch.Tensor:
    """[V], as the formulas of OpenAI's and vLLM's pages read; bans are minus infinity."""
    values = [float(value) for value in plain]
    for each in sampling.bias:
        values[each.token_id] += each.bias
    for token in range(V):
        count = list(past.generated).count(token)
        if sampling.repetition_penalty != 1.0 and (count or token in past.prompt):
            factor = sampling.repetition_penalty
            values[token] = values[token] / factor if values[token] > 0 else values[token] * factor
        values[token] -= sampling.frequency_penalty * count
        values[token] -= sampling.presence_penalty * (count > 0)
        if len(past.generated) < sampling.min_tokens and token in sampling.stop_ids:
            values[token] = -math.inf
        if past.allowed is not None and not past.allowed[token // 8] >> (token % 8) & 1:
            values[token] = -math.inf
    return torch.tensor(values, dtype=torch.float64)


CASES = [
    Sampling(presence_penalty=0.7),
    Sampling(frequency_penalty=-1.3),
    Sampling(presence_penalty=2.0, frequency_penalty=2.0),
    Sampling(repetition_penalty=1.4),
    Sampling(repetition_penalty=0.5, presence_penalty=0.1),
    Sampling(bias=(TokenBias(0, 100.0), TokenBias(5, -100.0))),
    Sampling(bias=(TokenBias(3, 1.5),), repetition_penalty=1.2, frequency_penalty=0.3),
    Sampling(min_tokens=5, stop_ids=(0, 7)),
    Sampling(min_tokens=4, stop_ids=(0, 7)),
]


@pytest.mark.parametrize("sampling", CASES)
@pytest.mark.parametrize("allowed", [None, bits(0, 2, 3, 9)])
@pytest.mark.parametrize("seed", range(3))
def test_logits_are_steered_as_the_formulas_say(
    sampling: Sampling, allowed: bytes | None, seed: int
) -> None:
    plain, past = logits(seed), Past(PROMPT, GENERATED, allowed)
    before = plain.clone()
    values, ids = steer(plain, sampling, past)
    dense = torch.full((V,), -math.inf, dtype=torch.float64)
    dense[ids] = values
    torch.testing.assert_close(dense, reference(plain, sampling, past), rtol=0, atol=1e-12)
    assert torch.equal(plain, before)


@pytest.mark.parametrize("factor", [0.7, 1.3])
def test_the_repetition_penalty_is_that_of_transformers(factor: float) -> None:
    plain = logits(4)
    seen = torch.tensor([[*PROMPT, *GENERATED]])
    wanted = RepetitionPenaltyLogitsProcessor(factor)(seen, plain[None].clone())[0]
    values, ids = steer(plain, Sampling(repetition_penalty=factor), PAST)
    assert ids.tolist() == list(range(V))
    torch.testing.assert_close(values, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("min_p", [0.05, 0.3, 1.0])
def test_min_p_keeps_what_transformers_keeps(min_p: float) -> None:
    plain = logits(6)
    kept = MinPLogitsWarper(min_p)(torch.tensor([[0]]), plain[None].clone())[0].isfinite()
    sampling = Sampling(temperature=1.0, min_p=min_p, seed=3)
    drawn = {sample(plain, sampling, position).token_id for position in range(600)}
    assert drawn <= set(kept.nonzero()[:, 0].tolist())
    assert int(plain.argmax()) in drawn
    assert len(drawn) == int(kept.sum()) or min_p < 0.1


def test_a_banned_sequence_does_not_come_about() -> None:
    plain = torch.zeros(V)
    banned = Sampling(temperature=0.0, banned=((4, 2, 5), (6,), (9, 9, 9, 9, 9, 9)))
    for generated, gone in [((4, 2), {5, 6}), ((2,), {6}), ((), {6}), ((4, 3), {6})]:
        _, ids = steer(plain.double(), banned, Past((), generated))
        assert set(range(V)) - set(ids.tolist()) == gone


def test_bans_yield_where_nothing_were_left_and_guides_never() -> None:
    """A guide that is fulfilled, and an answer that must be longer: the answer ends."""
    ended = Past((), (), bits(7))
    sampling = Sampling(min_tokens=5, stop_ids=(7,), guide=GuideKind.REGEX, temperature=0.0)
    assert sample(logits(), sampling, 3, ended).token_id == 7


def test_a_guide_holds_at_any_temperature() -> None:
    past = Past((), (), bits(2, 9, 11))
    for sampling in (
        Sampling(temperature=0.0, guide=GuideKind.REGEX),
        Sampling(temperature=1e-300, guide=GuideKind.REGEX),
        Sampling(temperature=2.0, guide=GuideKind.REGEX, top_k=5, top_p=0.95, min_p=0.01),
    ):
        drawn = {sample(logits(p), sampling, p, past).token_id for p in range(100)}
        assert drawn <= {2, 9, 11} and len(drawn) > 1


def test_ids_outside_the_vocabulary_change_nothing() -> None:
    """A peer may say anything."""
    odd = Sampling(
        temperature=0.0, bias=(TokenBias(-1, 50.0), TokenBias(1 << 40, 50.0)), min_tokens=9,
        stop_ids=(-3, V, 1 << 50), repetition_penalty=3.0, presence_penalty=2.0,
    )  # fmt: skip
    past = Past((-1, V), (V + 5, -7))
    assert sample(logits(), odd, 5, past).token_id == int(logits().argmax())


def test_logprobs_are_those_of_the_plain_distribution() -> None:
    sampling = Sampling(temperature=0.0, logprobs=2, bias=(TokenBias(0, 100.0),))
    token = sample(logits(), sampling, 1, NO_PAST)
    assert token.token_id == 0
    assert token.logprob == pytest.approx(float(torch.log_softmax(logits(), 0)[0]))
    assert token.top[0].token_id == int(logits().argmax())


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 1000),
    generated=st.lists(st.integers(0, V - 1), max_size=8),
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
)
def test_a_token_is_a_function_of_its_past(
    seed: int, generated: Sequence[int], temperature: float
) -> None:
    """A head that learned the ids anew chooses what one chose that sampled them itself."""
    sampling = Sampling(
        temperature, seed=seed, presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.2
    )
    own, told = TokenHistory(sampling, 3), TokenHistory(sampling, 3)
    own.recall(0, packed(PROMPT))
    for position, token in enumerate(generated, 3):
        own.chosen(SampledToken(position, token))
    told.recall(0, packed([*PROMPT, *generated]))
    position = 3 + len(generated)
    tokens = [sample(logits(seed), sampling, position, h.before(position)) for h in (own, told)]
    assert tokens[0] == tokens[1]


def packed(ids: Sequence[int]) -> bytes:
    return numpy.array(ids, dtype="<i4").tobytes()


def test_a_history_that_is_not_known_gives_no_token() -> None:
    history = TokenHistory(Sampling(presence_penalty=1.0), 3)
    assert history.before(3) == Past([], [])
    with pytest.raises(ShardError, match="known to 3"):
        history.before(4)
    history.recall(3, packed([8, 9]))
    assert history.before(5).generated == [8, 9]
    assert history.before(4).generated == [8]
    for position in (2, 6):
        with pytest.raises(ShardError):
            history.before(position)


def test_a_history_never_changes() -> None:
    history = TokenHistory(Sampling(presence_penalty=1.0), 3)
    history.chosen(SampledToken(3, 8))
    history.chosen(SampledToken(3, 9))
    history.chosen(SampledToken(5, 9))
    history.recall(3, b"")
    history.recall(3, packed([8, 7]))
    assert history.before(5).generated == [8, 7]
    for position, ids in ((3, packed([1])), (0, packed([8])), (3, b"abc")):
        with pytest.raises(ShardError):
            history.recall(position, ids)


def test_the_prompt_is_asked_for_where_it_counts() -> None:
    history = TokenHistory(Sampling(repetition_penalty=1.1), 3)
    with pytest.raises(ShardError):
        history.before(3)
    history.recall(0, packed([5, 6, 7, 8]))
    assert history.before(4) == Past([5, 6, 7], [8])
