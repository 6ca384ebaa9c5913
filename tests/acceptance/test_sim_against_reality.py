"""Real nodes in network namespaces and simulated ones notice losses after the same times."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import swarm_netns

from sims.reality import CASES, TOLERANCE

pytestmark = [
    pytest.mark.xdist_group("processes"),
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(swarm_netns.why_not() is not None, reason=str(swarm_netns.why_not())),
    pytest.mark.usefixtures("smollm2"),
]

PROGRAM = Path(__file__).resolve().parents[2] / "scripts" / "programs" / "bench_reality.py"
RUNS = "9"
"""With fewer, where between two heartbeats the cables were pulled would count too much."""


def test_detection_times_agree(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    ran = subprocess.run(
        [sys.executable, PROGRAM, "--runs", RUNS, "--json", figures],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    ratios = {case["case"]: case["ratio"] for case in json.loads(figures.read_text())["cases"]}
    assert set(ratios) == set(CASES)
    assert all(abs(ratio - 1.0) <= TOLERANCE for ratio in ratios.values()), ratios
