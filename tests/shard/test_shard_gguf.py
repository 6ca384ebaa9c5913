"""GGUF files: one identity, the same ids as transformers gives for the file, cut or whole."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from engine_chain import Chain, load, parts
from tiny_models import reference_ids

from swarm.shard import checkpoint as rules
from swarm.shard.checkpoint_io import inspect
from swarm.shard.gguf_io import gguf_texts
from swarm.shard.load_io import read_config

LAYERS, HIDDEN, INNER, HEADS, KV_HEADS = 3, 32, 64, 4, 2
PROMPT = [5, 17, 40, 8, 61, 33, 9, 72, 4]


def write_gguf(path: Path) -> int:
    """A tiny random llama with a byte-level tokenizer, its matrices in Q8_0. Returns its
    vocabulary."""
    tokens = [*(chr(ord("!") + i) for i in range(90)), "Ġ", "ab", "<s>", "</s>"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(tokens) - 2) + [3, 3])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(len(tokens) - 2)
    writer.add_eos_token_id(len(tokens) - 1)
    rng = np.random.default_rng(3)

    def matrix(name: str, rows: int, columns: int) -> None:
        values = rng.normal(0, 0.3, (rows, columns)).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    def norm(name: str) -> None:
        writer.add_tensor(name, np.ones(HIDDEN, dtype=np.float32))

    matrix("token_embd.weight", len(tokens), HIDDEN)
    matrix("output.weight", len(tokens), HIDDEN)
    norm("output_norm.weight")
    for layer in range(LAYERS):
        narrow = HIDDEN * KV_HEADS // HEADS
        matrix(f"blk.{layer}.attn_q.weight", HIDDEN, HIDDEN)
        matrix(f"blk.{layer}.attn_k.weight", narrow, HIDDEN)
        matrix(f"blk.{layer}.attn_v.weight", narrow, HIDDEN)
        matrix(f"blk.{layer}.attn_output.weight", HIDDEN, HIDDEN)
        matrix(f"blk.{layer}.ffn_gate.weight", INNER, HIDDEN)
        matrix(f"blk.{layer}.ffn_up.weight", INNER, HIDDEN)
        matrix(f"blk.{layer}.ffn_down.weight", HIDDEN, INNER)
        norm(f"blk.{layer}.attn_norm.weight")
        norm(f"blk.{layer}.ffn_norm.weight")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return len(tokens)


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
