"""Many answers at once, by the programs that people run: exact under kills, and all answered."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.usefixtures("smollm2")]

PROGRAMS = Path(__file__).resolve().parents[2] / "scripts" / "programs"
KINDS = ["float32", "bfloat16", "int8", "int4"]


def run(name: str, *arguments: str) -> str:
    ran = subprocess.run(
        [sys.executable, PROGRAMS / f"{name}.py", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def soak(*arguments: str) -> None:
    run("soak_load", *arguments)


def test_some_answers_at_once_survive_a_kill() -> None:
    soak("--kind", "int8", "--parts", "2", "--streams", "4", "--tokens", "16", "--kills", "1")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_eight_answers_at_once_keep_their_ids_under_kills(kind: str) -> None:
    soak("--kind", kind, "--streams", "8", "--kills", "20")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_sixty_four_streams_of_all_lengths_end_or_are_refused(quantization: str) -> None:
    told = run("bench_swarm", "--streams", "64", "--rounds", "1", "--quantization", quantization)
    assert "answered" in told
