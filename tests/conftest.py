"""Fixtures that several packages' tests use."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

MODELS = Path(__file__).resolve().parent.parent / "models"


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: no collection of garbage need look at them again."""
    gc.collect()
    gc.freeze()


def _fetched(name: str) -> Path:
    folder = MODELS / name
    if not (folder / "config.json").exists():
        pytest.skip(f"needs scripts/fetch_model {name}")
    return folder


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return _fetched("smollm2")


@pytest.fixture(scope="session")
def gemma3() -> Path:
    return _fetched("gemma3")


@pytest.fixture(scope="session")
def reference_cache(pytestconfig: pytest.Config) -> Path:
    """Where ids that transformers generated are kept between runs."""
    cache = pytestconfig.cache
    assert cache is not None
    return Path(cache.mkdir("reference_ids"))
