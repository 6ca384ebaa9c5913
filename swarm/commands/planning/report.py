"""A plan as text and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from swarm.commands.planning.layout import Aim, Layout, Loss, Placed
from swarm.commands.planning.machines import PlannedDevice
from swarm.snapshot import RouteCost
from swarm.terms import LayerRange, NodeId

Json = dict[str, Any]
GIB = 1 << 30


def as_json(layout: Layout, aim: Aim) -> Json:
    names = {one.machine.node: one.machine.name for one in layout.placed}
    return {
        "model": layout.outline.name,
        "layers": layout.outline.layer_count,
        "parameters": layout.outline.elements,
        "prompt_tokens": aim.prompt_tokens,
        "max_tokens": aim.max_tokens,
        "fits": layout.fits,
        "missing": [_layers(part) for part in layout.missing],
        "needed_bytes": layout.needed_bytes,
        "nodes": [_placed_json(one) for one in layout.placed],
        "routes": [_route_json(route, names) for route in layout.routes],
        "losses": [_loss_json(loss, names) for loss in layout.losses],
    }


def _layers(layers: LayerRange) -> Json:
    return {"start": layers.start, "stop": layers.stop}


def _placed_json(one: Placed) -> Json:
    speed = one.candidate.speed if one.candidate else None
    return {
        "name": one.machine.name,
        "device": one.machine.device,
        "memory_bytes": one.machine.memory_bytes,
        "layers": None if one.layers is None else _layers(one.layers),
        "devices": [
            {
                "name": device.name,
                "memory_bytes": device.memory_bytes,
                "layers": None if part is None else _layers(part),
            }
            for device, part in _on_devices(one)
        ],
        "weight_bytes": one.weight_bytes,
        "kv_tokens": one.kv_tokens,
        "decode_ms_per_layer": None if speed is None else round(speed.decode_s_per_layer * 1e3, 4),
        "reason": one.reason,
    }


def _on_devices(one: Placed) -> list[tuple[PlannedDevice, LayerRange | None]]:
    parts = one.parts or (None,) * len(one.machine.devices)
    return list(zip(one.machine.devices, parts, strict=True))


def _route_json(route: RouteCost, names: dict[NodeId, str]) -> Json:
    return {
        "hops": [{"name": names[hop.node], **_layers(hop.layers)} for hop in route.hops],
        "first_token_ms": round(route.first_token_s * 1e3, 2),
        "token_ms": round(route.route.predicted_token_s * 1e3, 3),
        "tokens_per_s": round(1 / route.route.predicted_token_s, 2),
    }


def _loss_json(loss: Loss, names: dict[NodeId, str]) -> Json:
    return {
        "without": loss.machine.name,
        "missing": [_layers(part) for part in loss.missing],
        "best": None if loss.best is None else _route_json(loss.best, names),
        "would_fit_anew": loss.would_fit_anew,
        "moves": [{"name": machine.name, **_layers(layers)} for machine, layers in loss.moves],
        "repaired": None if loss.repaired is None else _route_json(loss.repaired, names),
    }


# -------------------------------------------------------------------- text


def as_text(layout: Layout, aim: Aim) -> RenderableType:
    """Does it fit, who takes what, how fast is that, and what one machine less means."""
    parts: list[RenderableType] = [Text(_head(layout)), Text(), _table(layout), Text()]
    parts += [Text(line) for line in verdict(layout)]
    if layout.routes:
        asked = f"{aim.prompt_tokens} tokens in, {aim.max_tokens} out"
        parts += [Text(), Text(f"Predicted, for {asked}:", style="bold")]
        parts += [Text(f"  {_route(layout, route)}") for route in layout.routes]
        parts += [Text(), Text("One machine less:", style="bold")]
        parts += [Text(f"  {line}") for line in losses(layout)]
    parts += [Text(), Text(
        "Speeds are estimates from bandwidth and arithmetic; a node that runs measures itself, and "
        "`swarm explain` shows what it found.", style="dim")]  # fmt: skip
    return Group(*parts)


def _head(layout: Layout) -> str:
    outline = layout.outline
    weights = outline.elements * layout.form.element_bytes / GIB
    return (
        f"{outline.name}: {outline.layer_count} layers, {outline.elements / 1e9:.2f} billion"
        f" weights, {weights:.1f} GiB"
    )


def _table(layout: Layout) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in ("machine", "memory", "layers", "weights", "room for KV", "ms per layer"):
        table.add_column(column)
    for one in layout.placed:
        memory = f"{one.machine.memory_bytes / GIB:.1f} GiB"
        if one.candidate is None:
            table.add_row(one.machine.name, memory, "-", "-", "-", "-")
            continue
        table.add_row(
            one.machine.name,
            memory,
            _where(one),
            f"{one.weight_bytes / GIB:.1f} GiB",
            f"{one.kv_tokens:,} tokens",
            f"{one.candidate.speed.decode_s_per_layer * 1e3:.2f}",
        )
    return table


def _where(one: Placed) -> str:
    """Its layers; of several devices, which has which."""
    if len(one.machine.devices) == 1:
        return str(one.layers)
    return ", ".join(f"{part} {device.name}" for device, part in _on_devices(one) if part)


def verdict(layout: Layout) -> list[str]:
    lines = [
        f"{one.machine.name} takes nothing: {one.reason}." for one in layout.placed if one.reason
    ]
    if layout.missing:
        parts = ", ".join(str(part) for part in layout.missing)
        needed = layout.needed_bytes / GIB
        lines.append(
            f"It does not fit: nobody has room for layers {parts}. One more machine of"
            f" {needed:.1f} GiB"
            " would hold them."
        )
    elif not layout.routes:
        lines.append("All layers are held, but there is no room for the KV of such an answer.")
    else:
        lines.append("It fits.")
    return lines


def _route(layout: Layout, route: RouteCost) -> str:
    names = {one.machine.node: one.machine.name for one in layout.placed}
    way = " → ".join(f"{names[hop.node]} {hop.layers}" for hop in route.hops)
    return f"{_pace(route)}  {way}"


def _pace(route: RouteCost) -> str:
    rate = 1 / route.route.predicted_token_s
    return f"first token {route.first_token_s:.2f} s, then {rate:.1f} tokens/s"


def losses(layout: Layout) -> list[str]:
    return [_loss(loss) for loss in layout.losses]


def _loss(loss: Loss) -> str:
    without = f"without {loss.machine.name}: "
    if loss.best is not None:
        return without + f"answers go on; {_pace(loss.best)}"
    missing: Sequence[LayerRange] = loss.missing
    if not missing:
        return without + "all layers are held, and there is no room for the KV of such an answer"
    parts = ", ".join(str(part) for part in missing)
    if loss.repaired is not None:
        who = " and ".join(f"{machine.name} takes {layers}" for machine, layers in loss.moves)
        return without + f"layers {parts} are gone until {who}; then {_pace(loss.repaired)}"
    anew = (
        "the others would hold the whole model if they started anew"
        if loss.would_fit_anew
        else "the others cannot hold the whole model"
    )
    return without + f"layers {parts} are gone until it is back; {anew}"
