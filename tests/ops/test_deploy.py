"""Files under `deploy/`: read by their own tools where those are here, else held to the rules."""

from __future__ import annotations

import plistlib
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from swarm_procs import PROGRAM
from typer.main import get_command

from swarm.cli import app

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SERVICE = DEPLOY / "systemd" / "swarm.service"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"


def join_flags() -> set[str]:
    join = get_command(app).commands["join"]  # type: ignore[attr-defined]
    return {
        name for parameter in join.params for name in (*parameter.opts, *parameter.secondary_opts)
    }


def check_join(words: list[str]) -> None:
    """`swarm join` takes these words."""
    assert words[0] == "join"
    flags = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert flags and flags <= join_flags(), words


def lines_of_unit() -> list[tuple[str, str]]:
    lines = [line for line in SERVICE.read_text().splitlines() if "=" in line and line[0] != "#"]
    return [(name, value) for name, _, value in (line.partition("=") for line in lines)]


def test_the_unit_starts_a_node_that_may_leave() -> None:
    values = dict(lines_of_unit())
    program, *words = values["ExecStart"].split()
    assert program == "/usr/local/bin/swarm" and words.pop() == "$OPTIONS"
    check_join(words)
    assert values["Restart"] == "on-failure" and values["User"] == "swarm"
    assert int(values["TimeoutStopSec"]) > 10, "below gateway.leave_grace_s nothing moves in time"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    def verify(text: str) -> str:
        unit = tmp_path / "swarm.service"
        unit.write_text(text.replace("/usr/local/bin/swarm", str(PROGRAM)))
        ran = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", unit],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        lines = (ran.stdout + ran.stderr).splitlines()
        return "\n".join(line for line in lines if "swarm.service" in line)

    text = SERVICE.read_text()
    assert verify(text) == ""
    assert "Unknown key" in verify(text.replace("KillMode=mixed", "KilMode=mixed"))
    assert verify(text.replace("RestartSec=5", "RestartSec=soon")) != ""


def test_launchd_would_start_a_node() -> None:
    plist = plistlib.loads((DEPLOY / "launchd" / "swarm.node.plist").read_bytes())
    assert plist["Label"] == "swarm.node"
    check_join(plist["ProgramArguments"][1:])
    assert plist["KeepAlive"] == {"SuccessfulExit": False} and plist["RunAtLoad"] is True
    assert plist["Umask"] == 0o077 and plist["ExitTimeOut"] > 10


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", " ", DOCKERFILE.read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_image_is_made_of_what_is_there() -> None:
    known = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "ENV", "STOPSIGNAL",
             "HEALTHCHECK", "ENTRYPOINT", "CMD"}  # fmt: skip
    steps = instructions()
    assert {word for word, _ in steps} <= known and steps[0][0] == "FROM"
    let_in = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    for rest in (rest for word, rest in steps if word == "COPY" and "--from" not in rest):
        for source in rest.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in let_in, f"{source} is kept from the build"
    assert dict(steps)["USER"] == "swarm", "the last word on the user is not root"
    for image in (rest.split()[0] for word, rest in steps if word == "FROM"):
        assert ":" in image and not image.endswith(":latest")
    entry, command = yaml.safe_load(dict(steps)["ENTRYPOINT"]), yaml.safe_load(dict(steps)["CMD"])
    assert entry == ["swarm"]
    check_join(command)


def test_compose_runs_one_node_on_the_hosts_network() -> None:
    file = DEPLOY / "docker" / "compose.yaml"
    described: dict[str, Any] = yaml.safe_load(file.read_text())
    assert set(described) == {"services", "volumes"}
    service = described["services"]["swarm"]
    build = service["build"]
    assert ((file.parent / build["context"]) / build["dockerfile"]).resolve() == DOCKERFILE
    assert service["network_mode"] == "host" and "ports" not in service
    check_join(service["command"])
    named = {volume.split(":")[0] for volume in service["volumes"] if volume[0].isalpha()}
    assert named == set(described["volumes"])


def test_kubernetes_runs_one_node_on_every_machine() -> None:
    file = DEPLOY / "kubernetes" / "swarm.yaml"
    namespace, daemons = yaml.safe_load_all(file.read_text())
    assert namespace["kind"] == "Namespace" and daemons["kind"] == "DaemonSet"
    assert daemons["metadata"]["namespace"] == namespace["metadata"]["name"]
    spec = daemons["spec"]["template"]["spec"]
    labels = daemons["spec"]["template"]["metadata"]["labels"]
    assert daemons["spec"]["selector"]["matchLabels"] == labels
    assert spec["hostNetwork"] is True and spec["dnsPolicy"] == "ClusterFirstWithHostNet"
    (node,) = spec["containers"]
    check_join(node["args"])
    assert spec["terminationGracePeriodSeconds"] > 10
    volumes = {volume["name"] for volume in spec["volumes"]}
    for container in (node, *spec["initContainers"]):
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        assert not container["image"].endswith(":latest") and ":" in container["image"]
    gateway = next(word for word in node["args"] if word.startswith("--gateway="))
    for probe in ("startupProbe", "livenessProbe"):
        get = node[probe]["httpGet"]
        assert gateway == f"--gateway={get['host']}:{get['port']}" and get["path"] == "/healthz"


@pytest.mark.parametrize("file", [f for f in sorted(DEPLOY.rglob("*")) if f.is_file()], ids=str)
def test_every_file_has_a_page_that_says_how_to_check_it(file: Path) -> None:
    pages = {page: page.read_text() for page in (ROOT / "docs" / "ops").glob("*.md")}
    if file.name.endswith("dockerignore"):
        return
    naming = [text for text in pages.values() if str(file.relative_to(ROOT)) in text]
    assert any("## Check it" in text for text in naming), file
