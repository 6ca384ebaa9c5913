"""Chooses a token: a pure function of (seed, position, logits, token history).

Everything runs on the CPU in float64, and the random number comes from a hash of (seed, position)
rather than from a generator with a state. So neither device, batch, torch version nor the number
of earlier draws can change a choice, and a step that is run again gives the token it gave before.

Legend: `V` vocabulary.
"""

from __future__ import annotations

import hashlib
import math
import struct

import torch

from swarm.kernels.history import NO_PAST, Past
from swarm.kernels.steer import steer
from swarm.terms import SampledToken, Sampling, TokenLogprob

_NUCLEUS_START = 1024
"""Candidates sorted first for top_p; nearly always enough, and far cheaper than sorting V."""


def sample(
    logits: torch.Tensor, sampling: Sampling, position: int, past: Past = NO_PAST
) -> SampledToken:
    """Choose the token that takes `position` in the sequence.

    logits  [V], finite, any float dtype, any device
    past    what `sampling` needs to know of the sequence

    What steers (`steer`) comes first, then the filters in the order temperature, min_p, top_k,
    top_p, each keeping at least one token. The logprobs are those of the plain distribution, before
    any of them. Equal logits are ranked by id.
    """
    plain = logits.detach().cpu().to(torch.float64)
    if sampling.needs_history or sampling.bias:
        values, ids = steer(plain, sampling, past)
        token_id = int(ids[_choose(values, sampling, position)])
    else:
        token_id = _choose(plain, sampling, position)
    if sampling.logprobs is None:
        return SampledToken(position, token_id)
    logprobs = torch.log_softmax(plain, dim=0)
    top = tuple(
        TokenLogprob(int(index), float(logprobs[index]))
        for index in _ranked(logprobs, min(sampling.logprobs, len(logprobs)))
    )
    return SampledToken(position, token_id, float(logprobs[token_id]), top)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits: the top bits of BLAKE2b(seed, position)."""
    digest = hashlib.blake2b(struct.pack("<qq", seed, position), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def _choose(plain: torch.Tensor, sampling: Sampling, position: int) -> int:
    """An index into `plain`."""
    if sampling.temperature == 0.0:
        return int(plain.argmax())
    scaled = plain / sampling.temperature
    if not bool(torch.isfinite(scaled).all()):  # so cold that the division overflows
        return int(plain.argmax())
    candidates = torch.arange(len(scaled))
    if sampling.min_p > 0.0:
        floor = scaled.max() + math.log(sampling.min_p)
        candidates = (scaled >= floor).nonzero()[:, 0]
    if sampling.top_k > 0:
        count = min(sampling.top_k, len(candidates))
        candidates = candidates[_ranked(scaled[candidates], count)]
    weights = torch.softmax(scaled[candidates], dim=0)
    if sampling.top_p < 1.0:
        kept = _nucleus(weights, sampling.top_p)
        candidates, weights = candidates[kept], weights[kept]
    # Inverse of the cumulative distribution; rounding may leave the last sum below the draw.
    sums = weights.cumsum(0)
    draw = uniform(sampling.seed, position) * float(sums[-1])
    index = int(torch.searchsorted(sums, torch.tensor(draw, dtype=torch.float64), right=True))
    return int(candidates[min(index, len(candidates) - 1)])


def _nucleus(weights: torch.Tensor, top_p: float) -> torch.Tensor:
    """Indices of the fewest candidates whose weights reach `top_p` together, heaviest first."""
    count = _NUCLEUS_START
    while True:
        order = _ranked(weights, min(count, len(weights)))
        sums = weights[order].cumsum(0)
        if float(sums[-1]) >= top_p or count >= len(weights):
            return order[: int((sums < top_p).sum()) + 1]
        count *= 8


def _ranked(values: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of the `count` largest, largest first, equal ones by index."""
    if count == 0:
        return torch.empty(0, dtype=torch.int64)
    bound = values.topk(count).values[-1]
    above = (values >= bound).nonzero()[:, 0]
    order = values[above].sort(descending=True, stable=True).indices
    return above[order][:count]
