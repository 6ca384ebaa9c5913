"""Copies on large pages: the same tensors, apart from each other, aligned and alive."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from swarm.shard import large_pages_io
from swarm.shard.large_pages_io import PAGE_BYTES, LargePages


def test_copies_are_equal_apart_and_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_pages_io, "CHUNK_BYTES", 4096)
    pages = LargePages()
    originals = [
        torch.arange(7, dtype=torch.int8),
        torch.randn(3, 50),
        torch.randn(5, 2).half().T,
        torch.empty(0, 4),
        torch.randn(2000),  # larger than a chunk
        torch.tensor(2.5, dtype=torch.bfloat16),
    ]
    made = [pages.copy(original) for original in originals]
    for one, other in zip(made, originals, strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other) and one.is_contiguous()
        assert one.data_ptr() % 64 == 0
    spans = sorted((m.data_ptr(), m.data_ptr() + m.nbytes) for m in made if m.numel())
    assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))
    for tensor in made:
        tensor.zero_()
    assert originals[1].any(), "they are copies"


def test_a_chunk_begins_with_a_page_and_stays_for_its_last_copy() -> None:
    pages = LargePages()
    made = pages.copy(torch.ones(10))
    assert made.data_ptr() % PAGE_BYTES == 0
    other = pages.copy(torch.ones(10))
    del made, pages
    gc.collect()
    assert torch.equal(other, torch.ones(10)), "the chunk lives as long as one copy"


def test_the_buffers_of_a_module_move_in_place() -> None:
    module = nn.BatchNorm1d(6)
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    LargePages().move(module)
    after = dict(module.named_buffers())
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert after["running_mean"].data_ptr() % 64 == 0
