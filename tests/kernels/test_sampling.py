"""The sampler: a pure function of (seed, position, logits)."""

from __future__ import annotations

import collections
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.kernels.sampling import sample, uniform
from swarm.terms import Sampling

LOGITS = torch.tensor([0.0, 2.0, -1.0, 1.0, 1.5])
UNIFORM_0_0 = 0.0564663990004608
UNIFORM_7_12 = 0.5903425812475934


def draws(sampling: Sampling, count: int = 400) -> collections.Counter[int]:
    return collections.Counter(sample(LOGITS, sampling, p).token_id for p in range(count))


def test_temperature_zero_takes_the_largest() -> None:
    assert set(draws(Sampling(temperature=0.0, seed=3), 20)) == {1}


def test_equal_logits_are_ranked_by_id() -> None:
    tied = torch.tensor([1.0, 3.0, 3.0, 3.0])
    assert sample(tied, Sampling(temperature=0.0), 0).token_id == 1
    assert sample(tied, Sampling(top_k=1), 0).token_id == 1
    assert [t.token_id for t in sample(tied, Sampling(logprobs=3), 0).top] == [1, 2, 3]


def test_the_same_seed_and_position_give_the_same_token() -> None:
    for seed in (0, 1, -5, 2**63 - 1):
        sampling = Sampling(seed=seed)
        first = [sample(LOGITS, sampling, p).token_id for p in range(50)]
        assert [sample(LOGITS, sampling, p).token_id for p in reversed(range(50))] == first[::-1]
    assert draws(Sampling(seed=1)) != draws(Sampling(seed=2))


def test_half_precision_logits_and_another_batch_do_not_matter() -> None:
    batch = torch.stack([torch.randn(5), LOGITS]).to(torch.bfloat16)
    for position in range(20):
        assert sample(batch[1], Sampling(seed=4), position) == sample(
            LOGITS, Sampling(seed=4), position
        )


def test_frequencies_follow_the_distribution() -> None:
    counts = draws(Sampling(temperature=1.0, seed=9), 4000)
    expected = torch.softmax(LOGITS, 0)
    for token in range(5):
        assert counts[token] / 4000 == pytest.approx(float(expected[token]), abs=0.03)


@pytest.mark.parametrize("top_p", [1.0, 0.5])
def test_a_temperature_next_to_zero_is_greedy(top_p: float) -> None:
    """Dividing by it overflows; no member may hang or crash a head with it."""
    assert set(draws(Sampling(temperature=5e-324, top_p=top_p), 20)) == {1}


def test_temperature_sharpens_and_flattens() -> None:
    cold, hot = draws(Sampling(temperature=0.2)), draws(Sampling(temperature=5.0))
    assert cold[1] > 350
    assert len(hot) == 5


def test_top_k_keeps_so_many() -> None:
    assert set(draws(Sampling(top_k=2))) == {1, 4}
    assert set(draws(Sampling(top_k=99))) == {0, 1, 2, 3, 4}


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    weights = torch.softmax(LOGITS, 0)
    two = float(weights[1] + weights[4])
    assert set(draws(Sampling(top_p=two - 1e-6))) == {1, 4}
    assert set(draws(Sampling(top_p=two + 1e-6))) == {1, 3, 4}
    assert set(draws(Sampling(top_p=1e-9))) == {1}


def test_top_p_counts_what_top_k_left() -> None:
    left = torch.softmax(LOGITS[[1, 4, 3]], 0)
    assert set(draws(Sampling(top_k=3, top_p=float(left[0]) + 1e-6))) == {1, 4}


def test_top_p_over_a_flat_vocabulary_that_is_larger_than_the_first_guess() -> None:
    flat = torch.zeros(20_000)
    kept = {sample(flat, Sampling(top_p=0.5, seed=s), 0).token_id for s in range(300)}
    assert max(kept) < 10_001
    assert max(kept) > 8_000


def test_logprobs_are_those_of_the_plain_distribution() -> None:
    sampling = Sampling(temperature=0.3, top_k=1, logprobs=2)
    token = sample(LOGITS, sampling, 7)
    expected = torch.log_softmax(LOGITS.double(), 0)
    assert token.position == 7
    assert token.logprob == pytest.approx(float(expected[1]))
    assert [(t.token_id, t.logprob) for t in token.top] == [
        (1, pytest.approx(float(expected[1]))),
        (4, pytest.approx(float(expected[4]))),
    ]


def test_logprobs_only_when_asked_for() -> None:
    assert sample(LOGITS, Sampling(), 0).logprob is None
    bare = sample(LOGITS, Sampling(logprobs=0), 0)
    assert bare.logprob is not None
    assert bare.top == ()
    assert len(sample(LOGITS, Sampling(logprobs=20), 0).top) == 5


def test_random_numbers_are_fixed_for_ever() -> None:
    """An answer that began under one release must go on under the next."""
    assert uniform(0, 0) == UNIFORM_0_0
    assert uniform(7, 12) == UNIFORM_7_12


@given(seed=st.integers(-(2**63), 2**63 - 1), position=st.integers(0, 2**40))
def test_random_numbers_are_in_the_unit_interval(seed: int, position: int) -> None:
    assert 0.0 <= uniform(seed, position) < 1.0


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=40),
    temperature=st.floats(0.01, 10),
    top_k=st.integers(0, 50),
    top_p=st.floats(0.01, 1.0),
    seed=st.integers(0, 1000),
)
def test_what_is_chosen_was_allowed(
    values: list[float], temperature: float, top_k: int, top_p: float, seed: int
) -> None:
    logits = torch.tensor(values)
    sampling = Sampling(temperature, top_p, top_k, seed, logprobs=len(values))
    token = sample(logits, sampling, 3)
    better = sum(value > values[token.token_id] for value in values)
    assert top_k == 0 or better < top_k
    assert math.exp(token.logprob or 0.0) <= 1.0
    assert sum(math.exp(t.logprob) for t in token.top) == pytest.approx(1.0)
