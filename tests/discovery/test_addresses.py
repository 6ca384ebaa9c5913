"""The address book: who is dialled, when, and who is not."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from swarm.config import DiscoveryConfig
from swarm.discovery.addresses import (
    DIAL_PATIENCE_S,
    ENDPOINTS_MAX,
    LASTING_S,
    AddressBook,
    Interest,
    Source,
)
from swarm.effects import Dial
from swarm.terms import Address, NodeId

ME, A, B = (NodeId(letter * 32) for letter in "mab")
CONFIG = DiscoveryConfig()


def at(number: int, port: int = 7000) -> Address:
    return Address(f"10.0.0.{number}", port)


def book(seed: int = 1) -> AddressBook:
    return AddressBook(ME, CONFIG, Random(seed))


def dials(addresses: AddressBook, now: float) -> list[Dial]:
    return [effect for effect in addresses.tick(now) if isinstance(effect, Dial)]


def test_a_sighting_is_dialled_promptly_at_all_addresses_at_once() -> None:
    peers = book()
    peers.sighted(A, (at(1), at(2)), Source.MDNS, 100.0)
    deadline = peers.next_deadline()
    assert deadline is not None and 100.0 <= deadline <= 100.05
    assert dials(peers, deadline) == [Dial((at(1), at(2)), A)]
    assert dials(peers, deadline) == [], "one dial at a time"


def test_a_linked_peer_is_never_dialled() -> None:
    peers = book()
    peers.sighted(A, (at(1),), Source.MDNS, 0.0)
    peers.link_up(A, None, 0.01)
    peers.sighted(A, (at(1), at(3)), Source.GOSSIP, 1.0)
    peers.network_changed(2.0)
    assert peers.next_deadline() is None
    assert dials(peers, 1000.0) == []


def test_pauses_double_up_to_the_limit_and_never_end() -> None:
    peers = book()
    peers.sighted(None, (at(1),), Source.SEED, 0.0)
    now, pauses = 0.0, []
    for _ in range(40):
        deadline = peers.next_deadline()
        assert deadline is not None
        pauses.append(deadline - now)
        now = deadline
        (dial,) = dials(peers, now)
        peers.dial_failed(dial, now)
    assert all(pause <= 1.5 * CONFIG.redial_max_s for pause in pauses)
    assert pauses[1] <= 1.5 * 2 * CONFIG.redial_min_s
    assert min(pauses[10:]) >= 0.5 * CONFIG.redial_max_s


def test_a_dial_without_outcome_counts_as_failed_in_the_end() -> None:
    peers = book()
    peers.sighted(A, (at(1),), Source.MDNS, 0.0)
    assert dials(peers, 1.0)
    assert dials(peers, 1.0 + DIAL_PATIENCE_S - 0.1) == []
    assert dials(peers, 1.0 + DIAL_PATIENCE_S)


def test_own_addresses_are_never_dialled() -> None:
    peers = book()
    peers.own_addresses((at(1),))
    peers.sighted(None, (at(1),), Source.SEED, 0.0)
    peers.sighted(A, (at(1),), Source.GOSSIP, 0.0)
    peers.sighted(ME, (at(1),), Source.MDNS, 0.0)
    assert peers.next_deadline() is None
    peers.sighted(None, (Address("localhost", 7000),), Source.SEED, 0.0)
    peers.reached_self(Address("localhost", 7000))
    peers.sighted(None, (Address("localhost", 7000),), Source.SEED, 1.0)
    assert peers.next_deadline() is None


def test_the_own_id_at_another_address_is_looked_at() -> None:
    """A copy of this node may live there: whoever is dialled finds out."""
    peers = book()
    peers.own_addresses((at(1),))
    peers.sighted(ME, (at(1), at(9)), Source.MDNS, 0.0)
    assert dials(peers, 1.0) == [Dial((at(9),), None)]
    peers.reached_self(at(9))
    peers.sighted(ME, (at(9),), Source.MDNS, 2.0)
    assert peers.next_deadline() is None


def test_links_that_do_not_last_are_made_ever_more_slowly() -> None:
    """A peer that hangs up after every link-up is dialled about as often as an absent one."""
    peers = book()
    peers.sighted(A, (at(1),), Source.SEED, 0.0)
    now, moments = 0.0, []
    while now < 600.0:
        due = peers.next_deadline()
        assert due is not None
        now = max(now, due)
        if dials(peers, now):
            moments.append(now)
            peers.link_up(A, at(1), now + 0.01)
            peers.link_down(A, now + 0.1)
    assert len(moments) < 60
    peers.link_up(A, at(1), now)
    peers.link_down(A, now + LASTING_S)
    due = peers.next_deadline()
    assert due is not None
    assert due <= now + LASTING_S + 1.5 * CONFIG.redial_min_s


def test_an_address_that_we_left_may_be_anothers() -> None:
    peers = book()
    peers.own_addresses((at(1),))
    peers.own_addresses((at(2),))
    peers.network_changed(1.0)
    peers.sighted(A, (at(1), at(2)), Source.MDNS, 2.0)
    assert dials(peers, 3.0) == [Dial((at(1),), A)]


def test_what_led_to_ourselves_is_forgotten_only_with_the_network() -> None:
    peers = book()
    peers.reached_self(at(5))
    peers.own_addresses((at(1),))
    peers.sighted(None, (at(5),), Source.MDNS, 1.0)
    assert dials(peers, 2.0) == []
    peers.network_changed(3.0)
    peers.sighted(None, (at(5),), Source.MDNS, 4.0)
    assert dials(peers, 5.0) == [Dial((at(5),), None)]


def test_an_endpoint_becomes_the_node_that_answers_there() -> None:
    peers = book()
    peers.sighted(None, (at(1),), Source.SEED, 0.0)
    (dial,) = dials(peers, 1.0)
    assert dial == Dial((at(1),), None)
    peers.link_up(A, at(1), 1.1)
    assert peers.next_deadline() is None
    peers.link_down(A, 2.0)
    deadline = peers.next_deadline()
    assert deadline is not None and deadline <= 2.0 + 1.5 * CONFIG.redial_min_s
    assert dials(peers, deadline) == [Dial((at(1),), A)]


def test_an_endpoint_of_a_peer_that_dialled_us_is_known_from_gossip() -> None:
    peers = book()
    peers.sighted(None, (at(1),), Source.SEED, 0.0)
    peers.link_up(A, None, 0.01)
    peers.sighted(A, (at(1),), Source.GOSSIP, 0.02)
    assert peers.next_deadline() is None


def test_a_new_key_at_an_old_address_takes_it_over() -> None:
    peers = book()
    peers.sighted(A, (at(1),), Source.REMEMBERED, 0.0)
    dials(peers, 1.0)
    peers.link_up(B, at(1), 1.1)
    assert peers.addresses_of(A) == () and peers.addresses_of(B) == (at(1),)
    peers.sighted(A, (at(1),), Source.GOSSIP, 2.0)
    assert peers.addresses_of(A) == (), "the ghost's record does not take it back"
    assert dials(peers, 100.0) == []


def test_a_changed_address_is_tried_soon_in_spite_of_a_long_pause() -> None:
    peers = book()
    peers.sighted(A, (at(1),), Source.MDNS, 0.0)
    now = 0.0
    for _ in range(12):
        now = peers.next_deadline() or 0.0
        (dial,) = dials(peers, now)
        peers.dial_failed(dial, now)
    peers.sighted(A, (at(2),), Source.GOSSIP, now + 1.0)
    deadline = peers.next_deadline()
    assert deadline is not None and deadline <= now + 1.05
    (dial,) = dials(peers, deadline)
    assert dial.addresses == (at(2), at(1)), "the newest sighting first"


def test_a_flood_of_sightings_does_not_become_a_flood_of_dials() -> None:
    peers = book()
    count = 0
    for step in range(1000):
        now = step * 0.01
        peers.sighted(A, (at(1),), Source.MDNS, now)
        for dial in dials(peers, now):
            count += 1
            peers.dial_failed(dial, now)
    assert count <= 10.0 / CONFIG.redial_min_s + 1


def test_everybody_absent_is_tried_when_the_network_changes() -> None:
    peers = book()
    for node, number in ((A, 1), (B, 2)):
        peers.sighted(node, (at(number),), Source.MDNS, 0.0)
    for now in (1.0, 30.0, 60.0):
        for dial in dials(peers, now):
            peers.dial_failed(dial, now)
    peers.network_changed(61.0)
    assert {dial.expected for dial in dials(peers, 61.1)} == {A, B}


def test_remembered_are_the_linked_first_and_old_ones_that_did_not_answer() -> None:
    peers = book()
    peers.sighted(None, (at(7),), Source.REMEMBERED, 0.0)
    peers.sighted(None, (at(8),), Source.SEED, 0.0)
    peers.link_up(A, at(1), 1.0)
    peers.link_up(B, at(2), 2.0)
    peers.link_down(B, 3.0)
    assert peers.remembered() == (at(1), at(2), at(7))


def test_a_peer_that_dialled_us_is_remembered_once_its_address_is_known() -> None:
    peers = book()
    peers.link_up(A, None, 0.0)
    assert peers.remembered() == ()
    peers.sighted(A, (at(1), at(2)), Source.GOSSIP, 1.0)
    assert peers.remembered() == (at(1),)


def test_limits_hold_and_spare_what_the_operator_named() -> None:
    peers = book()
    peers.sighted(None, (at(1),), Source.SEED, 0.0)
    for number in range(2 * ENDPOINTS_MAX):
        peers.sighted(None, (at(2, 1000 + number),), Source.REMEMBERED, 0.0)
    assert len(dials(peers, 10.0)) == ENDPOINTS_MAX
    seed = at(1)
    many = tuple(at(3, 100 + port) for port in range(50))
    peers.link_up(A, seed, 11.0)
    peers.sighted(A, many, Source.GOSSIP, 12.0)
    assert len(peers.addresses_of(A)) == CONFIG.addresses_per_peer_max + 1
    assert seed in peers.addresses_of(A)


@pytest.mark.parametrize("seed", [1, 2])
def test_jitter_comes_from_the_generator_given(seed: int) -> None:
    def deadlines() -> list[float | None]:
        peers = book(seed)
        peers.link_up(A, at(1), 0.0)
        peers.link_down(A, 1.0)
        return [peers.next_deadline()]

    assert deadlines() == deadlines()


# ---------------------------------------------------------------- interest


def lose(peers: AddressBook, node: NodeId, number: int, now: float) -> None:
    """A link that had lasted is gone."""
    peers.link_up(node, at(number), now - 2 * LASTING_S)
    peers.link_down(node, now)


def test_members_that_live_and_are_not_wanted_are_left_in_peace() -> None:
    peers = book()
    peers.sighted(A, (at(1),), Source.GOSSIP, 0.0)
    peers.stands(A, Interest.RESTING, 0.0)
    assert peers.next_deadline() is None
    peers.sighted(A, (at(1), at(4)), Source.MDNS, 1.0)
    peers.network_changed(2.0)
    assert dials(peers, 1000.0) == []
    (dial,) = peers.dial_now(A, 1000.0)
    assert isinstance(dial, Dial), "a session may ask for it all the same"
    peers.link_up(A, at(1), 1001.0)
    peers.link_down(A, 1030.0)
    assert peers.next_deadline() is None, "nor is it redialled after it was of use"
    peers.stands(A, Interest.WANTED, 2000.0)
    deadline = peers.next_deadline()
    assert deadline is not None and deadline <= 2000.0 + 0.05


def test_who_left_in_good_order_is_looked_for_seldom() -> None:
    peers = book()
    peers.sighted(A, (at(1),), Source.GOSSIP, 0.0)
    peers.link_up(A, at(1), 1.0)
    peers.stands(A, Interest.DEPARTED, 20.0)
    peers.link_down(A, 20.1)
    deadline = peers.next_deadline()
    assert deadline is not None and deadline >= 20.0 + 0.5 * CONFIG.departed_redial_s
    peers.sighted(A, (at(1),), Source.MDNS, 30.0)
    deadline = peers.next_deadline()
    assert deadline is not None and deadline <= 31.0, "unless it shows up"


def test_who_was_lost_lately_is_tried_every_second_and_later_slowly() -> None:
    peers = book()
    lose(peers, A, 1, 100.0)
    now, moments = 100.0, []
    while now < 100.0 + 2 * CONFIG.redial_recent_s:
        now = peers.next_deadline() or now
        for dial in dials(peers, now):
            moments.append(now)
            peers.dial_failed(dial, now)
    soon = [b - a for a, b in itertools.pairwise(moments) if b < 100.0 + CONFIG.redial_recent_s]
    late = [b - a for a, b in itertools.pairwise(moments) if a > 200.0 + CONFIG.redial_recent_s]
    assert max(soon) <= 2 * CONFIG.redial_recent_max_s
    assert min(late) >= 0.5 * CONFIG.redial_max_s


def test_many_lost_ones_share_the_dials_and_some_are_always_early() -> None:
    peers = book()
    nodes = [NodeId(f"{number:032d}") for number in range(100)]
    for number, node in enumerate(nodes):
        lose(peers, node, 1 + number, 100.0)
    now, moments = 100.0, []
    while now < 400.0:
        now = peers.next_deadline() or now
        for dial in dials(peers, now):
            moments.append(now)
            peers.dial_failed(dial, now)
    rate = sum(moment > 200.0 for moment in moments) / 200.0
    assert 0.5 <= rate / CONFIG.absent_dials_per_s <= 2.0
    gaps = [b - a for a, b in itertools.pairwise(moments) if a > 200.0]
    assert max(gaps) < 12.0


def test_the_dead_of_a_large_swarm_are_not_dialled_by_everybody() -> None:
    first = []
    for seed in range(50):
        peers = book(seed)
        for number in range(640):
            node = NodeId(f"{number:032d}")
            peers.sighted(node, (at(1, 1000 + number),), Source.GOSSIP, 0.0)
            peers.stands(node, Interest.RESTING, 0.0)
        peers.stands(NodeId(f"{7:032d}"), Interest.ABSENT, 0.0)
        first.append(peers.next_deadline() or 0.0)
    assert min(first) >= 10 * CONFIG.redial_max_s


def test_seeds_are_known_by_the_nodes_that_live_there() -> None:
    peers = book()
    peers.sighted(None, (at(1),), Source.SEED, 0.0)
    peers.link_up(B, at(2), 1.0)
    assert peers.seed_nodes() == ()
    peers.link_up(A, at(1), 1.0)
    assert peers.seed_nodes() == (A,)
    peers.link_down(A, 2.0)
    assert peers.seed_nodes() == ()
