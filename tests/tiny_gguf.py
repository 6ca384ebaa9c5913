"""A small GGUF file."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

LAYERS, HIDDEN, INNER, HEADS, KV_HEADS = 3, 32, 64, 4, 2


def write_gguf(path: Path, kind: Kind = Kind.Q8_0) -> int:
    """A tiny random llama with a byte-level tokenizer and its matrices in `kind`. Returns its
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
