"""`pip install .` brings all that a node needs, also what lies beside the Python files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEVER = ("tests/", "docs/", "models/", "scripts/")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from a copy of what git knows or would take, without network and without isolation."""
    folder = tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "swarm", "sims",
         "pyproject.toml", "README.md", "LICENSE"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    for name in listed.stdout.splitlines():
        target = folder / "source" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            shutil.copyfile(ROOT / name, target)
    ran = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index",
         "--quiet", "--wheel-dir", folder, folder / "source"],
        capture_output=True, text=True, check=False, env=os.environ | {"PIP_NO_INPUT": "1"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    (built,) = folder.glob("*.whl")
    return zipfile.ZipFile(built)


def test_every_file_of_the_program_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    inside = set(wheel.namelist())
    own = [
        str(file.relative_to(ROOT))
        for top in ("swarm", "sims")
        for file in (ROOT / top).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".pyc"
    ]
    missing = sorted(name for name in own if name not in inside)
    assert missing == [], "name them under [tool.setuptools.package-data]"
    assert any(name.endswith(".cpp") for name in inside), (
        "the native kernels are built on first use"
    )


def test_nothing_else_is(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"swarm", "sims"}
    assert not [name for name in wheel.namelist() if name.startswith(NEVER)]


def test_the_command_is_installed_with_it(wheel: zipfile.ZipFile) -> None:
    (entry,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "swarm = swarm.__main__:main" in wheel.read(entry).decode()
