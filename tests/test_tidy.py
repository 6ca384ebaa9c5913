"""The house rules, enforced over the tree; and every rule shown to catch a bad snippet."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import tidy_rules
from tidy_rules import Source

ROOT = Path(__file__).resolve().parent.parent
TEXT_SUFFIXES = {".py", ".md", ".toml", ".sh", ".yml", ".yaml", ".txt", ""}
RULE_TEXT = {"tests/tidy_rules.py", "tests/test_tidy.py"}
"""These two name what they forbid."""


def tracked() -> list[str]:
    """Files that git knows or would take, so that a new file is checked before it is committed."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return sorted(name for name in listed.stdout.splitlines() if (ROOT / name).is_file())


def sources(*folders: str) -> list[Source]:
    names = [name for name in tracked() if name.endswith(".py") and name.startswith(folders)]
    return [tidy_rules.parse(name, (ROOT / name).read_text()) for name in names]


def texts() -> list[tuple[str, str]]:
    names = [n for n in tracked() if Path(n).suffix in TEXT_SUFFIXES and n not in RULE_TEXT]
    return [(name, (ROOT / name).read_text(errors="replace")) for name in names]


def gather(rule: Callable[[Source], list[str]], over: Iterable[Source]) -> str:
    return "\n".join(line for source in over for line in rule(source))


@pytest.mark.parametrize(
    "rule",
    [
        tidy_rules.arrows,
        tidy_rules.torch_imports,
        tidy_rules.purity,
        tidy_rules.unstable_asyncio,
        tidy_rules.sizes,
        tidy_rules.broad_except,
        tidy_rules.package_init,
        tidy_rules.pickle_use,
    ],
    ids=lambda rule: rule.__name__,
)
def test_the_package_keeps_the_rule(rule: Callable[[Source], list[str]]) -> None:
    over = sources("swarm/")
    assert over, "no sources found"
    assert not gather(rule, over)


def test_simulations_keep_the_rules() -> None:
    over = sources("sims/")
    for rule in (tidy_rules.arrows, tidy_rules.sizes, tidy_rules.broad_except):
        assert not gather(rule, over)


def test_tests_wait_for_things_and_not_for_time() -> None:
    over = [s for s in sources("tests/") if str(s.path) not in RULE_TEXT]
    assert not gather(tidy_rules.sleeping_test, over)


def test_nothing_is_left_unfinished() -> None:
    assert not [line for name, text in texts() for line in tidy_rules.unfinished(name, text)]


def test_the_project_speaks_of_itself_alone() -> None:
    assert not [line for name, text in texts() for line in tidy_rules.outside_talk(name, text)]


def test_the_daemon_does_not_load_torch() -> None:
    names = ["daemon", "cli", "node_io"]
    modules = [f"swarm.{name}" for name in names if (ROOT / "swarm" / f"{name}.py").exists()]
    program = (
        f"import importlib, sys; [importlib.import_module(m) for m in {modules!r}];"
        "print(sorted({'torch', 'transformers', 'accelerate'} & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout.strip()) == (0, "[]"), ran.stderr


BAD: list[tuple[Callable[[Source], list[str]], str, str]] = [
    (tidy_rules.arrows, "swarm/terms.py", "from swarm.config import Config"),
    (tidy_rules.arrows, "swarm/gossip/spread.py", "import swarm.link.frames"),
    (tidy_rules.arrows, "swarm/routing/cost.py", "from swarm.shard import stage"),
    (tidy_rules.arrows, "swarm/shard/engine.py", "from swarm import node"),
    (tidy_rules.arrows, "swarm/node_io.py", "from swarm.gateway.http_io import serve"),
    (tidy_rules.arrows, "swarm/gateway/text.py", "import sims"),
    (tidy_rules.arrows, "swarm/helpers.py", "x = 1"),
    (tidy_rules.arrows, "swarm/node.py", "from swarm.helpers import x"),
    (tidy_rules.arrows, "swarm/node.py", "from .terms import NodeId"),
    (tidy_rules.torch_imports, "swarm/node_io.py", "import torch"),
    (tidy_rules.torch_imports, "swarm/gateway/text.py", "from transformers import AutoTokenizer"),
    (tidy_rules.torch_imports, "swarm/shard/scheduler.py", "import torch.nn as nn"),
    (tidy_rules.purity, "swarm/node.py", "import asyncio"),
    (tidy_rules.purity, "swarm/node.py", "from time import monotonic"),
    (tidy_rules.purity, "swarm/node.py", "import os.path"),
    (tidy_rules.purity, "swarm/node.py", "import random\nrandom.random()"),
    (tidy_rules.purity, "swarm/node.py", "import random\nrandom.Random()"),
    (tidy_rules.purity, "swarm/node.py", "from random import Random\nRandom()"),
    (tidy_rules.purity, "swarm/node.py", "from random import choice"),
    (tidy_rules.purity, "swarm/node.py", "path.read_text()"),
    (tidy_rules.purity, "swarm/node.py", "open('x')"),
    (tidy_rules.purity, "swarm/node.py", "datetime.datetime.now()"),
    (tidy_rules.unstable_asyncio, "swarm/node_io.py", "import asyncio\nasyncio.wait([])"),
    (tidy_rules.unstable_asyncio, "swarm/node_io.py", "from asyncio import TaskGroup"),
    (tidy_rules.sizes, "swarm/node.py", "x = 1\n" * 501),
    (tidy_rules.sizes, "swarm/node.py", "x = '" + "y" * 100 + "'"),
    (tidy_rules.sizes, "swarm/node.py", "def f():\n" + "    x = 1\n" * 60),
    (tidy_rules.sizes, "swarm/node.py", "def f(self, a, b, c, d, e, *, f, g): ..."),
    (tidy_rules.broad_except, "swarm/node.py", "try:\n  x\nexcept Exception:\n  x"),
    (tidy_rules.broad_except, "swarm/node.py", "try:\n  x\nexcept:\n  x"),
    (
        tidy_rules.broad_except,
        "swarm/node.py",
        "try:\n  x\nexcept (OSError, BaseException):  # noqa: BLE001\n  x",
    ),
    (tidy_rules.package_init, "swarm/link/__init__.py", "import swarm"),
    (tidy_rules.pickle_use, "swarm/link/frames.py", "import pickle"),
    (tidy_rules.pickle_use, "swarm/shard/checkpoint.py", "torch.load('x')"),
    (tidy_rules.sleeping_test, "tests/test_x.py", "time.sleep(1)"),
    (tidy_rules.sleeping_test, "tests/test_x.py", "await_(asyncio.sleep(0.1))"),
]


@pytest.mark.parametrize(("rule", "path", "snippet"), BAD)
def test_a_rule_catches(rule: Callable[[Source], list[str]], path: str, snippet: str) -> None:
    assert rule(tidy_rules.parse(path, snippet))


GOOD: list[tuple[Callable[[Source], list[str]], str, str]] = [
    (tidy_rules.arrows, "swarm/routing/cost.py", "from swarm.gossip.records import StaticRecord"),
    (tidy_rules.arrows, "swarm/link/frames.py", "from swarm.link import identity"),
    (tidy_rules.arrows, "swarm/errors.py", "from swarm.terms import NodeId"),
    (tidy_rules.torch_imports, "swarm/shard/stage.py", "import torch"),
    (tidy_rules.sizes, "swarm/cli.py", "@app.command()\ndef join(a, b, c, d, e, f, g): ..."),
    (tidy_rules.purity, "swarm/link/tcp_io.py", "import asyncio, time\nopen('x')"),
    (tidy_rules.purity, "swarm/node.py", "import random\ndef f(rng: random.Random): rng.random()"),
    (tidy_rules.unstable_asyncio, "swarm/node_io.py", "asyncio.wait_for(x, 1)"),
    (
        tidy_rules.broad_except,
        "swarm/node_io.py",
        "try:\n  x\nexcept Exception:  # noqa: BLE001 - the root of the task\n  x",
    ),
    (tidy_rules.sleeping_test, "tests/test_x.py", "asyncio.sleep(0)"),
]


@pytest.mark.parametrize(("rule", "path", "snippet"), GOOD)
def test_a_rule_lets_pass(rule: Callable[[Source], list[str]], path: str, snippet: str) -> None:
    assert not rule(tidy_rules.parse(path, snippet))


@pytest.mark.parametrize(
    "line", ["x = 1  # TODO: more", "see /work/main", "in /home/anna/x", "as issue #12 says"]
)
def test_a_text_rule_catches(line: str) -> None:
    assert tidy_rules.unfinished("x.md", line) or tidy_rules.outside_talk("x.md", line)


@pytest.mark.parametrize("line", ["GET /v1/models", "~/.config/swarm", "todo lists", "a network/x"])
def test_a_text_rule_lets_pass(line: str) -> None:
    assert not tidy_rules.unfinished("x.md", line)
    assert not tidy_rules.outside_talk("x.md", line)
