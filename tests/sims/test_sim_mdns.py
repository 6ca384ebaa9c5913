"""Simulated mDNS: who is sighted when, and what a bad network does to it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from sim_streams import Pair

from sims.machine import Machine, Process
from sims.mdns import Segment, SimMdns
from sims.wire import WIRED
from swarm.discovery.announcement import Announcement
from swarm.terms import Address, NodeId

IDS = {name: NodeId(name * 32) for name in "abc"}


@dataclass
class Ear:
    pair: Pair
    sighted: list[tuple[str, tuple[Address, ...], float]] = field(default_factory=list)
    foreign: list[tuple[str, str]] = field(default_factory=list)

    def peer_sighted(self, node: NodeId, addresses: tuple[Address, ...]) -> None:
        self.sighted.append((node[0], addresses, self.pair.now_s))

    def foreign_swarm(self, tag: str, name: str) -> None:
        self.foreign.append((tag, name))

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.sighted]


class Lan(Pair):
    """`begin` starts mDNS on a machine; the ears tell what was heard there."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__(seed)
        self.segment = Segment(self.loop, self.net)
        self.ears: dict[str, Ear] = {}
        self.started_s = self.now_s

    def begin(
        self,
        name: str,
        process: Process | None = None,
        *,
        tag: str = "ours",
        host: str = "0.0.0.0",
        announce: bool = True,
    ) -> SimMdns:
        number = "abc".index(name)
        self.ears[name] = Ear(self)
        own = Announcement(IDS[name], tag, name, Address(host, 7000 + number), 1, 1)
        mdns = SimMdns(self.segment, own, self.ears[name], announce=announce)
        self.run(process or self.processes[number], mdns.start())
        return mdns

    def kill(self, number: int) -> Process:
        """The new process in its place."""
        self.loop.kill(self.processes[number])
        self.net.process_ended(self.processes[number])
        self.processes[number] = self.loop.process(self.machines[number])
        return self.processes[number]


def test_a_joiner_hears_the_others_at_once_and_is_heard_when_its_name_is_its_own() -> None:
    lan = Lan()
    lan.begin("a")
    lan.rest(10.0)
    start_s = lan.now_s
    lan.begin("b")
    lan.rest(10.0)
    ((name, addresses, at_s),) = lan.ears["b"].sighted
    assert (name, addresses) == ("a", (Address("10.0.0.1", 7000),))
    assert 0.04 <= at_s - start_s <= 0.25
    ((name, addresses, at_s),) = lan.ears["a"].sighted
    assert (name, addresses) == ("b", (Address("10.0.0.2", 7001),))
    assert 1.15 <= at_s - start_s <= 1.26
    lan.check()


def test_the_address_that_is_bound_is_the_one_that_is_announced() -> None:
    lan = Lan()
    lan.begin("a", host="10.0.0.1")
    lan.begin("b")
    lan.rest(3.0)
    assert lan.ears["b"].sighted[0][1] == (Address("10.0.0.1", 7000),)


def test_another_swarm_is_told_of_once() -> None:
    lan = Lan()
    lan.begin("a", tag="others")
    lan.begin("b")
    lan.rest(20.0)
    assert lan.ears["b"].foreign == [("others", "a")]
    assert lan.ears["b"].sighted == []


def test_who_only_listens_is_not_heard() -> None:
    lan = Lan()
    lan.begin("a", announce=False)
    lan.begin("b")
    lan.rest(20.0)
    assert lan.ears["a"].names == ["b"]
    assert lan.ears["b"].names == []


def test_queries_go_on_in_spite_of_loss() -> None:
    heard = 0
    for seed in range(20):
        lan = Lan(seed)
        lan.net.profile = WIRED.lossy(0.4)
        lan.begin("a")
        lan.begin("b")
        lan.rest(20.0)
        heard += len(lan.ears["b"].names)
    assert 18 <= heard <= 20


def test_nothing_is_heard_through_a_cut_and_hearing_may_be_one_way() -> None:
    lan = Lan()
    lan.net.cut(lan.a, lan.b)
    lan.segment.deafen(lan.a, lan.c)
    for name in "abc":
        lan.begin(name)
    lan.rest(30.0)
    assert lan.ears["a"].names == []
    assert lan.ears["c"].names.count("a") == 1
    assert lan.ears["b"].names == ["c"]
    lan.segment.undeafen(lan.a, lan.c)


def test_loss_of_everything_is_silence() -> None:
    lan = Lan()
    lan.segment.loss = 1.0
    lan.begin("a")
    lan.begin("b")
    lan.rest(30.0)
    assert lan.ears["a"].names == lan.ears["b"].names == []


@pytest.mark.parametrize(("goodbye_loss", "times"), [(0.0, 2), (1.0, 1)])
def test_who_missed_the_goodbye_is_not_told_of_the_return(goodbye_loss: float, times: int) -> None:
    lan = Lan()
    lan.segment.goodbye_loss = goodbye_loss
    lan.begin("a")
    other = lan.begin("b")
    lan.rest(10.0)
    lan.run(lan.processes[1], other.stop())
    lan.run(lan.processes[1], other.stop())
    lan.rest(1.0)
    lan.begin("b")
    lan.rest(10.0)
    assert lan.ears["a"].names == ["b"] * times
    assert lan.ears["b"].names == ["a"]


def test_a_killed_node_says_no_goodbye_and_its_own_ears_are_fresh() -> None:
    lan = Lan()
    lan.begin("a")
    lan.begin("b")
    lan.rest(10.0)
    lan.begin("b", lan.kill(1))
    lan.rest(10.0)
    assert lan.ears["a"].names == ["b"]
    assert lan.ears["b"].names == ["a"]


@pytest.mark.parametrize(("share", "names"), [(0.0, []), (1.0, ["b"])])
def test_caches_of_others_answer_for_machines_long_gone(share: float, names: list[str]) -> None:
    lan = Lan()
    lan.segment.stale_share = share
    lan.begin("b")
    lan.rest(10.0)
    lan.net.machine_vanished(lan.b)
    lan.kill(1)
    lan.rest(600.0)
    lan.begin("c")
    lan.rest(10.0)
    assert lan.ears["c"].names == names
    lan.rest(4500.0)
    lan.begin("a")
    lan.rest(10.0)
    assert lan.ears["a"].names == ["c"]


def test_a_machine_off_the_air_neither_hears_nor_answers() -> None:
    lan = Lan()
    lan.begin("a")
    lan.rest(5.0)
    lan.loop.sleep_machine(lan.a)
    lan.begin("b")
    lan.rest(20.0)
    assert lan.ears["a"].names == lan.ears["b"].names == []
    lan.loop.wake_machine(lan.a, [lan.processes[0]])
    lan.rest(20.0)
    assert lan.ears["b"].names in ([], ["a"])


def test_changed_addresses_are_announced_within_a_rescan() -> None:
    lan = Lan()
    lan.begin("a")
    lan.begin("b")
    lan.rest(10.0)
    lan.net.move(lan.b, ("10.0.7.7",))
    lan.rest(7.0)
    assert [found[:2] for found in lan.ears["a"].sighted] == [
        ("b", (Address("10.0.0.2", 7001),)),
        ("b", (Address("10.0.7.7", 7001),)),
    ]
    assert lan.ears["b"].names == ["a", "a"]


def test_a_cloned_identity_keeps_an_entry_of_its_own() -> None:
    lan = Lan()
    lan.begin("a")
    lan.begin("c")
    own = Announcement(IDS["a"], "ours", "a", Address("0.0.0.0", 7000), 1, 1)
    clone = SimMdns(lan.segment, own, Ear(lan))
    lan.run(lan.processes[1], clone.start())
    lan.rest(10.0)
    found = sorted(addresses[0].host for _, addresses, _ in lan.ears["c"].sighted)
    assert found == ["10.0.0.1", "10.0.0.2"]
    assert lan.ears["a"].names == ["c"]


def test_a_hundred_nodes_stay_cheap() -> None:
    pair = Pair()
    segment = Segment(pair.loop, pair.net)
    ears = []
    for number in range(100):
        machine = Machine(10 + number, str(number), (f"10.1.0.{number}",))
        pair.net.add(machine)
        ears.append(Ear(pair))
        letters = "abcdefghijklmnopqrstuvwxyz"
        node = NodeId(letters[number // 26] + letters[number % 26] + "a" * 30)
        own = Announcement(node, "ours", str(number), Address("0.0.0.0", 7000), 1, 1)
        process = pair.loop.process(machine)
        pair.loop.spawn(process, SimMdns(segment, own, ears[-1]).start())
    pair.rest(20.0)
    assert all(len(ear.sighted) == 99 for ear in ears)
    assert pair.loop.step_count < 100_000
