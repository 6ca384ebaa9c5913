from swarm.discovery.detours import ASKED_MAX, Detours
from swarm.terms import NodeId

PEER = NodeId("p")
MIDDLES = [NodeId(letter) for letter in "abcdef"]


def test_a_round_asks_one_after_the_other_and_ends() -> None:
    detours = Detours()
    asked = [detours.seek(PEER, MIDDLES)]
    assert detours.seek(PEER, MIDDLES) is None, "one at a time"
    while asked[-1] is not None:
        assert detours.is_sought(PEER)
        asked.append(detours.failed(PEER, asked[-1], MIDDLES))
    assert asked[:-1] == MIDDLES[:ASKED_MAX]
    assert not detours.is_sought(PEER)
    assert detours.seek(PEER, MIDDLES) == MIDDLES[0], "a new round begins afresh"


def test_only_the_one_asked_can_refuse() -> None:
    detours = Detours()
    assert detours.seek(PEER, MIDDLES) == MIDDLES[0]
    assert detours.failed(PEER, MIDDLES[1], MIDDLES) is None
    assert detours.is_sought(PEER)


def test_nobody_to_ask_and_the_peer_itself_is_nobody() -> None:
    detours = Detours()
    assert detours.seek(PEER, []) is None
    assert detours.seek(PEER, [PEER]) is None
    assert not detours.is_sought(PEER)


def test_what_is_remembered_of_a_peer_ends_with_a_direct_link() -> None:
    detours = Detours()
    assert detours.seek(PEER, MIDDLES)
    detours.linked(PEER, MIDDLES[0])
    assert detours.is_closed(PEER)
    assert not detours.is_sought(PEER)
    detours.linked(PEER, None)
    assert not detours.is_closed(PEER)
