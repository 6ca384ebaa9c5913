"""The shapes of what the native ops return, for torch.compile. Registered after they are loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def paged_attention(q: torch.Tensor, _keys: torch.Tensor, values: torch.Tensor, *_: Any) -> Any:
    return q.new_empty((*q.shape[:2], values.shape[3]))


def attend(q: torch.Tensor, *rest: Any) -> Any:
    return q.new_empty((*q.shape[:2], rest[3].shape[3]))


def write_rows(*_: Any) -> None:
    """Gives nothing."""


def linear(x: torch.Tensor, *rest: Any) -> Any:
    """Of every linear: the last argument says how many columns each part has."""
    return [x.new_empty((*x.shape[:-1], width)) for width in rest[-1]]


FAKES: Mapping[str, Callable[..., Any]] = {
    "attend": attend,
    "paged_attention": paged_attention,
    "write_rows": write_rows,
    "group_linear": linear,
    "float_linear": linear,
}


def register() -> None:
    """Once per process, after the library is loaded."""
    for name, fake in FAKES.items():
        torch.library.register_fake(f"swarm::{name}", fake)
