"""The integers of a GGUF file for the linears they belong to, so that nothing is rounded twice.

Which tensor a linear's is, and in which order its rows are, is guessed by the usual names and then
proven: only integers that stand for the weight that transformers loaded are taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import torch

from swarm.kernels.quantize import GROUP, GroupWeight, dequantized
from swarm.shard.quantized import Source

_NAMES = {
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output",
    "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down",
}  # fmt: skip
_LINEAR = re.compile(r"layers\.(\d+)\.(?:\w+\.)*(\w+)$")
_HEADS = ("output.weight", "token_embd.weight")
_RELATIVE = 2.0**-7
"""The loaded weight may be rounded to bfloat16."""


def gguf_source(path: Path, config: Any, quantization: str) -> Source:
    """For `quantize_model`. With int4, layers of 8 bits in the file are not taken."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    heads = {config.num_attention_heads, getattr(config, "num_key_value_heads", None) or 1}

    def source(name: str, weight: torch.Tensor) -> GroupWeight | None:
        match = _LINEAR.search(name)
        wanted: tuple[str, ...] = _HEADS
        if match is not None:
            wanted = (f"blk.{match.group(1)}.{_NAMES.get(match.group(2))}.weight",)
        tensor = next((tensors[key] for key in wanted if key in tensors), None)
        found = None if tensor is None else _integers(tensor)
        if found is None or found.values.shape != weight.shape:
            return None
        if match is not None and quantization == "int4" and found.bits == 8:
            return None
        return next((one for one in _orders(found, heads) if _stands_for(one, weight)), None)

    return source


def _integers(tensor: Any) -> GroupWeight | None:
    """Of [N, K] in blocks of 32, where they are of a kind that is kept as it is."""
    kind = tensor.tensor_type
    sizes = {
        gguf.GGMLQuantizationType.Q4_0: 2 + GROUP // 2,
        gguf.GGMLQuantizationType.Q4_1: 4 + GROUP // 2,
        gguf.GGMLQuantizationType.Q8_0: 2 + GROUP,
    }
    if kind not in sizes or tensor.data.ndim != 2:
        return None
    rows = len(tensor.data)
    blocks = torch.from_numpy(tensor.data.copy()).view(rows, -1, sizes[kind])
    inputs = blocks.shape[1] * GROUP
    scale = blocks[..., :2].contiguous().view(torch.float16)[..., 0]
    if kind == gguf.GGMLQuantizationType.Q8_0:
        values = blocks[..., 2:].contiguous().view(torch.int8).flatten(1)
        return GroupWeight(values, scale, None, bits=8, inputs=inputs)
    minimum = None
    if kind == gguf.GGMLQuantizationType.Q4_1:
        minimum = blocks[..., 2:4].contiguous().view(torch.float16)[..., 0]
    halves = blocks[..., -GROUP // 2 :]
    values = torch.cat([halves & 15, halves >> 4], dim=-1).to(torch.int8).flatten(1)
    return GroupWeight(values, scale, minimum, bits=4, inputs=inputs)


def _orders(weight: GroupWeight, heads: set[int]) -> Iterator[GroupWeight]:
    """As it is; and with each head's rotary halves side by side, as llama files interleave them."""
    yield weight
    count = len(weight.values)
    for number in sorted(heads):
        if count % (2 * number) == 0:
            order = torch.arange(count).view(number, -1, 2).transpose(1, 2).flatten()
            minimum = None if weight.minimum is None else weight.minimum[order]
            yield GroupWeight(
                weight.values[order], weight.scale[order], minimum, weight.bits, weight.inputs
            )


def _stands_for(integers: GroupWeight, weight: torch.Tensor) -> bool:
    plain = weight.float()
    least = float(plain.abs().max()) * 1e-6
    return bool(torch.allclose(dequantized(integers), plain, rtol=_RELATIVE, atol=least))
