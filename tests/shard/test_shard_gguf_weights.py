"""Integers of a GGUF file go in as they are, and only where they stand for the loaded weight."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from swarm.kernels.quantize import dequantized
from swarm.shard.gguf_weights_io import gguf_source

CONFIG = SimpleNamespace(num_attention_heads=4, num_key_value_heads=2)
LAYER = "model.layers.0.self_attn.v_proj"


def written(folder: Path, name: str, plain: torch.Tensor, kind: Kind) -> tuple[Path, torch.Tensor]:
    """A file with one tensor; and what its integers stand for."""
    packed = gguf.quants.quantize(plain.numpy(), kind)
    path = folder / "one.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor(name, packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, torch.from_numpy(np.asarray(gguf.quants.dequantize(packed, kind)))


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0], ids=lambda kind: kind.name)
def test_blocks_are_read_as_gguf_reads_them(tmp_path: Path, kind: Kind) -> None:
    plain = torch.randn(16, 96)
    path, meant = written(tmp_path, "blk.0.attn_v.weight", plain, kind)
    source = gguf_source(path, CONFIG, "int8")
    for loaded in (meant, meant.bfloat16()):
        found = source(LAYER, loaded)
        assert found is not None
        assert torch.equal(dequantized(found), meant)
    assert source(LAYER, meant + 0.1) is None, "another weight"
    assert source(LAYER.replace("v_proj", "o_proj"), meant) is None
    taken = gguf_source(path, CONFIG, "int4")(LAYER, meant)
    assert (taken is None) == (kind is Kind.Q8_0), "8 bits are not 4"


def test_interleaved_heads_are_put_in_order(tmp_path: Path) -> None:
    plain = torch.randn(16, 64)
    path, meant = written(tmp_path, "blk.0.attn_q.weight", plain, Kind.Q4_0)
    loaded = meant.view(4, 2, 2, 64).transpose(1, 2).reshape(16, 64)
    found = gguf_source(path, CONFIG, "int4")(LAYER.replace("v_proj", "q_proj"), loaded)
    assert found is not None and torch.equal(dequantized(found), loaded)


def test_a_tied_head_is_found_and_other_kinds_are_left(tmp_path: Path) -> None:
    path, meant = written(tmp_path, "token_embd.weight", torch.randn(32, 64), Kind.Q8_0)
    assert gguf_source(path, CONFIG, "int4")("lm_head", meant) is not None
    path, meant = written(tmp_path, "token_embd.weight", torch.randn(32, 64), Kind.F16)
    assert gguf_source(path, CONFIG, "int4")("lm_head", meant) is None
