"""The native kernels, built once and kept where the worker keeps them."""

from __future__ import annotations

import pytest

from swarm.kernels.native_io import Native, start_native


@pytest.fixture(scope="session")
def native() -> Native:
    """Loaded native kernels; a machine that cannot build them skips."""
    loaded = start_native()
    if not loaded.available:
        pytest.skip(loaded.problem)
    return loaded
