"""Models of the hub, from a stand-in on loopback. Each fetch is a process of its own: the library
reads where the hub is and what may be asked of it when it is imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hub_like import COMMIT, HubLike
from tiny_models import save_tiny

from swarm.errors import ConfigError
from swarm.weights.hub import HubName, files_of, hub_name, weight_files

FETCH = """
import sys
from swarm.errors import ConfigError
from swarm.weights.hub import hub_name
from swarm.weights.hub_io import fetch
try:
    print(fetch(hub_name(sys.argv[1]), lambda line: print("say", line)))
except ConfigError as error:
    sys.exit(str(error))
"""


def fetch(
    hub: HubLike | str, cache: Path, name: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    url = hub if isinstance(hub, str) else hub.url
    environment = {
        **os.environ, "HF_ENDPOINT": url, "HF_HUB_CACHE": str(cache), "HF_HOME": str(cache),
        "TQDM_DISABLE": "1", **variables,
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", FETCH, name],
        env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("hub") / "tiny"
    save_tiny(folder, "llama")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return {**files, "README.md": b"# tiny", "pytorch_model.bin": b"never asked for"}


def test_a_model_comes_once_and_only_what_is_served_of_it(
    tmp_path: Path, tiny: dict[str, bytes]
) -> None:
    with HubLike({"some/tiny": tiny}) as hub:
        first = fetch(hub, tmp_path, "some/tiny")
        assert first.returncode == 0, first.stderr
        said, path = first.stdout.splitlines()
        assert said.startswith(f"say fetching some/tiny from {hub.url}: ")
        asked = {name for name, _ in hub.sent}
        assert asked == set(tiny) - {"README.md", "pytorch_model.bin"}
        assert all((Path(path) / name).read_bytes() == tiny[name] for name in asked)
        again = fetch(hub, tmp_path, "some/tiny")
        assert again.stdout.splitlines() == [path] and len(hub.sent) == len(asked)
    offline = fetch(hub.url, tmp_path, "some/tiny", HF_HUB_OFFLINE="1")
    assert offline.stdout.splitlines() == [path]


def test_a_download_that_was_cut_goes_on_where_it_was(tmp_path: Path) -> None:
    """The library writes some ten megabytes at a time."""
    data = b"GGUF" + os.urandom(24 << 20)
    with HubLike({"some/packed": {"a.gguf": data}}, cut_after={"a.gguf": 20 << 20}) as hub:
        for _ in range(2):
            done = fetch(hub, tmp_path, "some/packed/a.gguf")
            if done.returncode == 0:
                break
        first, second = (begin for _, begin in hub.sent)
    assert Path(done.stdout.splitlines()[-1]).read_bytes() == data
    assert first == 0 and 8 << 20 < second <= 20 << 20


def test_one_gguf_file_of_a_repository(tmp_path: Path) -> None:
    files = {"a-Q4_0.gguf": b"GGUF" + bytes(60), "a-Q8_0.gguf": b"GGUF" + bytes(90)}
    with HubLike({"some/packed": files}) as hub:
        one = fetch(hub, tmp_path, "some/packed/a-Q4_0.gguf")
        assert Path(one.stdout.splitlines()[-1]).read_bytes() == files["a-Q4_0.gguf"]
        whole = fetch(hub, tmp_path, "some/packed")
    assert whole.stderr.strip() == (
        "some/packed on the hub has no config.json; it has a-Q4_0.gguf, a-Q8_0.gguf"
    )


def test_what_cannot_be_had_is_one_sentence(tmp_path: Path, tiny: dict[str, bytes]) -> None:
    with HubLike({"some/tiny": tiny}) as hub:
        nothing = fetch(hub, tmp_path, "some/other")
        assert nothing.stderr.startswith("there is no some/other here, and none that may be read")
        revision = fetch(hub, tmp_path, "some/tiny@v9")
        assert revision.stderr.strip() == "some/tiny has no revision v9 on the hub"
        assert fetch(hub, tmp_path, f"some/tiny@{COMMIT}").returncode == 0
    with HubLike({"some/tiny": tiny}, token="hf_right") as hub:
        shut = fetch(hub, tmp_path / "b", "some/tiny")
        assert "HF_TOKEN" in shut.stderr and shut.stderr.count("\n") == 1
        opened = fetch(hub, tmp_path / "b", "some/tiny", HF_TOKEN="hf_right")
        assert opened.returncode == 0, opened.stderr
    gone = fetch(hub.url, tmp_path / "c", "some/tiny")
    assert f"{hub.url} cannot be reached" in gone.stderr and gone.stderr.count("\n") == 1
    offline = fetch(hub.url, tmp_path / "c", "some/tiny", HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE is set" in offline.stderr and offline.stderr.count("\n") == 1


@pytest.mark.parametrize(("status", "is_final"), [(403, True), (429, False), (503, False)])
def test_a_hub_that_is_busy_is_asked_again_later(
    tmp_path: Path, status: int, is_final: bool
) -> None:
    with HubLike({}, refuses_with=status) as hub:
        environment = {
            **os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path),
            "HF_HOME": str(tmp_path), "TQDM_DISABLE": "1",
        }  # fmt: skip
        with subprocess.Popen(
            [sys.executable, "-m", "swarm.weights.hub_io", "some/tiny", "all"],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            said = process.stdout.read().splitlines()
    told = json.loads(said[-1])
    assert told["is_final"] is is_final and "some/tiny" in told["failed"], told


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("org/name", HubName("org/name", None, None)),
        ("org/na.me-1@v2", HubName("org/na.me-1", None, "v2")),
        ("org/name/x-Q4_0.gguf", HubName("org/name", "x-Q4_0.gguf", None)),
        ("org/name/sub/x.gguf@main", HubName("org/name", "sub/x.gguf", "main")),
        ("name", None),
        ("./models/name", None),
        ("/models/name", None),
        ("../name", None),
        ("a/b/c", None),
        ("", None),
    ],
)
def test_names_of_the_hub(text: str, wanted: HubName | None) -> None:
    assert hub_name(text) == wanted


def test_of_several_weight_files_those_that_the_index_names() -> None:
    name = HubName("org/name", None, None)
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    sizes = dict.fromkeys(
        ["config.json", "model.safetensors.index.json", "model-1.safetensors",
         "model-2.safetensors", "consolidated.safetensors", "original/model.safetensors"], 1,
    )  # fmt: skip
    assert files_of(name, sizes) == ["config.json", "model.safetensors.index.json"]
    data = json.dumps(index).encode()
    assert weight_files(name, data, sizes) == ["model-1.safetensors", "model-2.safetensors"]
    with pytest.raises(ConfigError, match="lacks model-2"):
        weight_files(name, data, {k: v for k, v in sizes.items() if k != "model-2.safetensors"})
    with pytest.raises(ConfigError, match="cannot be read"):
        weight_files(name, b"[]", sizes)
