"""Puts one native call in place of the many small ones between a layer's linears and attention.

Decoders of transformers share a few forms of RMS norm, rotary embedding and gated MLP. Which form
a module has is found out by running it: one that gives what a native op gives is called by that op
from then on, every other stays as it is. The model's code is not looked at, and weights stay where
they are.

Legend: `S` sequences, `T` tokens, `H` heads, `D` head size, `E` hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import torch
from torch import nn

from swarm.kernels.native_io import native_available

_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}
"""Of values about 1: a few units in the last place, since inner results are rounded less often."""
_WEIGHINGS = (0, 1, 2)
"""RMS norms: the weight times the rounded row, times the row, one more than the weight times it."""
_ACTS = (0, 1)
"""SiLU, and GELU by tanh."""
_PROBE_ERRORS = (
    RuntimeError,
    ValueError,
    TypeError,
    IndexError,
    AttributeError,
    NotImplementedError,
)
"""What a module raises that takes other arguments than the one looked for."""
_TURN = "apply_rotary_pos_emb"


def install_glue(model: nn.Module) -> tuple[str, ...]:
    """Swap what can be swapped; names the kinds, in order: they are part of the numeric class."""
    parameter = next(model.parameters(), None)
    if parameter is None or parameter.device.type != "cpu" or not native_available():
        return ()
    with torch.inference_mode():
        found = {
            "norm": [_swap_norm(module) for module in _named(model, "RMSNorm")],
            "gate": [
                _swap_gate(module, parameter.dtype)
                for module in model.modules()
                if _is_gated(module)
            ],
            "turn": [_swap_turn(module) for module in _modules_with_turn(model)],
        }
    return tuple(kind for kind, swapped in found.items() if any(swapped))


def _named(model: nn.Module, ending: str) -> Iterator[nn.Module]:
    return (module for module in model.modules() if type(module).__name__.endswith(ending))


def _random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """The same on every call: what is swapped must not depend on luck."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator).to(dtype)


def _agree(one: object, other: torch.Tensor) -> bool:
    if not isinstance(one, torch.Tensor) or (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    scale = 1.0 + other.float().abs()
    return bool(((one.float() - other.float()).abs() / scale).max() < _TOLERANCE[other.dtype])


# ---------------------------------------------------------------- norms


def _swap_norm(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not isinstance(weight, torch.Tensor) or not isinstance(epsilon, float):
        return False
    if weight.dim() != 1 or weight.dtype not in _TYPES:
        return False
    x = _random(2, weight.numel(), dtype=weight.dtype) * 3
    try:
        wanted = module(x)
    except _PROBE_ERRORS:
        return False
    call = torch.ops.swarm.rms_norm.default
    for weighing in _WEIGHINGS:
        if _agree(wanted, call(x, weight, epsilon, weighing)):
            module.forward = _norm(weight, epsilon, weighing)
            return True
    return False


def _norm(
    weight: torch.Tensor, epsilon: float, weighing: int
) -> Callable[[torch.Tensor], torch.Tensor]:
    call = torch.ops.swarm.rms_norm.default

    def forward(x: torch.Tensor) -> torch.Tensor:
        """x [..., E]"""
        return call(x, weight, epsilon, weighing)

    return forward


# ---------------------------------------------------------------- gated MLPs


def _is_gated(module: nn.Module) -> bool:
    parts = ("gate_proj", "up_proj", "down_proj")
    return all(isinstance(getattr(module, name, None), nn.Module) for name in parts)


def _swap_gate(module: Any, dtype: torch.dtype) -> bool:
    act_fn = getattr(module, "act_fn", None)
    size = getattr(module, "hidden_size", None)
    if not isinstance(size, int) or not callable(act_fn) or dtype not in _TYPES:
        return False
    call = torch.ops.swarm.gated.default
    x, sides = _random(2, size, dtype=dtype), _random(2, 2, 64, dtype=dtype) * 3
    for act in _ACTS:
        try:
            a, b = sides.float()  # only in float32 are the two kinds of GELU told apart
            if not _agree(act_fn(a) * b, call(a, b, act)):
                continue
            wanted, forward = module(x), _gate(module, act)
            if _agree(wanted, forward(x)):
                module.forward = forward
                return True
        except _PROBE_ERRORS:
            return False
    return False


def _gate(module: Any, act: int) -> Callable[[torch.Tensor], torch.Tensor]:
    call = torch.ops.swarm.gated.default

    def forward(x: torch.Tensor) -> torch.Tensor:
        """x [..., E]"""
        gate = module.gate_proj(x)
        return module.down_proj(call(gate, module.up_proj(x), act))

    return forward


# ---------------------------------------------------------------- rotary embedding


def _modules_with_turn(model: nn.Module) -> list[Any]:
    """The Python modules of the model's code whose rotary function is a global of theirs."""
    names = sorted({type(module).__module__ for module in model.modules()})
    modules = [import_module(name) for name in names]
    return [module for module in modules if callable(getattr(module, _TURN, None))]


def _swap_turn(code: Any) -> bool:
    """Swap it for the whole process: for what a native op does not serve it stays what it was."""
    plain = getattr(code, _TURN)
    if hasattr(plain, "plain"):
        return True
    q, k = _random(2, 3, 4, 32, dtype=torch.float32), _random(2, 1, 4, 32, dtype=torch.float32)
    for size in (32, 16):
        cos, sin = _random(2, 2, 4, size, dtype=torch.float32)
        try:
            wanted = plain(q, k, cos, sin)
        except _PROBE_ERRORS:
            if size == 32:
                return False
            continue  # it turns whole heads only
        given = torch.ops.swarm.rotate.default(q, k, cos, sin)
        if not all(_agree(a, b.transpose(1, 2)) for a, b in zip(wanted, given, strict=True)):
            return False
    setattr(code, _TURN, _turn(plain))
    return True


def _turn(plain: Callable[..., Any]) -> Callable[..., Any]:
    call = torch.ops.swarm.rotate.default

    def turn(
        q: torch.Tensor,
        k: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        *rest: Any,
        **more: Any,
    ) -> Any:
        """q [S, H, T, D], k [S, G, T, D], cos and sin [S or 1, T, turned]"""
        if rest or more or q.device.type != "cpu" or q.dtype != cos.dtype or q.dtype != k.dtype:
            return plain(q, k, cos, sin, *rest, **more)
        turned_q, turned_k = call(q, k, cos, sin)
        return turned_q.transpose(1, 2), turned_k.transpose(1, 2)

    turn.plain = plain  # type: ignore[attr-defined]
    return turn
