"""The fuzz program itself: a short run, and the full count of the acceptance list."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from swarm.link.noise import Cipher

PROGRAM = Path(__file__).parents[2] / "scripts" / "programs" / "fuzz_link.py"


def _run(*arguments: str) -> str:
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_short_run_finds_nothing(loop: str) -> None:
    out = _run("--frames", "4000", "--handshakes", "100", "--loop", loop)
    assert "node alive, nothing accepted, nothing left" in out


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_million_frames_and_ten_thousand_handshakes() -> None:
    assert "nothing left" in _run("--frames", "1000000", "--handshakes", "10000")


def test_the_program_would_notice_a_frame_that_opens_falsely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import random

    import fuzzing

    monkeypatch.setattr(fuzzing.Opener, "open", lambda self, body: bytes(body))
    fuzzer = fuzzing.FrameFuzzer(random.Random(1))
    for _ in range(100):
        fuzzer.damaged(Cipher.AES_GCM)
    assert fuzzer.opened_falsely > 10
