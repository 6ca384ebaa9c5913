"""Cuts a transformers model class down to the layers a shard serves. No model code of our own.

A dynamic subclass builds the full model (on the meta device, by `from_pretrained`) and replaces
what the shard does not hold by empty modules before any weight is read. After loading, every
layer sits behind a `Gate`, which lets one call use fewer layers than are held and takes rows in and
out exactly at a layer's border: whatever the model does between embedding and first layer (scaling,
position tables) is done once, where the embedding is.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from swarm.errors import ShardError
from swarm.terms import LayerRange

_BORDER_PARAMETERS = frozenset(
    {
        "self", "hidden_states", "attention_mask", "position_ids", "position_embeddings",
        "position_bias", "cache", "cache_position", "past_key_values", "layer_past", "use_cache",
        "kwargs", "output_attentions", "output_router_logits", "alibi", "head_mask",
        "encoder_hidden_states", "encoder_attention_mask", "hidden_state", "conv_mask",
        "mamba_attention_mask", "attention_scaling",
    }
)  # fmt: skip
"""What decoder layers take that each stage can make for itself. Any other argument carries
something from layer to layer, or needs the token ids."""

_CONDITIONAL_PARAMETERS = {
    "per_layer_input": "hidden_size_per_layer_input",
    "shared_kv_states": "num_kv_shared_layers",
}
"""Arguments that matter only when this field of the config is set."""


@dataclass(frozen=True, slots=True)
class Part:
    """Layers with or without the two ends: what a shard holds, or what a session uses of it."""

    layers: LayerRange
    embed: bool
    head: bool

    def covers(self, other: Part) -> bool:
        return (
            self.layers.covers(other.layers)
            and self.embed >= other.embed
            and self.head >= other.head
        )

    def is_whole(self, layer_count: int) -> bool:
        return self == Part(LayerRange(0, layer_count), embed=True, head=True)


class PassThrough(nn.Module):  # type: ignore[misc]
    """Stands where a layer is not held; has its plain attributes (`attention_type`, ...)."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        for name, value in vars(layer).items():
            if not name.startswith("_") and isinstance(value, str | int | float | bool):
                setattr(self, name, value)

    def forward(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return hidden_states


class Border:
    """What the gates of one model share during a call: the layers in use, and the rows there."""

    def __init__(self, layers: LayerRange) -> None:
        self.layers = layers
        self.rows_in: torch.Tensor | None = None
        self.rows_out: torch.Tensor | None = None

    @contextmanager
    def using(self, layers: LayerRange, rows_in: torch.Tensor | None) -> Iterator[None]:
        """A call of the model that runs `layers` only."""
        self.layers, self.rows_in = layers, rows_in
        try:
            yield
        finally:
            self.rows_in = self.rows_out = None


class Gate(nn.Module):  # type: ignore[misc]
    """Runs its layer if the call uses it; puts rows in before the first, takes them at the end."""

    def __init__(self, layer: nn.Module, index: int, border: Border) -> None:
        super().__init__()
        self.layer = layer
        self._index = index
        self._border = border

    def __getattr__(self, name: str) -> Any:
        modules: dict[str, nn.Module] = self.__dict__["_modules"]
        return modules["layer"] if name == "layer" else getattr(modules["layer"], name)

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        border = self._border
        if self._index not in border.layers:
            return hidden_states
        if self._index == border.layers.start and border.rows_in is not None:
            hidden_states = border.rows_in
        output = self.layer(hidden_states, *args, **kwargs)
        if not isinstance(output, torch.Tensor):
            raise ShardError(f"{type(self.layer).__name__} gives more than rows: cannot be cut yet")
        if self._index == border.layers.stop - 1:
            border.rows_out = output
        return output


class HeadGate(nn.Module):  # type: ignore[misc]
    """Stands before the output matrix, so that a call need not multiply all rows by it."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head
        self._picked: torch.Tensor | None = None
        self._at_once = 1

    def __getattr__(self, name: str) -> Any:
        modules: dict[str, nn.Module] = self.__dict__["_modules"]
        return modules["head"] if name == "head" else getattr(modules["head"], name)

    @contextmanager
    def picking(self, rows: torch.Tensor, at_once: int) -> Iterator[None]:
        """A call that wants the logits of some rows only, [1, rows, V], so many in one product.

        rows  [rows] int64, on the device
        """
        self._picked, self._at_once = rows, at_once
        try:
            yield
        finally:
            self._picked = None

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        if self._picked is None:
            return self.head(hidden_states)
        picked = hidden_states.flatten(0, 1)[self._picked]
        tiles = [self.head(tile[None]) for tile in picked.split(self._at_once)]
        return tiles[0] if len(tiles) == 1 else torch.cat(tiles, dim=1)


def cut_class(base: type[Any], part: Part) -> type[Any]:
    """A subclass of a causal model class that has only what `part` says."""

    def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        base.__init__(self, config, *args, **kwargs)
        _reduce(self, part)

    body = {"__init__": __init__, "__module__": base.__module__, "__qualname__": base.__qualname__}
    return type(base.__name__, (base,), body)


def install_gates(model: Any, layers: LayerRange) -> Border:
    """Put every layer of a loaded model behind a gate."""
    border = Border(layers)
    stack = layer_stack(model)
    for index, layer in enumerate(list(stack)):
        stack[index] = Gate(layer, index, border)
    return border


def install_head_gate(model: Any) -> HeadGate | None:
    """Put the output matrix behind a gate; None where the model shows none."""
    head = model.get_output_embeddings()
    for name, child in model.named_children():
        if child is head:
            gate = HeadGate(head)
            setattr(model, name, gate)
            return gate
    return None


def layer_stack(model: Any) -> nn.ModuleList:
    """The list of decoder layers. Raises ShardError when the model does not show one."""
    _, _, stack = _find_stack(model)
    return stack


def text_core(model: Any) -> nn.Module:
    """The module that owns the decoder layers and runs them."""
    _, core, _ = _find_stack(model)
    return core


def _find_stack(model: Any) -> tuple[str, nn.Module, nn.ModuleList]:
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    inside = set(model.get_decoder().modules())  # not the layers of a vision tower
    for name, core in model.named_modules():
        if core not in inside:
            continue
        for child in core.children():
            if isinstance(child, nn.ModuleList) and len(child) == count and _is_decoder(child[0]):
                return name, core, child
    raise ShardError(f"{type(model).__name__} shows no list of decoder layers")


def _is_decoder(layer: nn.Module) -> bool:
    """A layer proper, not a list of experts or the like."""
    if isinstance(layer, PassThrough | Gate):
        return True
    return any(not isinstance(child, nn.ModuleList) for child in layer.children())


def cut_problem(model: Any) -> str | None:
    """Why a whole model, not gated yet, cannot be run in part; None when it can."""
    config = model.config.get_text_config(decoder=True)
    layer = layer_stack(model)[0]
    for name in inspect.signature(layer.forward).parameters:
        condition = _CONDITIONAL_PARAMETERS.get(name)
        if name in _BORDER_PARAMETERS or (condition and not getattr(config, condition, 0)):
            continue
        kind = config.model_type
        return f"{kind} cannot be cut between layers yet: each layer also takes {name!r}"
    return None


def _reduce(model: Any, part: Part) -> None:
    config = model.config.get_text_config(decoder=True)
    if not part.is_whole(config.num_hidden_layers) and (problem := cut_problem(model)):
        raise ShardError(problem)
    path, core, stack = _find_stack(model)
    for index, layer in enumerate(list(stack)):
        if index not in part.layers:
            stack[index] = PassThrough(layer)
    _drop_other_senses(model, path)
    tied = bool(model.config.tie_word_embeddings or config.tie_word_embeddings)
    if not (part.embed or (part.head and tied)):
        _replace(model, model.get_input_embeddings())
    if not part.head:
        _replace(model, model.get_output_embeddings())
        if isinstance(getattr(core, "norm", None), nn.Module):
            core.norm = nn.Identity()
        _untie(model)


def drop_spent_embedding(model: Any) -> None:
    """Of a part that embeds nothing: a table that was read for a head tied to it, which has packed
    its own since, is only memory."""
    table = model.get_input_embeddings()
    if not isinstance(table, nn.Embedding):
        return
    others = (m for m in model.modules() if m is not table)
    if not any(p is table.weight for m in others for p in m.parameters(recurse=False)):
        _replace(model, table)


def _drop_other_senses(model: Any, path: str) -> None:
    """Empty the towers beside the language model (vision, audio), which no text request needs."""
    parent = model
    for name in path.split("."):
        if parent is not model:
            for sibling, _ in list(parent.named_children()):
                if sibling != name:
                    setattr(parent, sibling, nn.Identity())
        parent = getattr(parent, name)


def _replace(model: Any, module: nn.Module | None) -> None:
    for name, parent in _parents(model):
        if getattr(parent, name) is module:
            setattr(parent, name, nn.Identity())


def _parents(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for parent in list(model.modules()):
        for name, _ in list(parent.named_children()):
            yield name, parent


def _untie(model: Any) -> None:
    """Without a head there is nothing to tie; a tie to a dropped module could not be loaded."""
    for module in model.modules():
        if getattr(module, "_tied_weights_keys", None):
            module._tied_weights_keys = None
        if hasattr(module, "all_tied_weights_keys"):
            module.all_tied_weights_keys = {}
