"""What is left out for speed must not be missed: flags and deadlines against what they mean."""

from __future__ import annotations

import pytest
from node_world import World, WorldNode, order_of

from swarm.node import NodeCore

THREE = [(0, 4), (4, 8), (8, 12)]


def swarm_of(seed: int, ranges: list[tuple[int, int]]) -> tuple[World, WorldNode]:
    world = World(seed)
    gateway = world.add(None)
    for layers in ranges:
        world.add(layers)
    world.settle()
    return world, gateway


def usage(core: NodeCore) -> object:
    """What the flags stand for: who is watched, kept, and told of life."""
    linked = core._picture.links
    watched = [*core._origins.monitored(), *(peer for _, peer in core._relay.neighbours())]
    in_use = [*core._origins.in_use(), *core._relay.in_use(), *core._reach.wanted()]
    is_needed = core._sentinel._is_needed(linked)
    return ({p for p in watched if p in linked}, set(in_use) - {core._me}, is_needed)


def seen(core: NodeCore) -> object:
    vigil = core._sentinel.vigil
    return (set(vigil._watched), set(core._in_use), core._sentinel._due is not None)


@pytest.mark.parametrize("seed", range(4))
def test_whoever_is_in_use_is_watched_and_kept(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    settle = NodeCore._settle
    checks = 0

    def checked(core: NodeCore, now: float) -> None:
        nonlocal checks
        settle(core, now)
        wanted, kept, is_needed = usage(core)  # type: ignore[misc]
        watched, in_use, is_due = seen(core)  # type: ignore[misc]
        assert (watched, in_use) == (wanted, kept)
        assert is_due or not is_needed
        checks += 1

    monkeypatch.setattr(NodeCore, "_settle", checked)
    world, gateway = swarm_of(seed, THREE * 2)
    sessions = [world.ask(gateway, order_of(20, 30, seed=i)) for i in range(4)]
    for _ in range(3):
        world.run_for(world.rng.uniform(0.05, 0.3))
        victim = world.rng.choice([n for n in world.nodes[1:] if n.alive])
        world.kill(victim)
        world.after(0.4, lambda victim=victim: world.restart(victim))
    world.trim(world.nodes[0], world.nodes[1])
    for session in sessions:
        world.finish(session)
    assert checks > 1000


def test_an_idle_node_hears_heartbeats_without_a_stir() -> None:
    world, gateway = swarm_of(5, THREE)
    world.run_for(5.0)
    gateway.core.stirred = False
    heard = 0
    receive = gateway.core.receive

    def counted(peer, message, now):  # type: ignore[no-untyped-def]
        nonlocal heard
        due = gateway.core.next_deadline()
        receive(peer, message, now)
        after = gateway.core.next_deadline()
        assert due is not None
        assert after is not None
        heard += not gateway.core.stirred
        assert gateway.core.stirred or after >= due

    gateway.core.receive = counted  # type: ignore[method-assign]
    world.run_for(5.0)
    assert heard >= 25


def test_an_idle_node_writes_no_record_and_builds_no_view() -> None:
    world, gateway = swarm_of(6, THREE)
    world.run_for(35.0)
    built: list[str] = []
    picture = gateway.core._picture
    for name in ("dynamic", "static", "swarm", "rivals", "known_models"):
        setattr(picture, name, lambda *_, name=name: built.append(name))
    world.run_for(1.5)
    assert built == []


def test_the_atlas_is_drawn_anew_when_somebody_changes_and_only_then() -> None:
    world, gateway = swarm_of(7, THREE)
    picture = gateway.core._picture
    known = picture._known()
    world.run_for(1.0)
    assert picture._known() is known
    world.crash_worker(world.nodes[2])
    world.run_for(0.2)
    assert picture._known() is not known
    (model,) = gateway.core.models(world.now)
    assert not model.covered
