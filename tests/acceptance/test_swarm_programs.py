"""The demo and the benches run to their end; figures are for people and not asserted here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import swarm_netns

pytestmark = [
    pytest.mark.xdist_group("processes"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("smollm2"),
]

PROGRAMS = Path(__file__).resolve().parents[2] / "scripts" / "programs"


def run(name: str, *arguments: str) -> str:
    ran = subprocess.run(
        [sys.executable, PROGRAMS / f"{name}.py", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_demo() -> None:
    assert "the same" in run("demo")


def test_bench_hop() -> None:
    assert "ms per extra hop" in run("bench_hop", "--rounds", "2", "--tokens", "32")


def test_bench_failover() -> None:
    assert "replay" in run("bench_failover", "--runs", "1", "--contexts", "100", "500")


@pytest.mark.skipif(swarm_netns.why_not() is not None, reason=str(swarm_netns.why_not()))
def test_bench_detection() -> None:
    assert "host unplugged" in run("bench_detection", "--runs", "2")
