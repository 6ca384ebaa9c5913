"""What `/metrics` says after sessions, notes and snapshots that are known."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from fake_node import (
    FakeNode,
    finished,
    generated,
    model,
    rerouted,
    route,
    serving,
    snapshot,
    started,
)
from prometheus_client.parser import text_string_to_metric_families

from swarm.effects import Generated, Stalled
from swarm.gateway.metrics import FAMILIES, MODELS_MAX, OTHER, Meter, family_of, reroute_cause
from swarm.messages import FailureCode
from swarm.notes import note
from swarm.routing.seeking import cause_of
from swarm.snapshot import HopTrace, LegView, Vitals
from swarm.terms import Epoch, LayerRange, NodeId, SampledToken, SessionId, StepTimes

Values = dict[tuple[str, ...], float]


def values(text: str) -> Values:
    """Each sample by its name and the values of its family's labels, in their order."""
    found: Values = {}
    for sample in (s for f in text_string_to_metric_families(text) for s in f.samples):
        family = family_of(sample.name)
        assert family is not None, sample.name
        rest = sorted(set(sample.labels) - set(family.labels))
        labels = [sample.labels[name] for name in (*family.labels, *rest)]
        found[sample.name, *labels] = sample.value
    return found


def read(meter: Meter) -> Values:
    from prometheus_client.exposition import generate_latest

    return values(generate_latest(meter.registry).decode())


def meter_at(clock: list[float]) -> Meter:
    return Meter(lambda: clock[0], lambda: snapshot((model(),), SessionId("0" * 16)))


def token(position: int) -> Generated:
    return Generated(SampledToken(position, 5))


def test_times_of_a_session_that_stalls_once() -> None:
    clock = [100.0]
    meter = meter_at(clock)
    seen = meter.observe("tiny", 7, 99.0)
    for at, event in (
        (100.5, started("a", "b")),
        (101.0, token(1)),
        (101.25, token(2)),
        (101.26, Stalled("gone")),
        (101.30, Stalled("still gone")),
        (101.75, started("a", "c", epoch=2)),
        (102.25, token(3)),
        (102.50, token(4)),
        (102.50, finished()),
    ):
        clock[0] = at
        seen.see(event)
    seen.over()
    found = read(meter)
    assert found["swarm_ttft_seconds_sum", "tiny"] == 2.0
    assert found["swarm_itl_seconds_count", "tiny"] == 2
    assert found["swarm_itl_seconds_sum", "tiny"] == 0.5
    assert found["swarm_stall_seconds_count", "tiny"] == 1
    assert found["swarm_stall_seconds_sum", "tiny"] == 1.0
    assert found["swarm_tokens_total", "tiny", "completion"] == 4
    assert found["swarm_tokens_total", "tiny", "prompt"] == 7
    assert found["swarm_requests_total", "tiny", "finished"] == 1


def test_a_client_that_goes_away_is_an_outcome_too() -> None:
    meter = meter_at([0.0])
    meter.observe("tiny", 7, None).over()
    assert read(meter)["swarm_requests_total", "tiny", "gone"] == 1


@pytest.mark.parametrize("code", FailureCode)
def test_every_cause_of_a_reroute_has_a_name(code: FailureCode) -> None:
    assert reroute_cause(f"{cause_of(code)}: node abcd2345") == cause_of(code)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("node abcd2345 lost its place", "lost its place"),
        ("nothing comes through at node abcd2345", "nothing comes through"),
        ("no answer to open from abcd2345, bcde3456", "no answer to open"),
        ("something new: node abcd2345", OTHER),
    ],
)
def test_causes_that_are_sentences(text: str, cause: str) -> None:
    assert reroute_cause(text) == cause


def test_notes_are_counted() -> None:
    meter = meter_at([0.0])
    for entry in (
        note("session.reroute", cause="silent: node abcd2345"),
        note("session.reroute", cause="silent: node bcde3456"),
        note("session.preempted", node="abcd2345"),
        note("worker.lost", reason="it crashed"),
        note("worker.stuck", reason="it hangs"),
        note("session.finished"),
    ):
        meter.note(entry)
    found = read(meter)
    assert found["swarm_reroutes_total", "silent"] == 2
    assert found["swarm_reroutes_total", "preempted"] == 1
    assert found["swarm_worker_losses_total", "ended"] == 1
    assert found["swarm_worker_losses_total", "stuck"] == 1


def test_the_state_of_the_swarm() -> None:
    views = (model(missing=(LayerRange(2, 4),)),)
    meter = Meter(lambda: 0.0, lambda: snapshot(views, SessionId("0" * 16)))
    found = read(meter)
    assert found["swarm_members", "alive"] == 2 and found["swarm_members", "dead"] == 0
    assert found["swarm_model_covered", "tiny"] == 0
    assert found["swarm_model_layers_missing", "tiny"] == 2
    assert found["swarm_model_replicas_min", "tiny"] == 0
    assert found["swarm_sessions_running", "tiny"] == 1
    assert found["swarm_sessions_waiting", "tiny"] == 0
    assert found["swarm_kv_used_bytes",] == 10 and found["swarm_kv_capacity_bytes",] == 4096
    assert found["swarm_links",] == 1


def test_where_the_time_of_a_step_goes() -> None:
    shot = snapshot((model(),), SessionId("0" * 16))
    hops = (
        HopTrace(NodeId("a"), StepTimes(), StepTimes(rows=10, held_s=0.5, compute_s=0.3)),
        HopTrace(NodeId("b"), StepTimes(), StepTimes(rows=10, held_s=0.3, compute_s=0.1)),
    )
    leg = LegView(route("a", "b"), Epoch(1), 5, 0.2, 10, 1.2, hops)
    sessions = (replace(shot.sessions[0], legs=(leg,)),)
    vitals = Vitals(3, 0.5, (("gossip", 70), ("rows", 8)), (("gossip", 60), ("rows", 9)))
    shot = replace(shot, sessions=sessions, recent=sessions, vitals=vitals)
    found = read(Meter(lambda: 0.0, lambda: shot))
    assert found["swarm_step_seconds", "tiny", "wait"] == pytest.approx(0.02)
    assert found["swarm_step_seconds", "tiny", "compute"] == pytest.approx(0.02)
    assert found["swarm_step_seconds", "tiny", "wire"] == pytest.approx(0.02)
    assert found["swarm_wire_bytes_total", "in", "gossip"] == 70
    assert found["swarm_wire_bytes_total", "out", "rows"] == 9
    assert found["swarm_loop_stalls_total",] == 3
    assert found["swarm_loop_stall_seconds_total",] == 0.5


def test_replicas_are_those_of_the_rarest_layer() -> None:
    shot = snapshot((model(),), SessionId("0" * 16))
    shard = shot.nodes[0].shards[0]
    rest = replace(shard, info=replace(shard.info, layers=LayerRange(1, 4)))
    nodes = (shot.nodes[0], replace(shot.nodes[1], shards=(rest,)))
    meter = Meter(lambda: 0.0, lambda: replace(shot, nodes=nodes))
    assert read(meter)["swarm_model_replicas_min", "tiny"] == 1


def test_labels_are_bounded_whatever_models_are_told_of() -> None:
    views = tuple(model(f"model-{number}") for number in range(3 * MODELS_MAX))
    meter = Meter(lambda: 0.0, lambda: snapshot(views, SessionId("0" * 16)))
    for view in reversed(views):
        meter.observe(view.spec.name, 7, None).over()
    labels = {key[1] for key in read(meter) if key[0].startswith("swarm_model_covered")}
    assert len(labels) == MODELS_MAX + 1 and OTHER in labels
    labels = {key[1] for key in read(meter) if key[0] == "swarm_requests_total"}
    assert len(labels) == MODELS_MAX + 1


def test_no_metric_names_a_session_a_node_or_a_key() -> None:
    allowed = {"model", "outcome", "kind", "cause", "route", "status", "state", "version", "le",
               "part", "direction"}  # fmt: skip
    found = {label for family in FAMILIES.values() for label in family.labels}
    assert found <= allowed


def test_the_page_is_what_prometheus_reads() -> None:
    node = FakeNode(scripts=[rerouted(generated([5, 6]), generated([7]))])
    node.notes.put_nowait(note("session.reroute", cause="silent: node abcd2345"))

    async def main() -> None:
        async with serving(node) as served, aiohttp.ClientSession(served.url) as client:
            body = {"model": "tiny", "prompt": [1, 2, 3], "return_token_ids": True}
            async with client.post("/v1/completions", json=body) as response:
                assert response.status == 200
            for path in ("/no/such/page/" + "x" * 100, "/v1/models/" + "y" * 100):
                async with client.get(path) as response:
                    assert response.status == 404
            async with client.get("/metrics") as response:
                assert response.headers["Content-Type"].startswith("text/plain; version=")
                text = await response.text()
            found = values(text)
            assert found["swarm_tokens_total", "tiny", "prompt"] == 3
            assert found["swarm_tokens_total", "tiny", "completion"] == 3
            assert found["swarm_stall_seconds_count", "tiny"] == 1
            assert found["swarm_reroutes_total", "silent"] == 1
            assert found["swarm_http_requests_total", "/v1/completions", "200"] == 1
            assert found["swarm_http_requests_total", OTHER, "404"] == 1
            assert found["swarm_http_requests_total", "/v1/models/{name}", "404"] == 1
            assert {family.name for family in text_string_to_metric_families(text)} == set(FAMILIES)

    asyncio.run(main())


def test_the_list_in_the_documents_is_the_list() -> None:
    text = (Path(__file__).parents[2] / "docs" / "ops" / "metrics.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `swarm_")]
    assert rows == [
        f"| `{family.name}{'_total' if family.kind == 'counter' else ''}` | {family.kind} |"
        f" {', '.join(f'`{label}`' for label in family.labels) or ' '} | {family.text} |"
        for family in FAMILIES.values()
    ]
