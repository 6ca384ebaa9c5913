"""What a model is made of, from its config alone: `python -m swarm.shard.outline_io MODEL`.

A process of its own, for `swarm plan`: it builds the model on the meta device, so that no weight
is needed, read or allocated, and prints one line of JSON.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers

from swarm.errors import ShardError
from swarm.shard import checkpoint as rules
from swarm.shard.checkpoint import TensorEntry
from swarm.shard.load_io import LOAD_ERRORS, read_config
from swarm.terms import ModelId

Json = dict[str, Any]
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
FLOAT = "F32"
"""Any name of a float: sizes are counted by element."""


def outline(path: Path) -> Json:
    """MODEL is a folder with a config.json, a GGUF file, or a config as a .json file of any name.

    Raises ShardError in one sentence.
    """
    if path.suffix == ".json" and path.is_file():
        with tempfile.TemporaryDirectory() as folder:
            shutil.copyfile(path, Path(folder) / rules.CONFIG_NAME)
            is_plain = path.name == rules.CONFIG_NAME
            name = path.resolve().parent.name if is_plain else path.stem
            return _outline(read_config(Path(folder)), name)
    return _outline(read_config(path), path.stem if path.is_file() else path.resolve().name)


def _outline(config: Any, name: str) -> Json:
    filled = config.to_dict()
    spec = rules.model_spec(ModelId(""), name, filled, {})
    tensors = _tensors(config)
    ones = rules.weight_sizes(tensors, 1)
    layers = {key: entry for key, entry in tensors.items() if rules.layer_of(key) is not None}
    experts = sum(math.prod(e.shape) for key, e in layers.items() if ".experts." in key)
    whole = sum(math.prod(entry.shape) for entry in layers.values())
    linear = sum(math.prod(entry.shape) for entry in layers.values() if len(entry.shape) > 1)
    own = config.dtype or config.get_text_config(decoder=True).dtype or torch.float32
    return {
        "name": name,
        "layer_count": spec.layer_count,
        "hidden_size": spec.hidden_size,
        "vocab_size": spec.vocab_size,
        "context_length": spec.context_length,
        "element_bytes": own.itemsize,
        "largest_layer_elements": ones.largest_layer,
        "layers_elements": whole,
        "layers_linear_elements": linear,
        "layers_active_elements": whole - round(experts * (1 - _active_part(filled))),
        "embed_elements": ones.embed,
        "head_elements": ones.head,
        "kv_elements_per_token_layer": rules.kv_bytes_per_token_layer(filled, 1),
    }


def _tensors(config: Any) -> dict[str, TensorEntry]:
    try:
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
    except LOAD_ERRORS as error:
        lines = str(error).strip().splitlines()
        raise ShardError(
            f"a model of this config cannot be built: {lines[0] if lines else type(error).__name__}"
        ) from error
    return {
        name: TensorEntry(FLOAT, tuple(parameter.shape), "", 0)
        for name, parameter in model.named_parameters()
    }


def _active_part(config: Json) -> float:
    """Of the experts, those that one token passes; 1 for a model without."""
    text = rules.text_section(config)
    count = next((text[key] for key in EXPERTS if isinstance(text.get(key), int)), 0)
    chosen = text.get("num_experts_per_tok") or text.get("experts_per_token")
    return min(1.0, chosen / count) if count and isinstance(chosen, int) else 1.0


def main() -> int:
    transformers.logging.set_verbosity_error()
    try:
        told = outline(Path(sys.argv[1]))
    except (ShardError, OSError) as error:
        told = {"problem": str(error)}
    sys.stdout.write(json.dumps(told) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
