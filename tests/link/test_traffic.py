"""Bytes on links are counted under what the message is for."""

from __future__ import annotations

from swarm.link.traffic import KINDS, Traffic
from swarm.messages import PEER_MESSAGES, FileChunk, Heartbeat, Open, Ping, Records, Step, Token

EXPECTED = {
    Ping: "upkeep",
    Heartbeat: "gossip",
    Records: "gossip",
    Open: "sessions",
    Token: "sessions",
    Step: "rows",
    FileChunk: "files",
}


def kind_of(number: int) -> str:
    traffic = Traffic()
    traffic.sent(number, 7)
    traffic.received(number, 5)
    counts = traffic.counts
    assert sum(counts.sent) == 7 and sum(counts.received) == 5
    assert counts.sent.index(7) == counts.received.index(5)
    return KINDS[counts.sent.index(7)]


def test_messages_are_counted_by_what_they_are_for() -> None:
    for message, kind in EXPECTED.items():
        assert kind_of(message.NUMBER) == kind
    for number in PEER_MESSAGES:
        assert kind_of(number) in KINDS
