"""Several cores together: convergence, restarts, deaths, pauses, cuts, partitions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gossip_world import World, dynamic_record, static_record

from swarm.config import GossipConfig
from swarm.messages import Records, Suspicion, Verdict
from swarm.terms import MemberState

ALIVE, SUSPECT = MemberState.ALIVE, MemberState.SUSPECT
DEAD, LEFT = MemberState.DEAD, MemberState.LEFT


@pytest.mark.parametrize("count", [2, 3, 10])
def test_all_nodes_hold_the_same_view_soon_after_they_meet(count: int) -> None:
    world = World(count)
    world.run_until(world.agree, 0.3)
    for node in world.nodes:
        assert list(node.view()) == sorted(other.node for other in world.nodes)
        assert all(member.static for member in node.gossip.members())


def test_a_change_is_pushed_to_everybody_at_once() -> None:
    world = World(10)
    world.run(1)
    changed = static_record(0, name="renamed")
    world.nodes[0].do(world.nodes[0].gossip.publish_static, changed)

    def known() -> bool:
        views = [node.view()[world.nodes[0].node].static for node in world.nodes]
        return all(view == changed for view in views)

    assert world.run_until(known, 0.05) < 0.05


@pytest.mark.parametrize("seed", range(3))
def test_views_converge_although_messages_are_lost(seed: int) -> None:
    world = World(6, seed, loss=0.2)
    for number, node in enumerate(world.nodes):
        world.run(0.3)
        node.do(node.gossip.publish_static, static_record(number, name=f"late{number}"))
    world.loss = 0.0
    world.run_until(world.agree, 10)
    names = {member.static.name for member in world.nodes[0].gossip.members() if member.static}
    assert names == {f"late{number}" for number in range(6)}


def test_nodes_without_a_link_between_them_learn_of_each_other() -> None:
    world = World(3, mesh=False)
    a, b, c = world.nodes
    world.unreachable.add(frozenset((a.node, c.node)))
    world.link(a, b)
    world.run(0.5)
    world.link(b, c)
    world.run_until(world.agree, 0.3)
    world.run(60)
    assert a.state_of(c) is ALIVE and not a.ever(c, SUSPECT)
    assert c.gossip.incarnation == 1, "an indirect proof of life suffices"


def test_islands_merge_when_one_link_appears() -> None:
    world = World(6, mesh=False)
    for island in (world.nodes[:3], world.nodes[3:]):
        for a in island:
            for b in island:
                world.link(a, b)
    world.run(1)
    world.link(world.nodes[0], world.nodes[5])
    world.run_until(world.agree, 0.3)
    world.run(0.1)
    assert len(world.links) == 15, "each dials those it heard of"


def test_a_killed_process_is_suspect_at_once_and_dead_everywhere_within_three_seconds() -> None:
    world = World(5)
    world.run(2)
    victim, others = world.nodes[2], [n for n in world.nodes if n.number != 2]
    world.kill(victim)
    world.run(0.01)
    assert all(node.state_of(victim) is SUSPECT for node in others)
    world.run_until(lambda: all(n.state_of(victim) is DEAD for n in others), 3.0)
    assert {node.gossip.state_hash() for node in others} == {others[0].gossip.state_hash()}
    assert all(node.gossip.member(victim.node).static for node in others), "addresses are kept"


def test_a_silent_machine_is_dead_everywhere() -> None:
    world = World(4)
    world.run(2)
    victim, others = world.nodes[3], world.nodes[:3]
    world.vanish(victim)
    took = world.run_until(lambda: all(n.state_of(victim) is DEAD for n in others), 6.0)
    assert took > 2.5, "three heartbeats, a probe and the shortest suspicion"
    assert all(frozenset((victim.node, n.node)) not in world.links for n in others)


def test_two_nodes_need_no_confirmation() -> None:
    world = World(2)
    world.run(1)
    world.kill(world.nodes[1])
    world.run_until(lambda: world.nodes[0].state_of(world.nodes[1]) is DEAD, 2.0)


def test_half_the_swarm_dying_at_once_is_known_to_the_rest() -> None:
    world = World(9)
    world.run(2)
    victims, others = world.nodes[:4], world.nodes[4:]
    for victim in victims:
        world.kill(victim)
    world.run_until(lambda: all(n.state_of(v) is DEAD for n in others for v in victims), 3.0)
    assert not any(n.ever(o, SUSPECT) for n in others for o in others)


def test_a_restart_replaces_the_old_entry_at_once() -> None:
    world = World(4)
    world.run(2)
    node = world.nodes[1]
    node.do(node.gossip.publish_dynamic, dynamic_record())
    world.run(0.1)
    world.restart(node, incarnation=2)

    def replaced() -> bool:
        members = [n.gossip.member(node.node) for n in world.nodes]
        return all(m.state is ALIVE and m.incarnation == 2 for m in members if m)

    world.run_until(lambda: replaced() and world.agree(), 1.6)
    for other in world.nodes:
        assert len(other.gossip.members()) == 4
        assert other.gossip.member(node.node).dynamic is None, "figures of the old life"
        assert not other.ever(node, DEAD)


def test_a_node_back_from_the_dead_needs_a_new_incarnation() -> None:
    world = World(3)
    world.run(1)
    node, others = world.nodes[0], world.nodes[1:]
    world.kill(node)
    world.run_until(lambda: all(n.state_of(node) is DEAD for n in others), 4)
    world.restart(node, incarnation=1)
    world.run_until(world.agree, 3)
    assert node.saved == node.gossip.incarnation == 2, "it saved what refuted the verdict"
    assert "gossip.refuted" in node.notes


def test_a_node_that_lost_its_disk_finds_its_place_again() -> None:
    world = World(3)
    node = world.nodes[0]
    for name in ("a", "b", "c"):
        world.run(0.2)
        node.do(node.gossip.publish_static, static_record(0, name=name))
    world.restart(node, incarnation=1)
    world.run_until(lambda: world.agree() and node.gossip.incarnation == 2, 3)
    assert world.nodes[1].gossip.member(node.node).static.name == "node0"
    assert not any({"member.cloned", "member.contradicted"} & set(n.notes) for n in world.nodes)


def test_leaving_is_told_and_not_suspected() -> None:
    world = World(4)
    world.run(1)
    leaver, others = world.nodes[0], world.nodes[1:]
    leaver.do(leaver.gossip.leave)
    for other in others:
        world.at(world.now + 0.01, lambda o=other: world.close(leaver.node, o.node, orderly=True))
    leaver.is_up = True
    world.run(0.005)
    assert all(node.state_of(leaver) is LEFT for node in others)
    leaver.is_up = False
    world.run(5)
    assert all(node.state_of(leaver) is LEFT for node in others)
    assert not any(node.ever(leaver, SUSPECT) for node in others)
    assert leaver.gossip.next_deadline() is None


def test_an_orderly_close_after_an_announced_departure_means_left() -> None:
    world = World(3)
    world.run(1)
    leaver, other = world.nodes[0], world.nodes[1]
    leaver.do(leaver.gossip.publish_static, static_record(0, leaving=True))
    world.run(0.1)
    assert other.state_of(leaver) is ALIVE, "its sessions may still drain"
    other.do(other.gossip.link_down, leaver.node, True)
    assert other.state_of(leaver) is LEFT


@pytest.mark.parametrize("seed", range(3))
def test_a_pause_of_two_seconds_evicts_nobody(seed: int) -> None:
    world = World(5, seed)
    world.run(2)
    sleeper = world.nodes[seed]
    world.pause(sleeper, 2.0)
    world.run(8)
    assert not any(a.ever(b, DEAD) for a in world.nodes for b in world.nodes)
    assert world.agree()
    assert not any(sleeper.ever(other, SUSPECT) for other in world.nodes), "it blames itself"


def test_jitter_bursts_of_half_a_second_are_no_news() -> None:
    world = World(4)
    world.run(1)
    for burst in range(20):
        world.pause(world.nodes[burst % 4], 0.5)
        world.run(1.0)
    assert not any(a.ever(b, SUSPECT) for a in world.nodes for b in world.nodes)


def test_a_hearing_loss_in_one_direction_does_not_kill() -> None:
    world = World(4)
    world.run(1)
    deaf, speaker = world.nodes[0], world.nodes[1]
    world.cut.add((speaker.node, deaf.node))
    world.run(30)
    assert not deaf.ever(speaker, DEAD) and not speaker.ever(deaf, DEAD)
    assert frozenset((deaf.node, speaker.node)) not in world.links, "a half-dead link is closed"
    world.heal()
    world.run_until(lambda: frozenset((deaf.node, speaker.node)) in world.links, 5)
    world.run_until(world.agree, 1)


def test_a_broken_link_between_two_is_told_apart_from_a_death() -> None:
    world = World(4)
    world.run(1)
    a, b = world.nodes[:2]
    world.unreachable.add(frozenset((a.node, b.node)))
    world.close(a.node, b.node, orderly=False)
    world.run(30)
    assert world.agree()
    assert not a.ever(b, DEAD) and not b.ever(a, DEAD)
    assert a.gossip.incarnation <= 3, "one refutation settles it"


@pytest.mark.parametrize(("seed", "lasts_s"), [(1, 3.0), (2, 30.0), (3, 120.0)])
def test_a_healed_partition_gives_identical_views(seed: int, lasts_s: float) -> None:
    world = World(7, seed)
    world.run(2)
    world.partition(world.nodes[:3], world.nodes[3:])
    world.run(lasts_s / 2)
    changed = world.nodes[0]
    changed.do(changed.gossip.publish_static, static_record(0, name="renamed"))
    world.run(lasts_s / 2)
    if lasts_s >= 30:
        assert world.nodes[0].state_of(world.nodes[6]) is DEAD
    world.heal()
    world.run_until(world.agree, 5)
    views = [{m.node: (m.incarnation, m.static) for m in n.gossip.members()} for n in world.nodes]
    assert all(view == views[0] for view in views)
    assert all("member.cloned" not in node.notes for node in world.nodes)


def test_a_partition_longer_than_the_tombstones_heals_too() -> None:
    world = World(4, config=GossipConfig(tombstone_s=20.0))
    world.run(1)
    world.partition(world.nodes[:2], world.nodes[2:])
    world.run(60)
    assert len(world.nodes[0].gossip.members()) == 2, "the others are forgotten"
    world.heal()
    world.run_until(world.agree, 5)


def test_tombstones_expire() -> None:
    world = World(3, config=GossipConfig(tombstone_s=30.0))
    world.run(1)
    world.kill(world.nodes[0])
    world.run(20)
    assert world.nodes[1].state_of(world.nodes[0]) is DEAD
    world.run(20)
    assert world.nodes[1].gossip.member(world.nodes[0].node) is None
    assert len(world.nodes[2].gossip.members()) == 2


def test_a_sleeper_does_not_bring_the_forgotten_back_to_life() -> None:
    world = World(4, config=GossipConfig(tombstone_s=20.0))
    world.run(1)
    gone, sleeper = world.nodes[0], world.nodes[1]
    world.pause(sleeper, 120.0)
    world.run(1)
    world.kill(gone)
    world.run(150)
    assert world.agree()
    assert all(n.state_of(gone) in (None, DEAD) for n in world.up())
    world.run(60)
    assert all(n.state_of(gone) is None for n in world.up())


def test_a_stale_alive_is_answered_with_the_verdict() -> None:
    world = World(3)
    world.run(1)
    a, b, gone = world.nodes
    old = a.gossip._parts.store.records_of(gone.node)
    world.kill(gone)
    world.run_until(lambda: a.state_of(gone) is DEAD and b.state_of(gone) is DEAD, 5)
    before = len(a.sent)
    a.gossip.receive(b.node, Records(old), world.now)
    a.settle()
    verdicts = [s for _, s in a.sent[before:] if isinstance(s.message, Verdict)]
    assert [s.message for s in verdicts] == [Verdict(gone.node, old[0].incarnation, False)]
    assert verdicts[0].peer == b.node
    assert a.state_of(gone) is DEAD


def test_idle_swarm_is_quiet_and_steady() -> None:
    world = World(5)
    world.run(5)
    for node in world.nodes:
        node.sent.clear()
        node.states.clear()
    world.run(60)
    for node in world.nodes:
        assert not node.states and world.agree()
        per_peer_s = len(node.sent) / 4 / 60
        assert per_peer_s < 2.2, "two heartbeats a second, and little else"


def test_suspicion_is_refuted_by_its_subject_only() -> None:
    world = World(3)
    world.run(1)
    a, b, c = world.nodes
    a.gossip.receive(b.node, Suspicion(c.node, c.gossip.incarnation, b.node), world.now)
    a.settle()
    assert a.state_of(c) is ALIVE, "hearsay makes a node probe, no more"
    world.run(1)
    assert c.gossip.incarnation == 2 and c.saved == 2
    assert world.agree()


def test_who_accuses_many_wrongly_is_not_believed() -> None:
    world = World(7)
    world.run(1)
    liar, target = world.nodes[0], world.nodes[1]
    for other in world.nodes[2:]:
        accusation = Suspicion(other.node, other.gossip.incarnation, liar.node)
        target.gossip.receive(liar.node, accusation, world.now)
    target.settle()
    assert "member.discredited" in target.notes
    told = {s.peer for _, s in target.sent if isinstance(s.message, Suspicion)}
    assert len(told) == 2, "after a third of its peers, its word counts no more"
    world.run(3)
    assert world.agree()


def test_an_isolated_node_accuses_nobody_in_public() -> None:
    world = World(8)
    world.run(1)
    lone = world.nodes[0]
    lone.sent.clear()
    world.partition([lone], world.nodes[1:])
    world.run(10)
    accused = [s for _, s in lone.sent if isinstance(s.message, Suspicion) and s.peer]
    assert lone.gossip.local_health <= 7
    subjects = {s.message.subject for s in accused}
    assert len(subjects) <= 3, "then its own health speaks against it"


def test_figures_of_a_busy_node_are_paced() -> None:
    world = World(3)
    world.run(1)
    busy = world.nodes[0]
    busy.sent.clear()
    for step in range(200):
        busy.do(busy.gossip.publish_dynamic, dynamic_record(decode_s=0.001 * (1 + step)))
        world.run(0.1)
    writes = {s.message for _, s in busy.sent if isinstance(s.message, Records)}
    assert 9 <= len(writes) <= 12, "20 s of changes, one record each 2 s"
    latest = world.nodes[1].gossip.member(busy.node).dynamic
    assert latest is not None and latest.speeds[0].decode_s_per_layer > 0.17


def test_equal_figures_are_written_again_only_to_stay_fresh() -> None:
    world = World(2)
    world.run(1)
    node = world.nodes[0]
    node.sent.clear()
    for step in range(650):
        wiggle = 0.001 * (1 + 0.05 * (step % 2))
        node.do(node.gossip.publish_dynamic, dynamic_record(decode_s=wiggle))
        world.run(0.1)
    writes = [s for _, s in node.sent if isinstance(s.message, Records)]
    assert len(writes) == 3, "at once, after 30 s, after 60 s"


def test_the_core_replays_exactly() -> None:
    def trace() -> list[tuple[float, object]]:
        world = World(5, seed=7, loss=0.05)
        world.run(3)
        world.kill(world.nodes[0])
        world.run(5)
        return [entry for node in world.nodes for entry in node.sent]

    assert trace() == trace()


def test_refuting_saves_before_it_speaks() -> None:
    world = World(2)
    world.run(1)
    node, peer = world.nodes
    node.gossip.receive(peer.node, Suspicion(node.node, node.gossip.incarnation, peer.node), 101.5)
    kinds = [type(effect).__name__ for effect in node.gossip.take_effects()]
    assert kinds.index("SaveIncarnation") < kinds.index("Send")
    assert replace(static_record(0)) == node.gossip.member(node.node).static
