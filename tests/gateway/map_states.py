"""A swarm as a gateway tells it, for tests of what maps draw: four nodes, two models, answers."""

from __future__ import annotations

import copy
from typing import Any

Json = dict[str, Any]
GIB = 1 << 30
NAMES = ("anna", "bert", "cleo", "dora")
IDS = {name: f"{name}{'2' * 28}" for name in NAMES}
SMALL, LARGE = "5" * 32, "7" * 32
RUNNING, OTHER, DONE = "a3f2b1c905d6e7f8", "77c0ffee12345678", "0badcafe00000000"
AT = 1_700_000_000.0


def shard(model: str, model_id: str, start: int, stop: int, **fields: Any) -> Json:
    return {
        "model": model, "model_id": model_id, "start": start, "stop": stop,
        "embed": start == 0, "head": False, "state": "serving", "numeric_class": "cpu-f32",
        "decode_s_per_layer": 0.0004, "decode8_s_per_layer": 0.001,
        "prefill_s_per_token_layer": 0.0001, "head_s": 0.002, "queue_s": 0.0,
        "kv_free_bytes": 3 * GIB, "kv_capacity_bytes": 4 * GIB, **fields,
    }  # fmt: skip


def node(name: str, shards: list[Json], **fields: Any) -> Json:
    return {
        "id": IDS[name], "name": name, "state": "alive", "incarnation": 1, "self": False,
        "linked": True, "addresses": ["192.168.1.5:7000"], "device": "cpu",
        "memory_bytes": 16 * GIB, "shards": shards, "rtt_ms": 0.41, "goodput_bytes_s": 110e6,
        "penalty_s": 0.0, "departs_in_s": 0.0, "wants": [], **fields,
    }  # fmt: skip


def hops(*parts: tuple[str, int, int]) -> list[Json]:
    return [{"node": IDS[name], "start": start, "stop": stop} for name, start, stop in parts]


def trace(name: str, **fields: Any) -> Json:
    return {
        "node": IDS[name], "prompt_rows": 34, "prompt_wait_ms": 1.21, "prompt_compute_ms": 40.1,
        "tokens": 64, "wait_ms": 0.31, "compute_ms": 6.12, **fields,
    }  # fmt: skip


def leg(route: list[Json], **fields: Any) -> Json:
    return {
        "epoch": 1, "route": route, "position": 34, "first_token_ms": 96.04, "tokens": 80,
        "token_ms": 24.1, "wire_ms": 2.13, "hops": [], **fields,
    }  # fmt: skip


FIRST = hops(("anna", 0, 10), ("bert", 10, 20), ("cleo", 20, 30))
SECOND = hops(("anna", 0, 10), ("dora", 10, 20), ("cleo", 20, 30))
TRACES = [trace("anna"), trace("bert", compute_ms=8.4), trace("cleo", wait_ms=1.52)]


def session(key: str, route: list[Json], **fields: Any) -> Json:
    return {
        "id": key, "model": "smollm2", "route": route, "position": 114, "epoch": 1,
        "reroutes": 0, "phase": "running", "prompt_count": 34, "token_limit": 200,
        "stall_ms": [], "exact": True, "legs": [leg(route, hops=TRACES)], "outcome": None,
        "ended_age_s": None, **fields,
    }  # fmt: skip


def model(name: str, key: str, layers: int, missing: list[Json]) -> Json:
    return {
        "name": name, "id": key, "layers": layers, "context_length": 8192, "has_text": True,
        "covered": not missing, "missing": missing, "probe_age_s": 1.0,
    }  # fmt: skip


def whole() -> Json:
    """All is well with the small model; the large one has a hole."""
    nodes = [
        node("anna", [shard("smollm2", SMALL, 0, 10)], self=True, rtt_ms=None),
        node("bert", [shard("smollm2", SMALL, 10, 20, decode_s_per_layer=0.0007)], rtt_ms=1.92),
        node(
            "cleo",
            [
                shard("smollm2", SMALL, 20, 30, head=True),
                shard("big-one", LARGE, 0, 48, decode_s_per_layer=0.002),
            ],
            device="cuda:0",
            memory_bytes=24 * GIB,
        ),
        node(
            "dora",
            [
                shard("smollm2", SMALL, 10, 20, decode_s_per_layer=0.0016),
                shard(
                    "big-one", LARGE, 60, 80, head=True, state="loading", decode_s_per_layer=None,
                    kv_free_bytes=None,
                ),
            ],
            penalty_s=1.5,
            memory_bytes=8 * GIB,
        ),
    ]  # fmt: skip
    pairs = (("anna", "bert", 1.92), ("anna", "cleo", 0.41), ("bert", "cleo", 2.2))
    ended = session(
        DONE, SECOND, phase="done", outcome="length", reroutes=1, stall_ms=[212.4], position=234,
        ended_age_s=9.0, legs=[leg(FIRST, hops=TRACES), leg(SECOND, epoch=2, position=80)],
    )  # fmt: skip
    return copy.deepcopy({
        "node_id": IDS["anna"], "name": "anna", "version": "0.1.0", "swarm": "8b8210ece1dc555b",
        "open": False, "nodes": nodes,
        "models": [
            model("big-one", LARGE, 80, [{"start": 48, "stop": 80}]),
            model("smollm2", SMALL, 30, []),
        ],
        "links": [
            {"node": IDS[a], "peer": IDS[b], "rtt_ms": rtt, "goodput_bytes_s": 110e6}
            for a, b, rtt in pairs
        ],
        "sessions": [session(RUNNING, FIRST), session(OTHER, FIRST, position=40, legs=[])],
        "recent": [ended],
        "hops": [{"session": RUNNING, "origin": IDS["anna"], "start": 0, "stop": 10,
                  "kv_length": 113, "outbox_bytes": 1000}],
        "kv_used_bytes": 1000, "kv_capacity_bytes": 4 * GIB, "foreign_swarms": [],
    })  # fmt: skip


def loss() -> list[tuple[str, Json]]:
    """bert dies while the first answer runs; dora takes its place."""
    short = RUNNING[:8]
    return [
        ("note", {"at": AT, "event": "session.hop_failed", "level": "INFO", "session": short,
                  "node": IDS["bert"][:8], "code": "link_down", "position": 114}),
        ("note", {"at": AT, "event": "session.reroute", "level": "WARNING", "session": short,
                  "cause": "the link broke: node bert2222", "reroutes": 1}),
        ("change", {"changed": {"sessions": [{"id": RUNNING, "phase": "opening"}],
                                "nodes": [{"id": IDS["bert"], "state": "dead"}]}}),
    ]  # fmt: skip


def recovery() -> list[tuple[str, Json]]:
    return [
        ("note", {"at": AT + 1, "event": "session.recovered", "level": "INFO",
                  "session": RUNNING[:8], "stall_ms": 212.4}),
        ("change", {"changed": {"sessions": [{
            "id": RUNNING, "phase": "running", "route": SECOND, "epoch": 2, "reroutes": 1,
            "stall_ms": [212.4], "position": 116,
            "legs": [leg(FIRST, hops=TRACES),
                     leg(SECOND, epoch=2, position=114, tokens=1, wire_ms=None)]}]}}),
    ]  # fmt: skip
