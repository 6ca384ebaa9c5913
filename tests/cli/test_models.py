"""`swarm models`: what came from peers is shown, checked and removed, without a running node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from whole_model import Whole, raw

from swarm import cli
from swarm.commands.models_io import ranges
from swarm.terms import LayerRange
from swarm.weights.store_io import ModelStore


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Whole, Path]:
    """Layers 1 and 2 of a model in a cache that the environment names."""
    model = raw(tmp_path, 4, vocab=100)
    store = ModelStore(tmp_path / "models", 0, 0)
    path = store.begin(model.model_id, "small", model.files)
    for plan in model.plans(LayerRange(1, 3)):
        pieces = model.pieces(plan)
        store.have(model.model_id, plan, pieces)
        for piece in pieces:
            store.put(model.model_id, piece, model.data(piece))
        store.finish(model.model_id, plan)
    store.close()
    monkeypatch.setenv("SWARM_WEIGHTS_CACHE_DIR", str(tmp_path / "models"))
    return model, path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.main(["models", *arguments, "--home", "nowhere"])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_what_is_kept_is_listed_checked_and_removed(
    capsys: pytest.CaptureFixture[str], kept: tuple[Whole, Path]
) -> None:
    model, path = kept
    status, text, _ = run(capsys, "list")
    assert status == 0
    assert "small" in text and "1:3" in text and model.model_id[:8] in text
    (row,) = json.loads(run(capsys, "list", "--json")[1])
    assert (row["layers"], row["in_use"], row["path"]) == ([1, 2], False, str(path))
    assert run(capsys, "verify", "small")[:2] == (0, "all files are what they should be\n")
    file = path / "layer-0002.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    status, text, _ = run(capsys, "verify", model.model_id[:6])
    assert status == 1
    assert "layer-0002" in text
    assert run(capsys, "rm", "small")[0] == 0
    assert not path.exists()
    status, _, error = run(capsys, "rm", "small")
    assert status == 1
    assert "there is no model small" in error


def test_names_from_peers_are_shown_as_they_are(
    capsys: pytest.CaptureFixture[str], kept: tuple[Whole, Path]
) -> None:
    """Whatever the console would take for its own markup."""
    _, path = kept
    for name in ("[/]", "[red]loud[/red]"):
        (path / "swarm.json").write_text(json.dumps({"name": name}))
        status, text, _ = run(capsys, "list")
        assert (status, name in text) == (0, True)


def test_what_a_node_uses_is_not_removed(
    capsys: pytest.CaptureFixture[str], kept: tuple[Whole, Path]
) -> None:
    model, path = kept
    node = ModelStore(path.parent, 0, 0)
    node.begin(model.model_id, "small", model.files)
    assert "in use" in run(capsys, "list")[1]
    status, _, error = run(capsys, "rm", "small")
    assert status == 1
    assert "in use by a running node" in error
    node.close()


def test_layers_are_shown_as_ranges() -> None:
    assert ranges(()) == ""
    assert ranges((0, 1, 2, 5)) == "0:3 5:6"
