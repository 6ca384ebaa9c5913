"""The shapes of what the native ops return, for torch.compile. Registered after they are loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

FAKES: Mapping[str, Callable[..., Any]] = {}


def register() -> None:
    """Once per process, after the library is loaded."""
    for name, fake in FAKES.items():
        torch.library.register_fake(f"swarm::{name}", fake)
