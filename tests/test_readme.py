"""What README says can be typed: the files are there and the commands know their options."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(document.relative_to(ROOT)) for document in DOCUMENTS]


def code_spans(text: str) -> list[str]:
    blocks = re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
    return [line for block in blocks for line in block.splitlines()] + re.findall(
        r"`([^`\n]+)`", text
    )


@pytest.mark.parametrize("name", NAMES)
def test_scripts_that_are_named_exist(name: str) -> None:
    named = re.findall(r"(?<![\w/])scripts/[\w/.]+", (ROOT / name).read_text())
    for script in named:
        path = ROOT / script.rstrip("./")
        assert path.exists(), script
        assert path.is_dir() or path.suffix == ".py" or os.access(path, os.X_OK), script


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    folder = (ROOT / name).parent
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / name).read_text()):
        assert "://" in target or (folder / target).exists(), target


@pytest.mark.parametrize("name", NAMES)
def test_files_that_are_named_exist(name: str) -> None:
    """By their path from the root or from swarm/, or by their bare name."""
    for span in code_spans((ROOT / name).read_text()):
        if re.fullmatch(r"[\w/]+\.py", span):
            found = [(ROOT / span).exists(), (ROOT / "swarm" / span).exists()]
            bare = "/" not in span and any((ROOT / "swarm").rglob(span))
            assert any(found) or bare, span


def test_decisions_that_code_points_to_exist() -> None:
    for file in [*(ROOT / "swarm").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        for target in re.findall(r"(?<![\w/])docs/[\w/-]+\.md", file.read_text()):
            assert (ROOT / target).exists(), f"{file.relative_to(ROOT)}: {target}"


def swarm_help(*words: str) -> str:
    ran = subprocess.run(
        [str(Path(sys.executable).with_name("swarm")), *words, "--help"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"},
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_commands_of_the_readme_know_their_options() -> None:
    lines = [s for s in code_spans((ROOT / "README.md").read_text()) if s.startswith("swarm ")]
    assert lines
    helps: dict[str, str] = {}
    for line in lines:
        word = line.split()[1]
        if word not in helps:
            helps[word] = swarm_help(word)
        for option in re.findall(r"--[\w-]+", line):
            assert option in helps[word], line


@pytest.mark.parametrize(
    "script",
    [
        "demo",
        "soak",
        "bench_hop",
        "bench_join",
        "bench_failover",
        "bench_detection",
        "bench_engine",
        "bench_gpu",
        "bench_llamacpp",
        "bench_quality",
        "bench_swarm",
        "bench_ways",
    ],
)
def test_scripts_explain_themselves(script: str) -> None:
    ran = subprocess.run(
        [sys.executable, ROOT / "scripts" / "programs" / f"{script}.py", "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "usage:" in ran.stdout.lower()


@pytest.mark.parametrize("script", ["setup", "test", "check", "programs/launch"])
def test_shell_scripts_parse(script: str) -> None:
    ran = subprocess.run(["bash", "-n", ROOT / "scripts" / script], check=False)
    assert ran.returncode == 0
