"""Every command of README and docs is typed here, or it is said where else it is run, and why.

A command that is new in a document fails the first test until it stands in one of the tables.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from documented import ROOT, commands
from tiny_models import save_tiny

BIN = Path(sys.executable).parent
DEADLINE_S = 300.0
LOOK_S = 0.05
NODES = "--node 24GB:cuda --node 8GB:cpu"
PLAIN_CURL = "curl -s http://127.0.0.1:8000/healthz"

ON_A_NODE = {
    # as documented: what is typed, where that has something to fill in
    "swarm status": "",
    "swarm explain": "",
    "swarm invite": "",
    "swarm models": "swarm models list",
    "swarm doctor": "swarm doctor --no-torch || test $? -eq 1",
    f"swarm plan MODEL {NODES}": f"swarm plan models/smollm2 {NODES}",
    "swarm bench http://HOST:PORT --concurrency 1,4,16": (
        "swarm bench {gateway} --concurrency 1,2 --requests 2 --max-tokens 4"
    ),
    "swarm keys add NAME": "swarm keys add otto",
    "swarm keys add anna --models smollm2 --rate 10/s --tokens-per-day 100000": "",
    "swarm keys add prometheus --rate 10/s --models none": "",
    "swarm keys list": "",
    "swarm keys revoke anna": "",
    "swarm usage [--since 2026-01-31] [--csv | --json]": "swarm usage --since 2026-01-31 --csv",
    "swarm usage --nodes [--csv | --json]": "swarm usage --nodes --json",
    "swarm usage": "",
    "swarm usage --swarm": "",
    "swarm usage --swarm [--csv | --json]": "swarm usage --swarm --csv",
    "swarm key": "swarm key --help",
    "swarm key show": "",
    "swarm key show --home /var/lib/swarm": "swarm key show --home {home}",
    "swarm key rotate": "",
    "swarm load MODEL": "swarm load {tiny} --served-model-name second",
    "swarm unload NAME": "swarm unload second",
    "swarm join --help": "",
    "swarm sim": "swarm sim --seed 1 --nodes 3 --minutes 0.05",
    PLAIN_CURL: "curl -s {gateway}/healthz",
}
"""Run one after the other beside a node that serves a model; each must end well."""

JOINS = {
    "swarm join --key": "swarm join --key {key} --gateway-only",
    "swarm join --key …": "swarm join --key {key}",
    "swarm join INVITE": "swarm join {invite} --gateway-only",
    "swarm join --peer HOST:PORT": "swarm join --key {key} --peer {listen} --gateway-only",
    "swarm join --open": "swarm join --open --gateway-only",
    "swarm join --gateway HOST:PORT": "swarm join --gateway 127.0.0.1:0 --gateway-only",
    "swarm join --gateway-only": "",
    "swarm join --yield-to-owner": "swarm join --yield-to-owner --gateway-only",
    "swarm join": "swarm join --gateway-only",
}
"""Each starts a node of its own, which answers and leaves."""

IN_THE_STORY = {
    "scripts/setup && scripts/fetch_model smollm2 && source .venv/bin/activate",
    "scripts/setup && source .venv/bin/activate",
    "scripts/setup",
    "scripts/fetch_model smollm2",
    "swarm join --model models/smollm2",
    "swarm join --model path/to/checkpoint",
    "swarm chat",
    "swarm map",
    "swarm logs --level warning",
    "swarm leave",
    "swarm leave --in 5m",
    "swarm leave --stay",
    "swarm key revoke NODE",
}
"""Typed by name in `test_a_readers_way`."""

SIMULATIONS = {
    "scripts/sim --list": "",
    "scripts/sim --seed 1": "",
    "scripts/sim --seed 4 --scenario double-death": "",
    "scripts/sim --seeds 300": "scripts/sim --seeds 2",
    "scripts/sim --seeds 500 --first-seed 200001": "scripts/sim --seeds 2 --first-seed 200001",
    "scripts/sim --seeds 20 --scenario all": "scripts/sim --seeds 1 --scenario peer-death",
    'scripts/sim --seeds 40 --scenario "long answers"': (
        'scripts/sim --seeds 1 --scenario "long answers"'
    ),
    "scripts/sim --scenario lost-cover --seeds 30": "scripts/sim --scenario lost-cover --seeds 1",
    "scripts/sim --figures false-deaths --seeds 100 --first-seed 2001": (
        "scripts/sim --figures false-deaths --seeds 1 --first-seed 2001 --minutes 0.2"
    ),
    "scripts/sim --figures false-cut-overs --seeds 24 --first-seed 2001": (
        "scripts/sim --figures false-cut-overs --seeds 1 --first-seed 2001 --minutes 0.2"
    ),
    "scripts/sim --figures heal": "scripts/sim --figures heal --seeds 1 --nodes 4",
}
"""The same command, with fewer seeds where that says enough. Its other figures, explanations and
ablations are played by tests/sims."""

ELSEWHERE = {
    r"scripts/sim( --(ablations|report DIR|figures [\w-]+))?$": "tests/sims",
    r"scripts/sim --seed \d --watch( --speed 0.1)?$": (
        "needs a terminal: tests/sims/test_sim_cli_views.py"
    ),
    r"scripts/sim --seed 17 --scenario mixed --explain$": "tests/sims/test_sim_cli.py",
    r"scripts/sim --seed 1 --scenario small-outboxes --without outbox-budget$": (
        "tests/sims/test_sim_ablations.py"
    ),
    r"scripts/(demo|bench_\w+|soak\w*|hostile_http|shots)( |$)": (
        "minutes each: tests/acceptance/test_swarm_programs.py runs those that others need in "
        "small, and the test below that they know these options"
    ),
    r"scripts/(test( --all)?|check)$": "they run this",
    r"(OPENAI|ANTHROPIC)_BASE_URL=\S+ \w+=none$": (
        "tests/acceptance/test_swarm_clients.py: the clients themselves"
    ),
    r"OLLAMA_HOST=\S+ ollama run smollm2$": "the same, by the Python client of that program",
    r"curl http://127.0.0.1:8000/v1/chat/completions ": "in `test_a_readers_way`, by its own URL",
    r"swarm link 1\\0$": "no command: a label of the handshake",
    r"(MODELS_DIR=\S+ MODEL=\S+ )?docker ": "needs a container engine; tests/ops/test_deploy.py",
    r"(swarm key new --home ./first && )?kubectl ": "needs a cluster; tests/ops/test_deploy.py",
    r"python3 -m venv /usr/local/lib/swarm && ": "tests/ops/test_wheel.py, in a folder of its own",
    r"ln -s /usr/local/lib/swarm/bin/swarm ": "changes the machine",
    r"sudo |plutil |tail /usr/local/var/log/swarm.log$": "needs launchd or another user",
    r"(systemctl|systemd-analyze|journalctl|useradd|install) ": (
        "changes the machine; tests/ops/test_deploy.py checks the unit"
    ),
}


def reason(command: str) -> str | None:
    return next((why for how, why in ELSEWHERE.items() if re.match(how, command)), None)


def test_every_documented_command_is_accounted_for() -> None:
    named = commands()
    here = {*ON_A_NODE, *JOINS, *IN_THE_STORY, *SIMULATIONS}
    unknown = {c: where for c, where in named.items() if c not in here and reason(c) is None}
    assert not unknown, "put them into a table of this file"
    assert not here - named.keys(), "no document names these any more"
    idle = [how for how in ELSEWHERE if not any(re.match(how, command) for command in named)]
    assert not idle, "no document names such commands any more"


@pytest.mark.parametrize(
    "command", sorted(c for c in commands() if re.match(r"scripts/(bench|soak|shots|host)", c))
)
def test_programs_know_the_options_that_are_documented(command: str) -> None:
    name, *words = command.removeprefix("scripts/").split(" ")
    options = [word for word in words if word.startswith("--")]
    if not options:
        return
    program = ROOT / "scripts" / "programs" / f"{name}.py"
    ran = subprocess.run(
        [sys.executable, program, "--help"], capture_output=True, text=True, check=True
    )
    for option in options:
        assert re.search(rf"{option}\b", ran.stdout), command


# ---------------------------------------------------------------- a machine


@dataclass
class Machine:
    """A user of this computer with a home that was empty."""

    folder: Path
    terminal: str = "terminal"

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "SWARM_"))}
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        return kept | {"HOME": str(self.folder), "PATH": path, "NO_COLOR": "1", "COLUMNS": "200"}

    @property
    def home(self) -> Path:
        return self.folder / ".swarm"

    def run(self, command: str, stdin: str = "") -> str:
        """Type it; what it printed. It must end well."""
        ran = subprocess.run(
            ["bash", "-c", command], input=stdin, env=self.environment, cwd=ROOT, check=False,
            capture_output=True, text=True, timeout=DEADLINE_S,
        )  # fmt: skip
        assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
        return ran.stdout

    @contextmanager
    def stays(self, command: str) -> Iterator[subprocess.Popen[str]]:
        """It goes on while others are typed; ended by whoever is inside, at last by this."""
        log = self.folder / self.terminal
        with log.open("w") as out:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"], env=self.environment, cwd=ROOT, text=True,
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            yield process
            assert process.wait(DEADLINE_S) == 0, log.read_text()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    def gateway(self, process: subprocess.Popen[str]) -> str:
        """The address that its running node answers at, once it does."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end and process.poll() is None:
            if (row := self.home / "gateway.json").exists():
                return str(json.loads(row.read_text())["url"])
            with suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_S)
        raise AssertionError((self.folder / self.terminal).read_text())

    def beside(self, name: str) -> Machine:
        """The same user in another terminal."""
        return Machine(self.folder, name)

    def looks_at(self, command: str, sign: str, key: str) -> None:
        """On a terminal, until `sign` is seen; then `key` ends it."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(ROOT)
            shell = self.environment | {"TERM": "xterm-256color", "LINES": "40"}
            os.execvpe("bash", ["bash", "-c", f"exec {command}"], shell)
        seen, end, is_typed = b"", time.monotonic() + DEADLINE_S, False
        while time.monotonic() < end:
            if sign.encode() in seen and not is_typed:
                os.write(terminal, key.encode())
                is_typed = True
            if not select.select([terminal], [], [], 1.0)[0]:
                continue
            try:
                piece = os.read(terminal, 1 << 16)
            except OSError:  # how Linux says that the other side is gone
                break
            if not piece:
                break
            seen += piece
        else:
            os.kill(pid, signal.SIGKILL)
        os.close(terminal)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert is_typed and status == 0, seen[-2000:]


def machine(folder: Path) -> Machine:
    folder.mkdir()
    return Machine(folder)


# ---------------------------------------------------------------- typing them


@pytest.mark.xdist_group("processes")
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_a_readers_way(tmp_path: Path, smollm2: Path) -> None:
    """README and what it leads to, on one machine, then another one that joins in each way."""
    first = machine(tmp_path / "first")
    with first.stays("swarm join --model models/smollm2") as node:
        gateway = first.gateway(node)
        assert first.run("swarm chat", "Hello\n").strip()
        first.run(_curl_of_readme().replace("http://127.0.0.1:8000", gateway))
        first.looks_at("swarm map", "layers", "q")
        save_tiny(tmp_path / "tiny", "llama")
        filled = {"gateway": gateway, "home": str(first.home), "tiny": str(tmp_path / "tiny")}
        for documented, typed in ON_A_NODE.items():
            first.run((typed or documented).format(**filled))
        first.run("swarm leave --in 5m")
        assert "leaves in about 5 min" in first.run("swarm status")
        first.run("swarm leave --stay")
        filled |= _ways_in(first)
        known = {}
        for number, (documented, typed) in enumerate(JOINS.items()):
            other = machine(tmp_path / f"other{number}")
            with other.stays((typed or documented).format(**filled)) as joined:
                other.gateway(joined)
                known[documented] = json.loads(other.run("swarm status --json"))["node_id"]
                other.run("swarm leave")
        first.run(f"swarm key revoke {known['swarm join INVITE']}")
        logs = first.beside("logs")
        with logs.stays("swarm logs --level warning"):
            first.run("swarm leave")


def _curl_of_readme() -> str:
    return next(c for c in commands() if c.startswith("curl http://127.0.0.1:8000/v1/chat"))


def _ways_in(first: Machine) -> dict[str, str]:
    """What the documents leave to fill in when another machine joins."""
    invite = json.loads(first.run("swarm invite --json"))
    return {
        "key": json.loads(first.run("swarm key show --json"))["key"],
        "invite": invite["invite"],
        "listen": invite["addresses"][0],
    }


@pytest.mark.parametrize("documented", SIMULATIONS)
def test_simulations(documented: str, tmp_path: Path) -> None:
    typed = (SIMULATIONS[documented] or documented).removeprefix("scripts/sim")
    assert machine(tmp_path / "home").run(f"python -m sims{typed}")
