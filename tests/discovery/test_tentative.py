"""An address that its machine does not have yet for sure is no place to listen at."""

from __future__ import annotations

import pytest

from swarm.discovery.interfaces_io import _is_tentative


@pytest.mark.parametrize(
    ("address", "is_tentative"),
    [
        ("127.0.0.1", False),
        ("10.9.8.7", False),
        ("fe80::1", False),  # where systems give no scope, nothing can be tried
        ("2001:db8::77", True),
    ],
)
def test_only_what_cannot_be_bound_is_left_out(address: str, is_tentative: bool) -> None:
    assert _is_tentative(address) is is_tentative
