"""What a node knows, as the JSON that maps, scripts and people read. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from swarm.notes import Note
from swarm.snapshot import (
    HopTrace,
    HopView,
    LegView,
    LinkView,
    ModelView,
    NodeView,
    SessionView,
    ShardView,
    Snapshot,
)
from swarm.terms import (
    HubShare,
    LayerRange,
    LinkKind,
    MemberState,
    ModelId,
    NodeId,
    Route,
    StepTimes,
)

Json = dict[str, Any]
ID_LETTERS = 4
"""Of a node's id, where its name alone does not tell it from others."""


def state_json(snapshot: Snapshot) -> Json:
    """The body of `GET /swarm/state`. Times in the unit of their name; null: not known."""
    names = {view.spec.model_id: view.spec.name for view in snapshot.models}
    shown = shown_names(snapshot.nodes)
    return {
        "node_id": snapshot.node,
        "name": shown.get(snapshot.node, snapshot.name),
        "version": snapshot.version,
        "swarm": snapshot.swarm,
        "open": snapshot.is_open,
        "nodes": [_node(view, shown[view.node], names) for view in snapshot.nodes],
        "models": [_model(view) for view in snapshot.models],
        "links": [_link(view) for view in snapshot.links],
        "sessions": [_session(view) for view in snapshot.sessions],
        "recent": [_session(view) for view in snapshot.recent],
        "hops": [_hop(view) for view in snapshot.hops],
        "kv_used_bytes": snapshot.kv_used_bytes,
        "kv_capacity_bytes": snapshot.kv_capacity_bytes,
        "foreign_swarms": list(snapshot.foreign_swarms),
    }


def shown_names(nodes: Sequence[NodeView]) -> dict[NodeId, str]:
    """What people call each node: its name, which is its machine's unless its owner chose one, and
    the beginning of its id where another node that is there has the same."""
    gone = (MemberState.DEAD, MemberState.LEFT)
    here = Counter(view.name for view in nodes if view.state not in gone)
    return {
        view.node: f"{view.name}-{view.node[:ID_LETTERS]}"
        if here[view.name] > (view.state not in gone)
        else view.name
        for view in nodes
    }


def route_json(route: Route | None) -> list[Json]:
    """A route as the hops in order; empty before the first one is found."""
    hops = route.hops if route else ()
    return [{"node": hop.node, **_layers(hop.layers)} for hop in hops]


def note_json(note: Note) -> Json:
    return {"event": note.event, "level": note.level.name, **dict(note.fields)}


def _layers(layers: LayerRange) -> Json:
    return {"start": layers.start, "stop": layers.stop}


def _node(view: NodeView, name: str, names: dict[ModelId, str]) -> Json:
    return {
        "id": view.node,
        "name": name,
        "state": view.state.value,
        "incarnation": view.incarnation,
        "self": view.is_self,
        "linked": view.linked,
        "addresses": [str(address) for address in view.addresses],
        "device": view.device,
        "memory_bytes": view.memory_bytes,
        "shards": [_shard(shard, names) for shard in view.shards],
        "rtt_ms": _ms(view.rtt_s),
        "goodput_bytes_s": view.goodput_bytes_s,
        "penalty_s": view.penalty_s,
        "departs_in_s": view.departs_in_s,
        "wants": [_want(share) for share in view.wants],
    }


def _want(share: HubShare) -> Json:
    return {"model": share.name, "state": share.state.value, "done_bytes": share.done_bytes}


def _shard(view: ShardView, names: dict[ModelId, str]) -> Json:
    info, speed = view.info, view.speed
    return {
        "model": names.get(info.model_id, info.model_id),
        "model_id": info.model_id,
        **_layers(info.layers),
        "embed": info.embed,
        "head": info.head,
        "state": info.state.value,
        "numeric_class": info.numeric_class,
        "decode_s_per_layer": speed.decode_s_per_layer if speed else None,
        "decode8_s_per_layer": speed.decode8_s_per_layer if speed else None,
        "prefill_s_per_token_layer": speed.prefill_s_per_token_layer if speed else None,
        "head_s": speed.head_s if speed else None,
        "queue_s": speed.queue_s if speed else None,
        "kv_free_bytes": speed.kv_free_bytes if speed else None,
        "kv_capacity_bytes": info.kv_capacity_bytes,
        "cuts": list(info.cuts),
    }


def _model(view: ModelView) -> Json:
    return {
        "name": view.spec.name,
        "id": view.spec.model_id,
        "layers": view.spec.layer_count,
        "context_length": view.spec.context_length,
        "has_text": view.spec.has_text,
        "covered": view.covered,
        "missing": [_layers(layers) for layers in view.missing],
        "probe_age_s": view.probe_age_s,
    }


def _session(view: SessionView) -> Json:
    return {
        "id": view.session,
        "model": view.model_name,
        "route": route_json(view.route),
        "position": view.position,
        "epoch": view.epoch,
        "reroutes": view.reroutes,
        "phase": view.phase,
        "prompt_count": view.prompt_count,
        "token_limit": view.token_limit,
        "stall_ms": [round(stall_s * 1000, 1) for stall_s in view.stalls_s],
        "exact": view.exact,
        "legs": [_leg(leg) for leg in view.legs],
        "outcome": view.outcome or None,
        "ended_age_s": None if view.ended_age_s is None else round(view.ended_age_s, 1),
    }


def _leg(view: LegView) -> Json:
    """One route of a session. Of its tokens, `token_ms` is the mean and `wire_ms` what of it no hop
    accounts for."""
    token_ms = _ms(view.tokens_s / view.token_count) if view.token_count else None
    return {
        "epoch": view.epoch,
        "route": route_json(view.route),
        "position": view.position,
        "first_token_ms": _ms(view.first_token_s),
        "tokens": view.token_count,
        "token_ms": token_ms,
        "wire_ms": _ms(view.wire_s),
        "hops": [_hop_trace(hop) for hop in view.hops],
    }


def _hop_trace(view: HopTrace) -> Json:
    """What the hop's steps took: of the prompt in all, of one token on average."""
    prompt, tokens = view.prompt, view.tokens
    return {
        "node": view.node,
        "prompt_rows": prompt.rows,
        "prompt_wait_ms": _ms(prompt.wait_s),
        "prompt_compute_ms": _ms(prompt.compute_s),
        "tokens": tokens.rows,
        "wait_ms": _mean_ms(tokens.wait_s, tokens),
        "compute_ms": _mean_ms(tokens.compute_s, tokens),
    }


def _mean_ms(seconds: float, times: StepTimes) -> float | None:
    return _ms(seconds / times.rows) if times.rows else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def _link(view: LinkView) -> Json:
    return {
        "node": view.node,
        "peer": view.peer,
        "rtt_ms": _ms(view.rtt_s),
        "goodput_bytes_s": view.goodput_bytes_s,
        "kind": view.kind.text,
        "relayed": view.kind is LinkKind.RELAYED,
    }


def _hop(view: HopView) -> Json:
    return {
        "session": view.session,
        "origin": view.origin,
        **_layers(view.layers),
        "kv_length": view.kv_length,
        "outbox_bytes": view.outbox_bytes,
    }
