"""An origin whose hops run out of room, or hold a prefix already."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_session import CONFIG, MODEL, SESSION, A, B, Bench, C, D, Plans, kinds, route

from swarm.effects import Failed, Finished, Stalled
from swarm.errors import KvExhausted, NoRoute
from swarm.messages import (
    KV_BLOCK_TOKENS,
    PEER_MESSAGES,
    PREFIX_HASH_BYTES,
    FailureCode,
    HopFailed,
    Open,
    Opened,
    RefusalCode,
    Refused,
    Release,
    Resume,
    Step,
    decode,
    encode,
)
from swarm.routing.cost import PlanRequest
from swarm.routing.phases import Phase
from swarm.routing.prefix import CHAIN_BLOCKS_MAX, PrefixChain, PrefixMemory, salted, salts_of
from swarm.terms import ModelId, NodeId

T = KV_BLOCK_TOKENS


@pytest.fixture(autouse=True)
def all_layers_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no route is found, it is not for want of layers."""
    error = NoRoute(MODEL.model_id, (), "they cannot be joined now")
    monkeypatch.setattr(Plans, "why_not", lambda self, request: error)


def preempt(bench: Bench, node: NodeId) -> None:
    message = HopFailed(SESSION, bench.session.epoch, node, FailureCode.PREEMPTED, "no room")
    bench.session.hop_failed(node, message, bench.now)


def refuse(bench: Bench, node: NodeId) -> None:
    message = Refused(SESSION, bench.session.epoch, RefusalCode.KV_EXHAUSTED, "3 are free")
    bench.session.refused(node, message, bench.now)


def opens(bench: Bench) -> list[NodeId]:
    return [node for node, message in bench.sent() if isinstance(message, Open)]


def chain_of(ids: list[int]) -> PrefixChain:
    return PrefixChain(MODEL.model_id, ids)


def open_all(bench: Bench) -> None:
    assert bench.session.route is not None
    for node in bench.session.route.nodes:
        bench.opened(node)


# ---------------------------------------------------------------- room


def test_who_must_make_room_goes_elsewhere_and_blames_nobody() -> None:
    bench = Bench()
    bench.running()
    bench.token(6)
    preempt(bench, B)
    assert opens(bench) == [A, C]
    assert isinstance(bench.replies()[-1], Stalled)
    assert (bench.session.reroutes, bench.session.phase) == (0, Phase.OPENING)


def test_without_other_room_it_waits_and_holds_none() -> None:
    bench = Bench(route(A, B), prompt=2 * T, max_tokens=9)
    bench.running()
    bench.token(2 * T)
    bench.sent()
    preempt(bench, B)
    sent = bench.sent()
    assert kinds(sent) == [(A, "Release"), (B, "Release")]
    left = sent[0][1]
    assert isinstance(left, Release) and len(left.prefix) == 2 * PREFIX_HASH_BYTES
    assert bench.session.phase is Phase.WAITING
    assert bench.session.deadline == bench.now + 1.0
    bench.now += 1.0
    bench.session.tick(bench.now)
    asked = [m for _, m in bench.sent() if isinstance(m, Open)]
    assert [m.length for m in asked] == [2 * T + 1] * 2
    assert bench.plans.requests[-1].held == ()
    refuse(bench, B)
    assert kinds(bench.sent()) == [(A, "Release"), (B, "Release")]
    bench.now += 1.0
    bench.session.tick(bench.now)
    open_all(bench)
    assert bench.session.phase is Phase.RUNNING
    assert bench.token(2 * T + 1)
    assert bench.session.reroutes == 0


def test_room_is_waited_for_no_longer_than_cover_even_where_some_seems_to_be() -> None:
    bench = Bench(route(A, B))
    bench.running()
    bench.token(6)
    preempt(bench, B)
    ends = bench.now + CONFIG.cover_wait_s
    tries = 0
    while bench.session.phase is not Phase.DONE:
        assert bench.session.deadline is not None and bench.session.deadline <= ends
        bench.now = bench.session.deadline
        bench.session.tick(bench.now)
        if bench.session.phase is Phase.OPENING:
            tries += 1
            refuse(bench, B)
    assert bench.now == ends and tries > CONFIG.reroutes_max
    bench.sent()
    last = bench.replies()[-1]
    assert isinstance(last, Failed) and isinstance(last.error, KvExhausted)


def test_a_session_that_never_was_admitted_does_not_wait() -> None:
    bench = Bench(route(A, B))
    bench.session.start(bench.now)
    refuse(bench, B)
    bench.sent()
    last = bench.replies()[-1]
    assert isinstance(last, Failed) and isinstance(last.error, KvExhausted)


def test_one_that_was_moved_before_its_first_token_waits_too() -> None:
    bench = Bench(route(A, B))
    bench.running()
    preempt(bench, B)
    assert bench.session.phase is Phase.WAITING


def test_making_room_again_and_again_has_an_end() -> None:
    bench = Bench(route(A, B))
    bench.running()
    for _ in range(CONFIG.preemptions_max):
        preempt(bench, A)
        bench.now += 1.0
        bench.session.tick(bench.now)
        open_all(bench)
        assert bench.session.phase is Phase.RUNNING
    preempt(bench, A)
    bench.sent()
    last = bench.replies()[-1]
    assert isinstance(last, Failed) and isinstance(last.error, KvExhausted)
    assert last.stats.reroutes == 0


def test_what_is_lost_while_it_waits_is_known_afterwards() -> None:
    bench = Bench(route(A, B))
    bench.running()
    bench.token(6)
    bench.session.node_failed(B, FailureCode.LINK_DOWN, "reset", bench.now)
    assert bench.session.phase is Phase.WAITING
    preempt(bench, A)
    bench.now += 1.0
    bench.session.tick(bench.now)
    assert bench.plans.requests[-1].held == ()


# ---------------------------------------------------------------- prefixes


def offer(bench: Bench, node: NodeId, cached: int, unit: int = T) -> None:
    message = Opened(SESSION, bench.session.epoch, 0, 0, cached, unit)
    bench.session.opened(node, message, bench.now)


def started(bench: Bench) -> tuple[list[tuple[int, int]], int]:
    """(kv_length, send_from) per hop, and the position of the first step."""
    sent = [m for _, m in bench.sent()]
    starts = [(m.kv_length, m.send_from) for m in sent if isinstance(m, Resume)]
    return starts, min(m.position for m in sent if isinstance(m, Step))


def test_hops_start_at_the_depth_they_have_in_common() -> None:
    bench = Bench(prompt=4 * T, max_tokens=1)
    bench.session.start(bench.now)
    chains = [m.prefix for _, m in bench.sent() if isinstance(m, Open)]
    assert [len(chain) for chain in chains] == [3 * PREFIX_HASH_BYTES] * 2
    assert chains[0] != chains[1]
    offer(bench, A, 3 * T)
    offer(bench, B, 2 * T, 2 * T)
    assert started(bench) == ([(2 * T, 2 * T), (2 * T, 4 * T - 1)], 2 * T)
    bench.token(4 * T)
    bench.sent()
    end = bench.replies()[-1]
    assert isinstance(end, Finished) and end.stats.cached_tokens == 2 * T


def test_one_hop_without_the_prefix_makes_all_before_it_run() -> None:
    bench = Bench(prompt=4 * T)
    bench.session.start(bench.now)
    bench.sent()
    offer(bench, A, 3 * T)
    bench.opened(B)
    assert started(bench) == ([(0, 0), (0, 4 * T - 1)], 0)
    assert bench.session.stats().cached_tokens == 0


@pytest.mark.parametrize(("cached", "unit"), [(T, 0), (-1, T), (6, 1)])
def test_an_offer_that_cannot_be(cached: int, unit: int) -> None:
    bench = Bench()
    bench.session.start(bench.now)
    offer(bench, A, cached, unit)
    assert bench.session.reroutes == 1


def test_an_end_names_the_whole_sequence_and_a_failure_nothing() -> None:
    bench = Bench(prompt=T, max_tokens=T + 1)
    bench.running()
    for position in range(T, 2 * T + 1):
        bench.token(position)
    released = [m.prefix for _, m in bench.sent() if isinstance(m, Release)]
    ids = [*bench.session.order.prompt_ids, *[7] * (T + 1)]
    expected = chain_of(ids).whole()
    assert len(expected) == 2 * PREFIX_HASH_BYTES
    assert released == [salted(expected, salt) for salt in salts_of(route(A, B))]
    failed = Bench(route(A, B), prompt=2 * T)
    failed.session.start(failed.now)
    refuse(failed, B)
    assert {m.prefix for _, m in failed.sent() if isinstance(m, Release)} == {b""}


def test_a_client_that_leaves_leaves_its_prefix() -> None:
    bench = Bench(prompt=2 * T)
    bench.running()
    bench.session.cancel()
    released = [m.prefix for _, m in bench.sent() if isinstance(m, Release)]
    assert [len(chain) for chain in released] == [PREFIX_HASH_BYTES] * 2


def test_rows_of_mixed_classes_are_shared_with_nobody() -> None:
    bench = Bench(route(A, B), route(A, C, classes="cx"), prompt=2 * T)
    bench.running()
    bench.session.node_failed(B, FailureCode.LINK_DOWN, "reset", bench.now)
    assert [m.prefix for _, m in bench.sent() if isinstance(m, Open)] == [b"", b""]
    open_all(bench)
    bench.session.cancel()
    assert [m.prefix for _, m in bench.sent() if isinstance(m, Release)] == [b"", b""]


def test_a_next_turn_asks_for_the_nodes_that_have_its_past() -> None:
    memory = PrefixMemory()
    first = chain_of(list(range(3 * T))).whole()
    memory.remember(first, route(D, C))
    longer = chain_of([*range(2 * T), *[5] * 2 * T]).whole()
    assert {(n, depth) for n, _, depth in memory.depths(longer)} == {(C, 2 * T), (D, 2 * T)}
    memory.remember(longer, route(A, B))
    assert [depth for n, _, depth in memory.depths(longer) if n in (A, B)] == [3 * T, 3 * T]
    assert memory.depths(chain_of([9] * 2 * T).whole()) == ()


def test_the_plan_is_asked_for_with_what_is_remembered() -> None:
    bench = Bench(prompt=2 * T)
    memory = PrefixMemory()
    memory.remember(chain_of(list(bench.session.order.prompt_ids)).whole(), route(D, C))
    bench.session.start(bench.now, memory)
    request: PlanRequest = bench.plans.requests[0]
    hops = route(D, C).hops
    assert request.cached == ((D, hops[0].layers, T), (C, hops[1].layers, T))
    assert request.new_prompt_count(D, hops[0].layers) == T
    assert request.new_prompt_count(D, hops[1].layers) == 2 * T


# ---------------------------------------------------------------- chains


def test_the_same_ids_of_another_model_have_other_names() -> None:
    ids = [1] * (2 * T)
    assert PrefixChain(ModelId("other"), ids).whole() != chain_of(ids).whole()


def test_a_chain_names_everything_before_it() -> None:
    ids = list(range(5 * T))
    chain = PrefixChain(MODEL.model_id, ids)
    short = chain.whole()
    assert len(short) == 4 * PREFIX_HASH_BYTES
    ids += [1] * T
    assert chain.whole()[: len(short)] == short
    other = [7, *ids[1:]]
    changed = chain_of(other).whole()
    assert all(
        changed[at : at + PREFIX_HASH_BYTES] != short[at : at + PREFIX_HASH_BYTES]
        for at in range(0, len(short), PREFIX_HASH_BYTES)
    )


def test_a_prompt_of_whole_blocks_keeps_its_last_row_to_run() -> None:
    assert len(chain_of([1] * 2 * T).whole()) == PREFIX_HASH_BYTES
    assert len(chain_of([1] * (2 * T + 1)).whole()) == 2 * PREFIX_HASH_BYTES
    assert chain_of([1]).whole() == b""
    assert salted(b"", b"x" * PREFIX_HASH_BYTES) == b""


def test_the_longest_chain_fits_a_message() -> None:
    count = (CHAIN_BLOCKS_MAX + 5) * T
    chain = chain_of([1] * count).whole()
    assert len(chain) == CHAIN_BLOCKS_MAX * PREFIX_HASH_BYTES
    bench = Bench()
    bench.session.start(bench.now)
    (order, _) = (m for _, m in bench.sent() if isinstance(m, Open))
    order = replace(order, prompt_count=count, position_limit=count, prefix=chain)
    assert decode(b"".join(encode(order)), PEER_MESSAGES, None) == order


def test_salts_tell_classes_apart_and_not_cuts() -> None:
    one = salts_of(route(A, B))
    assert one == salts_of(route(C, D))
    assert len(set(one)) == 2
    mixed = salts_of(route(A, B, classes="cx"))
    assert mixed[0] == one[0] and mixed[1] != one[1]
    assert salts_of(route(A, B, classes="xx"))[1] not in (one[1], mixed[1])


def test_no_route_for_want_of_cover_is_still_no_route() -> None:
    bench = Bench(route(A, B))
    bench.running()
    bench.token(6)
    bench.session.node_failed(B, FailureCode.LINK_DOWN, "reset", bench.now)
    assert "Release" not in [kind for _, kind in kinds(bench.sent())]
    bench.now += CONFIG.cover_wait_s
    bench.plans.routes.clear()
    bench.session.tick(bench.now)
    bench.sent()
    last = bench.replies()[-1]
    assert isinstance(last, Failed) and isinstance(last.error, NoRoute)
