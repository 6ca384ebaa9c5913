"""What changes logits before a token is chosen: bias, bans, guide and penalties.

The order is vLLM's: guide, banned sequences, stop ids held back by `min_tokens`, bias, then the
repetition, frequency and presence penalties. Everything is float64 on the CPU.

Legend: `V` vocabulary, `C` candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy
import torch

from swarm.kernels.history import Past
from swarm.terms import Sampling


def steer(plain: torch.Tensor, sampling: Sampling, past: Past) -> tuple[torch.Tensor, torch.Tensor]:
    """The logits to choose from, and whose they are.

    plain    [V] float64, not changed
    returns  [C] float64 logits, [C] int64 ids in rising order; C is at least 1
    """
    candidates = _candidates(len(plain), sampling, past)
    values = plain.clone()
    for each in sampling.bias:
        if 0 <= each.token_id < len(values):
            values[each.token_id] += each.bias
    _penalize(values, sampling, past)
    return values[candidates], candidates


def _candidates(count: int, sampling: Sampling, past: Past) -> torch.Tensor:
    """[C] ids that may come. The guide always holds; other bans do not where nothing were left."""
    allowed = torch.ones(count, dtype=torch.bool)
    if past.allowed is not None:
        bits = numpy.unpackbits(
            numpy.frombuffer(past.allowed, dtype=numpy.uint8), bitorder="little"
        )
        allowed = torch.zeros(count, dtype=torch.bool)
        known = min(count, len(bits))
        allowed[:known] = torch.from_numpy(bits[:known]).to(torch.bool)
    rest = allowed.clone()
    rest[_ids_within(count, _banned(sampling, past))] = False
    return (rest if bool(rest.any()) else allowed).nonzero()[:, 0]


def _banned(sampling: Sampling, past: Past) -> Iterable[int]:
    if len(past.generated) < sampling.min_tokens:
        yield from sampling.stop_ids
    for sequence in sampling.banned:
        before = sequence[:-1]
        if list(past.generated[len(past.generated) - len(before) :]) == list(before):
            yield sequence[-1]


def _penalize(values: torch.Tensor, sampling: Sampling, past: Past) -> None:
    """In place. The repetition penalty divides what is positive and multiplies what is not."""
    if sampling.needs_prompt:
        seen = _ids_within(len(values), {*past.prompt, *past.generated})
        some = values[seen]
        factor = sampling.repetition_penalty
        values[seen] = torch.where(some > 0, some / factor, some * factor)
    if (sampling.frequency_penalty or sampling.presence_penalty) and past.generated:
        ids, counts = numpy.unique(
            numpy.array(past.generated, dtype=numpy.int64), return_counts=True
        )
        within = (ids >= 0) & (ids < len(values))
        times = torch.from_numpy(counts[within].astype(numpy.float64))
        penalty = sampling.frequency_penalty * times + sampling.presence_penalty
        values[torch.from_numpy(ids[within])] -= penalty


def _ids_within(count: int, ids: Iterable[int] | Sequence[int]) -> torch.Tensor:
    """[ids] int64, those of the vocabulary only: a peer may name others."""
    return torch.tensor(sorted(i for i in ids if 0 <= i < count), dtype=torch.int64)
