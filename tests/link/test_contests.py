"""The link table when a linked node shows up as another start of it: by facts and orders."""

from __future__ import annotations

import pytest

from swarm.link.handshake import Established
from swarm.link.lanes import (
    Challenge,
    CloseConnection,
    CopySeen,
    LinkDown,
    LinkTable,
    LinkUp,
    TableEffect,
    TableLimits,
)
from swarm.link.link_io import ALREADY_LINKED, IDENTITY_TAKEN, SELF_DIALLED, Peer
from swarm.link.noise import Cipher
from swarm.messages import Lane
from swarm.terms import Address, Incarnation, NodeId

OWN, NODE = NodeId("b" * 32), NodeId("c" * 32)
SMALL = NodeId("a" * 32)
HERE = Address("10.0.0.1", 7000)
FIRST, SECOND, THIRD = b"1" * 16, b"2" * 16, b"3" * 16


def found(instance: bytes, incarnation: int = 1, node: NodeId = NODE) -> Established:
    return Established(
        node, b"", Incarnation(incarnation), 7000, 1, Lane.CONTROL, b"", Cipher.AES_GCM, b"", b"",
        is_self=False, instance=instance,
    )  # fmt: skip


def peer(instance: bytes, incarnation: int = 1, node: NodeId = NODE, dialled: bool = False) -> Peer:
    return Peer(node, b"", Incarnation(incarnation), HERE, 1, dialled, instance)


def bring(links: LinkTable, who: Peer, control: int, now: float = 0.0) -> list[TableEffect]:
    """A whole link of `who`, on the connections `control` and `control` + 1."""
    binding = bytes([control]) * 32
    shown = Established(
        who.node, b"", who.incarnation, 7000, 1, Lane.DATA, binding, Cipher.AES_GCM, b"", b"",
        is_self=False, instance=who.instance,
    )  # fmt: skip
    links.control_ready(control, who, binding, now)
    effects = links.data_ready(control + 1, shown, dialled=who.dialled, now=now)
    return effects or links.heard(control, now)


def linked(node: NodeId = NODE) -> LinkTable:
    links = LinkTable(OWN, TableLimits(10, 3.0))
    assert isinstance(bring(links, peer(FIRST, node=node), 1)[0], LinkUp)
    return links


@pytest.mark.parametrize("node", [NODE, SMALL])
@pytest.mark.parametrize("incarnation", [1, 9])
@pytest.mark.parametrize("dialled", [True, False])
def test_the_link_that_stands_is_challenged_first(
    node: NodeId, incarnation: int, dialled: bool
) -> None:
    links = linked(node)
    assert links.objection(found(SECOND, incarnation, node), dialled=dialled, now=0.1) is None
    newcomer = peer(SECOND, incarnation, node, dialled)
    assert bring(links, newcomer, 3, 0.1) == [Challenge(1, 3)]
    assert links.heard(3, 0.2) == []
    assert links.connections(node) == (1, 2)


def test_a_sign_of_life_keeps_the_link_and_tells_both() -> None:
    links = linked()
    bring(links, peer(SECOND, 2), 3)
    assert links.answered(3) == [
        CopySeen(1, 3, peer(FIRST), peer(SECOND, 2)),
        CloseConnection(3, IDENTITY_TAKEN, tell=True),
        CloseConnection(4, IDENTITY_TAKEN, tell=True),
    ]
    assert links.answered(3) == []
    assert links.unanswered(3, 9.0) == []
    assert links.connections(NODE) == (1, 2)


def test_silence_makes_it_a_restart() -> None:
    links = linked()
    bring(links, peer(SECOND, 2), 3)
    effects = links.unanswered(3, 1.0)
    assert [type(effect) for effect in effects] == [
        CloseConnection, CloseConnection, LinkDown, LinkUp,
    ]  # fmt: skip
    assert effects[-1] == LinkUp(peer(SECOND, 2), 3, 4, speak=True)
    assert links.answered(3) == []


@pytest.mark.parametrize("lost", [1, 2])
def test_the_end_of_the_old_socket_settles_it_at_once(lost: int) -> None:
    links = linked()
    bring(links, peer(SECOND), 3)
    effects = links.lost(lost, "reset", False, 0.3)
    assert effects == [
        CloseConnection(3 - lost, "reset", tell=False),
        LinkDown(NODE, "reset", False),
        LinkUp(peer(SECOND), 3, 4, speak=True),
    ]


def test_a_newcomer_that_goes_away_leaves_all_as_it_was() -> None:
    links = linked()
    bring(links, peer(SECOND), 3)
    assert links.lost(4, "reset", False) == [CloseConnection(3, "reset", tell=False)]
    assert links.answered(3) == links.unanswered(3, 9.0) == []
    assert links.connections(NODE) == (1, 2)


def test_of_several_newcomers_each_is_judged_against_the_link_that_stands_then() -> None:
    links = linked()
    assert bring(links, peer(SECOND), 3) == [Challenge(1, 3)]
    assert bring(links, peer(THIRD), 5) == [Challenge(1, 5)]
    effects = links.unanswered(3, 1.0)
    assert effects[-1] == LinkUp(peer(SECOND), 3, 4, speak=True)
    assert links.unanswered(5, 1.0) == [Challenge(3, 5)]
    assert links.answered(5)[0] == CopySeen(3, 5, peer(SECOND), peer(THIRD))


def test_several_newcomers_when_the_old_link_ends() -> None:
    links = linked()
    bring(links, peer(SECOND), 3)
    bring(links, peer(THIRD), 5)
    effects = links.lost(1, "reset", False)
    assert effects[-2:] == [LinkUp(peer(SECOND), 3, 4, speak=True), Challenge(3, 5)]


def test_an_incomplete_link_of_another_start_is_left_to_its_own_contest() -> None:
    links = LinkTable(OWN, TableLimits(10, 3.0))
    links.control_ready(3, peer(SECOND), b"x" * 32, 0.0)
    assert bring(links, peer(FIRST), 1) == [LinkUp(peer(FIRST), 1, 2, speak=True)]
    data = Established(
        NODE, b"", Incarnation(1), 7000, 1, Lane.DATA, b"x" * 32, Cipher.AES_GCM, b"", b"",
        is_self=False, instance=SECOND,
    )  # fmt: skip
    assert links.data_ready(4, data, dialled=False, now=0.0) == [Challenge(1, 3)]


@pytest.mark.parametrize(("old", "new"), [(b"", SECOND), (FIRST, b""), (b"", b""), (FIRST, FIRST)])
def test_without_two_known_starts_the_incarnation_decides(old: bytes, new: bytes) -> None:
    links = LinkTable(OWN, TableLimits(10, 3.0))
    bring(links, peer(old, 2), 1)
    assert links.objection(found(new, 1), dialled=False, now=9.0) == ALREADY_LINKED
    assert links.objection(found(new, 3), dialled=False, now=9.0) is None
    assert isinstance(bring(links, peer(new, 3), 3)[-1], LinkUp)


def test_the_own_key_is_a_copy_or_this_node_itself() -> None:
    links = LinkTable(OWN, TableLimits(10, 3.0))
    this = found(FIRST, node=OWN)
    assert links.objection(this, dialled=True, now=0.0) == SELF_DIALLED
    copy = Established(
        OWN, b"", Incarnation(1), 7000, 1, Lane.CONTROL, b"", Cipher.AES_GCM, b"", b"",
        is_self=False, is_copy=True, instance=SECOND,
    )  # fmt: skip
    assert links.objection(copy, dialled=True, now=0.0) is None
