"""Swaps the linear layers of a loaded model for ones with integer weights, or for ones with float
weights whose rows do not depend on their company.

The linears inside the decoder layers, and the head, which gets a packed copy of its own where it is
tied to the embedding (a table of floats stays one). Routers, whose errors change which experts run,
stay what they are, and so do experts that are one tensor for all; small linears are not quantized.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from swarm.errors import ConfigError
from swarm.kernels.float_linear import FloatProduct, has_float_product
from swarm.kernels.linear import Product, SingleLinear, fuse, single
from swarm.kernels.quantize import GroupWeight, to_int4, to_int8
from swarm.shard.cut import layer_stack
from swarm.shard.large_pages_io import LargePages

QUANTIZATIONS = ("none", "int8", "int4")
_HEADS = {"none": "none", "int8": "int8", "int4": "int8"}
"""How the head is kept, by quantization."""
OUTPUTS_MIN = 64
"""Smaller linears cost more to call than to read."""
ROUTERS = frozenset({"gate", "router", "shared_expert_gate", "gating"})
SIBLINGS = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("w1", "w3"),
)
"""Linears of one module that models call with the same input. If one is not, it computes alone."""

Source = Callable[[str, torch.Tensor], GroupWeight | None]
"""From a linear's name and float weight to the weight as the checkpoint has it in integers, or None
where it has not."""


def quantize_model(model: Any, quantization: str, source: Source | None = None) -> None:
    """In place, layer by layer, each float weight freed before the next is packed. What stays float
    is packed too where there is a native product for it. What native kernels read goes onto large
    pages.

    Raises ConfigError for a quantization that is not known.
    """
    if quantization not in QUANTIZATIONS:
        known = ", ".join(QUANTIZATIONS)
        raise ConfigError(f"{quantization!r} is not a quantization; use {known}")
    pages = LargePages()
    for kind in dict.fromkeys((quantization, "none")):
        _swap_all(model, kind, source, pages)


def _swap_all(model: Any, quantization: str, source: Source | None, pages: LargePages) -> None:
    is_wanted = _is_float if quantization == "none" else _is_wanted
    for prefix, parent in _parents(model):
        for names in _families(parent, is_wanted):
            full = [f"{prefix}.{name}" for name in names]
            _put(parent, names, _swapped(parent, names, full, quantization, source), pages)
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear or (quantization == "none" and not _is_float("head", head)):
        return
    for name, parent in model.named_modules():
        for child, module in list(parent.named_children()):
            if module is head:
                full = [f"{name}.{child}".lstrip(".")]
                made = _swapped(parent, (child,), full, _HEADS[quantization], source)
                _put(parent, (child,), made, pages)


def _parents(model: Any) -> Iterator[tuple[str, nn.Module]]:
    """Every module inside the decoder layers, by its full name."""
    layers = {id(layer): layer for layer in layer_stack(model)}
    for name, module in list(model.named_modules()):
        if id(module) in layers:
            yield from ((f"{name}.{rest}".rstrip("."), m) for rest, m in module.named_modules())


def _families(
    parent: nn.Module, is_wanted: Callable[[str, nn.Module], bool]
) -> list[tuple[str, ...]]:
    """The names of its linears to swap: those with one input together, the others alone."""
    left = [name for name, child in parent.named_children() if is_wanted(name, child)]
    found: list[tuple[str, ...]] = []
    for siblings in SIBLINGS:
        together = tuple(name for name in siblings if name in left)
        if len(together) > 1:
            found.append(together)
            left = [name for name in left if name not in together]
    return [*found, *((name,) for name in left)]


def _is_wanted(name: str, child: nn.Module) -> bool:
    return (
        type(child) is nn.Linear  # not a subclass: what it does besides is not known
        and name not in ROUTERS
        and child.out_features >= OUTPUTS_MIN
        and child.in_features >= OUTPUTS_MIN
        and child.weight.is_floating_point()
        and child.weight.itemsize > 1
    )


def _is_float(name: str, child: nn.Module | None) -> bool:
    if child is None or type(child) is not nn.Linear or name in ROUTERS:
        return False
    return has_float_product(child.weight)


def _swapped(
    parent: nn.Module,
    names: Sequence[str],
    full: Sequence[str],
    quantization: str,
    source: Source | None,
) -> Sequence[nn.Module]:
    """What stands for these linears of one input."""
    linears = [getattr(parent, name) for name in names]
    biases = [linear.bias for linear in linears]
    if quantization == "none":
        return _packed([linear.weight for linear in linears], biases)
    weights = [
        _quantized(linear.weight.detach(), name, quantization, source)
        for linear, name in zip(linears, full, strict=True)
    ]
    if len(names) > 1 and len({weight.kind for weight in weights}) == 1:
        return fuse(Product(weights, biases))
    return [single(weight, bias) for weight, bias in zip(weights, biases, strict=True)]


def _packed(
    weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor | None]
) -> Sequence[nn.Module]:
    """Linears on float weights: one product where they are of one kind."""
    if len(weights) > 1 and len({(weight.dtype, weight.shape[1]) for weight in weights}) == 1:
        return fuse(FloatProduct(weights, biases))
    pairs = zip(weights, biases, strict=True)
    return [SingleLinear(FloatProduct([weight], [bias])) for weight, bias in pairs]


def _put(
    parent: nn.Module, names: Sequence[str], made: Sequence[nn.Module], pages: LargePages
) -> None:
    for product in dict.fromkeys(part for module in made for part in module.modules()):
        if isinstance(product, Product | FloatProduct) and product.values.device.type == "cpu":
            pages.move(product)
    for name, module in zip(names, made, strict=True):
        setattr(parent, name, module.eval())


def _quantized(
    weight: torch.Tensor, name: str, quantization: str, source: Source | None
) -> GroupWeight:
    """As the checkpoint has it, if it has."""
    kept = source(name, weight) if source is not None else None
    if kept is not None:
        return kept
    return to_int4(weight) if quantization == "int4" else to_int8(weight)
