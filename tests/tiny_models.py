"""Tiny random models of many families, saved as ordinary checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

VOCAB = 96
LAYERS = 4

_BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
_ALTERNATING = ["sliding_attention", "full_attention"] * 2
_LINEAR: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_LATENT: dict[str, Any] = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "head_dim": 8,
    "num_key_value_heads": 4,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}

CHUNKED = 8
"""Width of chunked attention."""
WINDOW = 7
"""Sliding window of the models that have one: shorter than most prompts of the tests."""

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": False},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {},
    "qwen3_moe": _EXPERTS | {"decoder_sparse_step": 1, "norm_topk_prob": True},
    "qwen3_next": _EXPERTS | _LINEAR | {"shared_expert_intermediate_size": 16},
    "qwen3_5_text": _LINEAR,
    "mistral": {"sliding_window": WINDOW},
    "mixtral": _EXPERTS,
    "phi3": {"sliding_window": None},
    "gemma2": {"sliding_window": WINDOW, "layer_types": _ALTERNATING, "tie_word_embeddings": False},
    "gemma3_text": {
        "sliding_window": WINDOW,
        "layer_types": _ALTERNATING,
        "tie_word_embeddings": False,
    },
    "gemma4_text": {
        "sliding_window": WINDOW,
        "layer_types": _ALTERNATING,
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
        "global_head_dim": 8,
        "tie_word_embeddings": False,
    },
    "olmo2": {},
    "glm4": {"partial_rotary_factor": 0.5},
    "glm4_moe": _EXPERTS | {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    "gpt_oss": _EXPERTS | {"sliding_window": WINDOW, "layer_types": _ALTERNATING},
    "deepseek_v3": _EXPERTS | _LATENT,
    "deepseek_v32": _EXPERTS
    | _LATENT
    | {"index_topk": 64, "index_head_dim": 16, "index_n_heads": 2},
    "llama4_text": _EXPERTS | {"intermediate_size_mlp": 48, "attention_chunk_size": CHUNKED},
    "nemotron_h": _EXPERTS
    | {
        "layers_block_type": ["mamba", "attention"] * 2,
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "ssm_state_size": 8,
        "n_groups": 2,
    },
    "granite": {
        "embedding_multiplier": 3.0,
        "logits_scaling": 2.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.3,
    },
    "smollm3": {},
    "minimax_m2": _EXPERTS | {"rotary_dim": 4},
    "lfm2": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "cohere2": {"sliding_window": WINDOW, "layer_types": _ALTERNATING, "logit_scale": 0.5},
    "gpt2": {"n_embd": 32, "n_layer": LAYERS, "n_head": 4, "n_positions": 256},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "gpt_neox": {},
    "phi": {},
    "starcoder2": {"sliding_window": None},
    "stablelm": {},
    "granitemoehybrid": _EXPERTS
    | {
        "layer_types": ["mamba", "attention"] * 2,
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "mamba_d_state": 8,
        "mamba_expand": 2,
        "shared_intermediate_size": 16,
        "position_embedding_type": "rope",
    },
    "kimi_linear": _EXPERTS
    | _LATENT
    | {
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "linear_attn_config": {
            "kda_layers": [1, 3],
            "full_attn_layers": [2, 4],
            "head_dim": 8,
            "num_heads": 4,
            "short_conv_kernel_size": 4,
        },
    },
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 8, "expand": 2, "n_groups": 1},
    "olmoe": _EXPERTS,
}
"""Families that can be cut between any two layers."""

UNCUTTABLE: dict[str, dict[str, Any]] = {
    "gemma4_text": FAMILIES["gemma4_text"]
    | {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB},
    "gemma3n_text": {
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": VOCAB,
        "sliding_window": WINDOW,
        "layer_types": _ALTERNATING,
        "num_kv_shared_layers": 0,
        "laurel_rank": 4,
        "altup_num_inputs": 2,
        "activation_sparsity_pattern": [0.0] * LAYERS,
    },
}


def tiny_config(family: str, **changes: Any) -> Any:
    kind = type(transformers.AutoConfig.for_model(family))
    return kind(**(_BASE | FAMILIES.get(family, {}) | changes))


def with_vision(family: str) -> Any:
    """Config of a checkpoint that can also see; its vision tower has as many layers."""
    text = tiny_config(f"{family}_text").to_dict()
    if family == "gemma3":
        vision = {
            "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": LAYERS,
            "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
        }  # fmt: skip
        tokens = {"image_token_id": 95, "boi_token_id": 94, "eoi_token_id": 93}
        return transformers.Gemma3Config(
            text_config=text, vision_config=vision, mm_tokens_per_image=4, **tokens
        )
    vision = {
        "hidden_size": 16, "intermediate_size": 16, "depth": LAYERS, "num_heads": 2,
        "out_hidden_size": 32,
    }  # fmt: skip
    tokens = {"image_token_id": 95, "video_token_id": 94}
    return transformers.AutoConfig.for_model(
        family, text_config=text, vision_config=vision, **tokens
    )


def save_tiny(folder: Path, family: str, **changes: Any) -> Any:
    """Save a tiny random model of a family; returns it as transformers runs it whole."""
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(tiny_config(family, **changes)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 and "norm" not in name:
                parameter.normal_(0.0, 0.1)
    model.save_pretrained(folder)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def reference_ids(model: Any, prompt: list[int], count: int) -> list[int]:
    """Greedy ids of `model.generate`, without stopping at an end-of-sequence id."""
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return [int(token) for token in output[0, len(prompt) :]]
