"""Recorded runs: the same bits, and never for a model whose calls depend on values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from swarm.kernels.capture import PROGRAMS_MAX, PROOFS, Capture
from swarm.kernels.native_io import Native

WEIGHT = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
Model = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def _kernels(native: Native) -> None:
    """Programs are native."""


def rows(seed: int, count: int = 3) -> torch.Tensor:
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))


class Counted:
    """A model that says how often it ran."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.count = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.model(x)


def runs(model: Model, count: int = PROOFS + 4) -> tuple[int, Capture]:
    """Checks `count` runs on different rows; answers how often the model itself ran."""
    capture, counted = Capture(), Counted(model)
    with torch.inference_mode():
        for seed in range(count):
            x = rows(seed)
            given = capture.run("key", [x], lambda x=x: counted(x))
            assert torch.equal(given, model(x)), seed
    return counted.count, capture


def small_model(x: torch.Tensor) -> torch.Tensor:
    a, b = torch.nn.functional.linear(x, WEIGHT).chunk(2, dim=-1)
    joined = torch.cat((a.sin() * b, torch.tensor([[1.0], [2.0], [3.0]]), x[:, :3]), dim=-1)
    first, *_rest = joined.split([4, 4], dim=-1)
    picked = joined[torch.tensor([2, 0])].flatten()[:4]
    total = first + picked + torch.arange(4) + torch.zeros_like(first).add_(0.5)
    return total.transpose(0, 1).reshape(-1, 3) @ WEIGHT[:3]


def test_a_proven_program_replaces_the_model() -> None:
    count, capture = runs(small_model)
    assert (count, capture.proven_count, capture.refusals) == (1 + PROOFS, 1, [])


def looks_by_item(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.sum().item() > 0 else x - 1


def looks_by_truth(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if bool(x[0, 0] > 100) else x * 3


def looks_by_list(x: torch.Tensor) -> torch.Tensor:
    return x + sum(value > 100 for value in x[0].tolist())


def looks_by_numpy(x: torch.Tensor) -> torch.Tensor:
    return x + float(x.numpy().max() > 100)


def looks_by_mask(x: torch.Tensor) -> torch.Tensor:
    return x + x[x > 100].sum()


def looks_by_nonzero(x: torch.Tensor) -> torch.Tensor:
    return x + torch.where(x[:, 0] > 100)[0].sum()


def fills_memory(x: torch.Tensor) -> torch.Tensor:
    made = torch.empty(3, 8)
    made.copy_(x)
    return made


@pytest.mark.parametrize(
    "model",
    [
        looks_by_item,
        looks_by_truth,
        looks_by_list,
        looks_by_numpy,
        looks_by_mask,
        looks_by_nonzero,
        fills_memory,
    ],
)
def test_what_looks_at_values_is_refused_at_once(model: Model) -> None:
    """Also where the values seen happen to make no difference."""
    count, capture = runs(model)
    assert count == PROOFS + 4
    assert capture.proven_count == 0 and len(capture.refusals) == 1


def test_a_model_that_changes_between_runs_is_refused() -> None:
    calls = iter(range(100))
    capture = Capture()
    for seed in range(6):
        x, step = rows(seed), next(calls)
        given = capture.run("key", [x], lambda x=x, step=step: x + step)
        assert torch.equal(given, x + step)
    assert "another result" in capture.refusals[0]


def test_an_input_that_was_not_named_is_found_out() -> None:
    capture = Capture()
    for seed in range(6):
        x, hidden = rows(seed), rows(100 + seed)
        given = capture.run("key", [x], lambda x=x, hidden=hidden: x + hidden)
        assert torch.equal(given, x + hidden)
    assert capture.proven_count == 0


def test_a_run_that_fails_leaves_nothing_behind() -> None:
    capture = Capture()

    def broken() -> torch.Tensor:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        capture.run("key", [rows(0)], broken)
    counted = Counted(lambda x: x + 1)
    for seed in range(5):
        x = rows(seed)
        assert torch.equal(capture.run("key", [x], lambda x=x: counted(x)), x + 1)
    assert counted.count == 1 + PROOFS


def test_a_program_refuses_what_the_model_would_refuse() -> None:
    capture, table, ids = Capture(), torch.arange(4.0), torch.tensor([2])
    for _ in range(1 + PROOFS):
        capture.run("key", [ids], lambda: table.index_select(0, ids))
    assert capture.proven_count == 1
    with pytest.raises((RuntimeError, IndexError)):
        capture.run("key", [torch.tensor([7])], lambda: ids)


def test_an_unnamed_view_of_an_input_is_refused() -> None:
    capture, x = Capture(), rows(0)
    view = x[:2]
    for _ in range(1 + PROOFS):
        capture.run("key", [x], lambda: view + 1)
    assert "by no recorded call" in capture.refusals[0]


def test_changes_in_place_are_made_again() -> None:
    """As the KV blocks are: memory from outside that every run writes to."""
    kept = torch.zeros(3, 8)

    def model(x: torch.Tensor) -> torch.Tensor:
        kept.copy_(x)
        return kept + 1

    count, capture = runs(model)
    assert count == 1 + PROOFS
    x = rows(50)
    with torch.inference_mode():
        capture.run("key", [x], lambda: model(x))
    assert torch.equal(kept, x)


def test_shapes_are_kept_apart_and_few() -> None:
    capture = Capture()
    for size in range(1, PROGRAMS_MAX + 10):
        x = rows(size, size)
        capture.run(size, [x], lambda x=x: x * 2)
    assert len(capture._entries) == PROGRAMS_MAX


def test_it_can_be_switched_off() -> None:
    capture, counted = Capture(enabled=False), Counted(lambda x: x + 1)
    for seed in range(5):
        x = rows(seed)
        capture.run("key", [x], lambda x=x: counted(x))
    assert counted.count == 5
