"""GGUF files: one identity, the same ids as transformers gives for the file, cut or whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from engine_chain import Chain, load, parts
from tiny_gguf import HIDDEN, LAYERS, write_gguf
from tiny_models import reference_ids

from swarm.shard import checkpoint as rules
from swarm.shard.checkpoint_io import inspect
from swarm.shard.gguf_io import gguf_texts
from swarm.shard.load_io import read_config

PROMPT = [5, 17, 40, 8, 61, 33, 9, 72, 4]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path)
    return path


def test_facts_and_texts_of_a_gguf_file(file: Path, tmp_path: Path) -> None:
    found = inspect(file, tmp_path, gguf_texts)
    again = inspect(file, tmp_path / "other", gguf_texts)
    assert found.model_id == again.model_id
    config = read_config(file).to_dict()
    spec = rules.model_spec(found.model_id, "tiny", config, found.texts)
    assert (spec.layer_count, spec.hidden_size, spec.vocab_size) == (LAYERS, HIDDEN, 94)
    assert (spec.context_length, spec.eos_ids, spec.has_text) == (128, (93,), True)
    kept = json.loads((found.manifest_path.parent / "tokenizer.json").read_bytes())
    assert kept["model"]["merges"] == [["a", "b"]]
    assert b"transformers_version" not in found.texts["config.json"]


def test_sizes_of_a_gguf_file_are_those_of_what_is_loaded(file: Path, tmp_path: Path) -> None:
    tensors = inspect(file, tmp_path, gguf_texts).manifest.tensors
    sizes = rules.weight_sizes(tensors, 4)
    for part in parts(LAYERS, [1, 2]):
        norm = 4 * HIDDEN if part.head else 0
        held = sizes.largest_layer + part.embed * sizes.embed + part.head * sizes.head + norm
        filled = 16 * 4 * HIDDEN * part.head  # packed outputs come in sixteens
        assert held <= load(file, part).parameter_bytes <= held + filled


def test_a_cut_gguf_file_generates_what_the_whole_one_does(file: Path) -> None:
    whole = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        quantization_config=transformers.GgufConfig(dequantize=True),
        dtype=torch.float32,
    ).eval()
    expected = reference_ids(whole, PROMPT, 8)
    assert len(set(expected)) > 2
    for cuts in ([], [1], [1, 2]):
        assert Chain.of(file, cuts).generate(PROMPT, 8, chunk=4) == expected
