"""One compute thread and silence, for every test that runs torch here."""

from __future__ import annotations

import pytest
import torch

from swarm.shard.load_io import quiet_transformers


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
    quiet_transformers()
