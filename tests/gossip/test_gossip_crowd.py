"""Swarms too large for a full mesh: links by choice, rumours, hearsay, and what it all costs."""

from __future__ import annotations

import pytest
from gossip_crowd import Crowd, CrowdNode, percentile

from swarm.config import GossipConfig
from swarm.messages import Suspicion, Verdict
from swarm.terms import Incarnation, MemberState

ALIVE, SUSPECT = MemberState.ALIVE, MemberState.SUSPECT
DEAD, LEFT = MemberState.DEAD, MemberState.LEFT


slow = pytest.mark.slow
LARGE_CHANGE = pytest.param(100, 1.0, marks=slow)
LARGE_RATE = pytest.param(100, 20_000, marks=slow)
NIGHT = pytest.param(9, 3600.0, marks=slow)
LARGE_SLEEP = pytest.param(40, 60.0, marks=slow)
HASTY = GossipConfig(link_rest_s=4.0)
"""Surplus links go sooner, so that tests of it are short."""


def crowd(count: int, seed: int = 1, *, islands: int = 1) -> Crowd:
    """A settled swarm: everybody knows everybody, and surplus links are gone."""
    world = Crowd(count, seed, config=HASTY, stall=0.01, islands=islands)
    world.run(12)
    return world


def change_s(world: Crowd, node: CrowdNode, name: str) -> float:
    """How long until every node knows of a change of a static record."""
    record = node.static(name=name)
    node.do(node.gossip.publish_static, record)

    def is_known() -> bool:
        views = (other.gossip.member(node.node) for other in world.up())
        return all(view is not None and view.static == record for view in views)

    return world.run_until(is_known, 10)


def falsely_suspected(world: Crowd, *guilty: CrowdNode) -> list[tuple[int, int]]:
    known = {node.node for node in guilty}
    return [
        (node.number, world.by_id[other].number)
        for node in world.nodes
        for _, other, state in node.states
        if state in (SUSPECT, DEAD) and other not in known
    ]


# ---------------------------------------------------------------- links


@pytest.mark.parametrize("seed", [0, 5, *(pytest.param(n, marks=slow) for n in range(6, 14))])
def test_the_graph_of_links_stays_in_one_piece_while_it_thins_out(seed: int) -> None:
    world = Crowd(40 + seed, seed, config=HASTY, stall=0.01, start_s=1.0)
    for _ in range(10):
        world.run(1)
        assert world.parts() == 1
    degrees = sorted(world.degrees().values())
    assert degrees[0] >= 12 and degrees[-1] <= 32
    assert sum(degrees) / len(degrees) < 24, "surplus links are closed"
    assert not falsely_suspected(world), "which is no evidence against anybody"


@slow
def test_links_come_to_rest_and_stay() -> None:
    world = crowd(40)
    world.run(20)
    before, dials = dict(world.links), sum(node.dials for node in world.nodes)
    world.run(60)
    kept = sum(world.links.get(pair) == number for pair, number in before.items())
    assert kept >= 0.95 * len(before), "what moves is exploration"
    assert sum(node.dials for node in world.nodes) - dials <= 40


def test_links_in_use_are_kept_whatever_else_is_wanted() -> None:
    world = crowd(40)
    node = world.nodes[3]
    stranger = next(
        other
        for other in world.nodes
        if not node.gossip.member(other.node).linked and other is not node  # type: ignore[union-attr]
    )
    used = frozenset((node.node, stranger.node))
    for (dial,) in (node.book.dial_now(stranger.node, node.clock()),):
        node.do(lambda now: node.gossip.in_use(frozenset({stranger.node})))
        world.dial(node, dial)  # type: ignore[arg-type]
    world.run(20)
    assert used in world.links
    node.do(lambda now: node.gossip.in_use(frozenset()))
    world.run(3)
    assert used in world.links, "it rests for a while first"
    world.run(12)
    assert used not in world.links
    assert not falsely_suspected(world)


def test_nearest_peers_are_found() -> None:
    """Two sites, ten milliseconds apart: half of the links stay inside the own site."""

    class Sites(Crowd):
        def distance_s(self, one: str, other: str) -> float:
            sides = [self.by_id[node].number % 2 for node in (one, other)]  # type: ignore[index]
            return 0.0005 if sides[0] == sides[1] else 0.010

    world = Sites(48, 1, config=HASTY)
    world.run(20)
    near = sum(
        self.number % 2 == world.by_id[peer].number % 2
        for self in world.nodes
        for peer in world.peers_of(self.node)
    )
    assert near / sum(world.degrees().values()) > 0.65
    assert world.parts() == 1
    told = [node.gossip.member(node.node).dynamic.links for node in world.nodes]  # type: ignore[union-attr]
    assert all(0 < len(links) <= world.config.dynamic_links_max for links in told)


def test_a_small_swarm_keeps_every_link() -> None:
    world = crowd(32)
    world.run(10)
    assert len(world.links) == 32 * 31 // 2


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=slow)])
def test_islands_merge_when_any_link_between_them_appears(seed: int) -> None:
    world = crowd(68, seed, islands=2)
    assert world.parts() == 2
    one, other = world.nodes[0], world.nodes[1]
    one.do(one.book_hears, other)
    world.run_until(world.knows_all, 5)
    world.run_until(lambda: world.parts() == 1, 1)
    world.run(15)
    across = sum(len({world.by_id[n].number % 2 for n in pair}) == 2 for pair in world.links)
    assert across > len(world.links) / 5, "not one bridge, but one swarm"
    assert not falsely_suspected(world)


# ---------------------------------------------------------------- what is said


@pytest.mark.parametrize(("count", "limit_s"), [(10, 0.3), (32, 0.3), (40, 1.0), LARGE_CHANGE])
def test_a_change_is_known_everywhere_soon(count: int, limit_s: float) -> None:
    world = crowd(count)
    taken = []
    for number in range(12):
        taken.append(change_s(world, world.nodes[(7 * number) % count], f"change {number}"))
        world.run(0.15)
    assert percentile(taken, 0.99) <= limit_s


@pytest.mark.parametrize(("count", "limit_bytes_s"), [(10, 8_000), (40, 12_000), LARGE_RATE])
def test_an_idle_swarm_says_little(count: int, limit_bytes_s: int) -> None:
    world = crowd(count)
    assert world.rates(25)[-1] <= limit_bytes_s
    assert not falsely_suspected(world)


def test_one_message_is_told_to_several_peers() -> None:
    world = crowd(40)
    node = world.nodes[0]
    sent: list[object] = []
    carry = world.carry
    world.carry = lambda sender, effect: (sent.append(effect.message), carry(sender, effect))[1]  # type: ignore[method-assign, func-returns-value]
    change_s(world, node, "news")
    big = [message for message in sent if type(message).__name__ == "Records"]
    assert len({id(message) for message in big}) < 0.7 * len(big)


# ---------------------------------------------------------------- deaths


@pytest.mark.parametrize("how", [pytest.param("kill", marks=slow), "vanish"])
def test_a_death_is_known_everywhere_within_seconds_and_few_dial(how: str) -> None:
    world = crowd(48)
    victim = world.nodes[40]
    linked = len(world.peers_of(victim.node))
    dials = sum(node.dials for node in world.nodes)
    getattr(world, how)(victim)
    took = world.run_until(lambda: world.sees(DEAD, victim), 12)
    assert took > 2.5, "nobody is buried before his time"
    accusers = sum("member.suspect" in node.notes for node in world.nodes)
    assert accusers >= linked
    tried = sum(node.dials for node in world.nodes) - dials
    assert tried < 12 * linked, "those that had links, a few helpers, a few that were drawn"
    assert not falsely_suspected(world, victim)


@slow
def test_a_tenth_of_the_swarm_dying_at_once_is_known() -> None:
    world = crowd(48)
    victims = world.nodes[10:15]
    for victim in victims:
        world.kill(victim)
    world.run_until(lambda: all(world.sees(DEAD, victim) for victim in victims), 12)
    world.run(10)
    assert world.parts() == 1
    assert not falsely_suspected(world, *victims)


def test_a_dead_node_lives_again_only_by_a_higher_incarnation() -> None:
    world = crowd(40)
    node = world.nodes[7]
    world.kill(node)
    world.run_until(lambda: world.sees(DEAD, node), 12)
    world.restart(node, incarnation=1)
    world.run_until(lambda: world.sees(ALIVE, node), 5)
    assert node.saved == node.gossip.incarnation == 2


def test_a_lone_accuser_of_many_buries_nobody_and_is_not_passed_on() -> None:
    world = crowd(40)
    liar = world.nodes[5]
    told = 0

    def lie() -> None:
        for victim in world.nodes:
            if victim is not liar:
                word = Suspicion(victim.node, victim.gossip.incarnation, liar.node)
                for peer in world.peers_of(liar.node):
                    other = world.by_id[peer]
                    other.do(lambda now, o=other, w=word: o.gossip.receive(liar.node, w, now))

    for _ in range(4):
        lie()
        world.run(1)
        told = max(told, len([n for n in world.nodes if "member.discredited" in n.notes]))
    world.run(10)
    assert told > 10, "who hears it all sees that it is too much"
    assert not [pair for pair in falsely_suspected(world) if pair[1] != liar.number]


def test_one_who_is_wrongly_suspected_refutes_before_anybody_buries_it() -> None:
    world = crowd(40)
    victim = world.nodes[9]
    accusers = [node for node in world.nodes if node is not victim][:3]
    for accuser in accusers:
        word = Suspicion(victim.node, Incarnation(1), accuser.node)
        for peer in world.peers_of(accuser.node):
            other = world.by_id[peer]
            other.do(lambda now, o=other, a=accuser, w=word: o.gossip.receive(a.node, w, now))
    world.run(1.5)
    assert victim.gossip.incarnation == 2
    assert world.sees(ALIVE, victim)
    world.run(20)
    assert not any(node.ever(victim, DEAD) for node in world.nodes)


def test_a_verdict_of_one_node_is_not_believed_by_those_that_hear_the_subject() -> None:
    world = crowd(40)
    victim = world.nodes[2]
    for peer in world.peers_of(victim.node):
        other = world.by_id[peer]
        word = Verdict(victim.node, Incarnation(1), False)
        liar = next(world.by_id[p] for p in world.peers_of(peer) if p != victim.node)
        other.do(lambda now, o=other, s=liar, w=word: o.gossip.receive(s.node, w, now))
    world.run(15)
    assert not any(node.ever(victim, DEAD) for node in world.nodes)
    assert world.sees(ALIVE, victim) and victim.gossip.incarnation == 2


@slow
def test_stalled_nodes_are_not_buried() -> None:
    world = crowd(40)
    for turn in range(6):
        for node in world.nodes[turn::8]:
            world.pause(node, 0.3 + 0.3 * turn)
        world.run(5)
    world.run(10)
    assert not any(node.ever(other, DEAD) for node in world.nodes for other in world.nodes)
    world.run_until(world.agree, 20)


# ---------------------------------------------------------------- crowds that move


@slow
def test_a_mass_restart_settles() -> None:
    world = crowd(48)
    for node in world.nodes[::2]:
        world.restart(node, node.saved + 1)
    world.run_until(lambda: all(world.sees(ALIVE, node) for node in world.nodes), 10)
    world.run(10)
    assert world.parts() == 1
    lives = {n.node: n.gossip.incarnation for n in world.nodes}
    for node in world.nodes:
        assert {m.node: m.incarnation for m in node.gossip.members()} == lives


def test_a_mass_leave_is_a_leave_for_everybody() -> None:
    world = crowd(52)
    leavers, rest = world.nodes[20:36], [*world.nodes[:20], *world.nodes[36:]]
    dials = sum(node.dials for node in rest)
    for node in leavers:
        world.leave(node)
    world.run_until(lambda: all(world.sees(LEFT, node) for node in leavers), 5)
    world.run(30)
    assert world.parts() == 1 and not falsely_suspected(world)
    assert all(world.sees(LEFT, node) for node in leavers)
    assert sum(node.dials for node in rest) - dials < 16 * 36, "they are not looked for"


@pytest.mark.parametrize(
    ("count", "lasts_s"), [(9, 8.0), (9, 60.0), pytest.param(32, 30.0, marks=slow)]
)
def test_views_are_identical_soon_after_a_heal(count: int, lasts_s: float) -> None:
    world = crowd(count)
    half = count // 2
    world.partition_in([world.nodes[:half], world.nodes[half:]])
    world.run(lasts_s)
    world.heal()
    world.run_until(world.agree, 3)


@slow
def test_a_large_swarm_comes_together_after_a_heal() -> None:
    world = crowd(56)
    world.partition_in([world.nodes[:21], world.nodes[21:]])
    world.run(25)
    assert world.nodes[0].state_of(world.nodes[55]) is DEAD
    world.heal()
    world.run_until(lambda: all(world.sees(ALIVE, node) for node in world.nodes), 20)
    world.run(10)
    assert world.parts() == 1


# ---------------------------------------------------------------- sleep


@pytest.mark.parametrize(
    ("count", "sleeps_s"), [(2, 30.0), (9, 2.0), (9, 60.0), NIGHT, LARGE_SLEEP]
)
def test_a_laptop_that_wakes_is_whole_again_and_accuses_nobody(count: int, sleeps_s: float) -> None:
    world = crowd(count)
    laptop, others = world.nodes[1], [n for n in world.nodes if n.number != 1]
    lives = {node.node: node.gossip.incarnation for node in others}
    world.sleep(laptop, sleeps_s)
    for node in world.nodes:
        node.states.clear()
    world.run_until(lambda: world.knows_all() and world.sees(ALIVE, laptop), 5)
    assert not falsely_suspected(world, laptop)
    world.run_until(lambda: laptop.gossip.member(others[0].node) is not None, 5)
    world.run(10)
    assert {node.node: node.gossip.incarnation for node in others} == lives
    assert not falsely_suspected(world, laptop)


def test_a_laptop_that_finds_its_network_late_accuses_nobody_in_public() -> None:
    world = crowd(9)
    laptop, others = world.nodes[1], [n for n in world.nodes if n.number != 1]
    world.sleep(laptop, 60.0)
    world.sides[laptop.node] = 7
    world.run(9)
    assert all(laptop.state_of(node) is SUSPECT for node in others), "in private"
    world.heal()
    world.run_until(world.agree, 5)
    assert all(node.gossip.incarnation == 1 for node in others), "nobody had to refute"


# ---------------------------------------------------------------- large ones


@slow
def test_three_hundred_nodes() -> None:
    world = crowd(300)
    world.run(60)
    assert world.parts() == 1 and world.knows_all()
    assert world.rates(20)[-1] <= 25_000
    taken = [change_s(world, world.nodes[7 * n], f"change {n}") for n in range(20)]
    assert percentile(taken, 0.99) <= 1.5
    victim = world.nodes[100]
    world.vanish(victim)
    world.run_until(lambda: world.sees(DEAD, victim), 15)
    assert not falsely_suspected(world, victim)
