"""What Ollama's clients are told of models. Pure."""

from __future__ import annotations

from typing import Any

from swarm.snapshot import ModelView

Json = dict[str, Any]

_BY_NODES = "the machines of a swarm bring their models with `swarm join --model`"
REFUSED = {
    "blobs": _BY_NODES,
    "copy": _BY_NODES,
    "create": _BY_NODES,
    "delete": _BY_NODES,
    "embed": "there are no embeddings",
    "embeddings": "there are no embeddings",
    "pull": _BY_NODES,
    "push": _BY_NODES,
}
"""Endpoints of Ollama that are not served, and why."""
NEVER = "9999-12-31T23:59:59Z"
"""When a model that is covered will be forgotten."""


def entry(view: ModelView, name: str, modified: str) -> Json:
    """A model of `/api/tags`. Sizes are spread over nodes and not told: 0."""
    return {
        "name": name,
        "model": name,
        "modified_at": modified,
        "size": 0,
        "digest": view.spec.model_id,
        "details": _details(view),
    }


def running(view: ModelView, name: str, modified: str) -> Json:
    """A model of `/api/ps`: covered is loaded."""
    return entry(view, name, modified) | {
        "expires_at": NEVER,
        "size_vram": 0,
        "context_length": view.spec.context_length,
    }


def shown(view: ModelView, modified: str, *, tools: bool) -> Json:
    """`/api/show`."""
    spec = view.spec
    return {
        "modified_at": modified,
        "details": _details(view),
        "model_info": {
            "general.architecture": "swarm",
            "general.basename": spec.name,
            "swarm.block_count": spec.layer_count,
            "swarm.context_length": spec.context_length,
            "swarm.embedding_length": spec.hidden_size,
            "swarm.vocab_size": spec.vocab_size,
        },
        "capabilities": ["completion", *(["tools"] if tools else [])],
    }


def _details(view: ModelView) -> Json:
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": view.spec.name,
        "families": [view.spec.name],
        "parameter_size": "",
        "quantization_level": "",
    }
