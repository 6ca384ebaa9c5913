"""Receipts: what sessions cost whom, what a signature holds, and what is refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from swarm.access.receipts import (
    NODE_ACCOUNTS_MAX,
    Account,
    Consumption,
    ReceiptBook,
    Seal,
)
from swarm.access.receipts_io import ReceiptDesk, ReceiptLinks, ReceiptStore
from swarm.effects import Generated, SessionEvent, Stalled, Started
from swarm.errors import RemoteProtocolError
from swarm.link.identity import Identity, node_id_of, verify
from swarm.messages import Message, Ping, Receipt, Receipts
from swarm.notes import Note
from swarm.terms import Hop, LayerRange, ModelId, NodeId, NumericClass, Route, SampledToken

MODEL = ModelId("ab" * 16)
DAY = 20_000
WALL_S = DAY * 86_400.0 + 5.0


def seal(letter: str, tag: str = "tag") -> Seal:
    identity = Identity(letter.encode() * 32)
    return Seal(identity.node_id, tag, identity.public_key, identity.sign, verify, node_id_of)


ANNA, BERT, EVE = seal("a"), seal("b"), seal("e")


def started(**layers: tuple[int, int]) -> Started:
    hops = [
        Hop(NodeId(node), LayerRange(*cut), False, False, NumericClass("c"))
        for node, cut in layers.items()
    ]
    return Started(Route(tuple(hops), 0.1, 0.1), 1)


TOKEN = Generated(SampledToken(0, 5))


def run(prompt: int, *events: SessionEvent) -> dict[str, int]:
    counted = Consumption(prompt)
    sums: dict[str, int] = {}
    for event in events:
        for node, layer_tokens in counted.of(event).items():
            sums[node] = sums.get(node, 0) + layer_tokens
    return sums


def test_every_position_counts_for_every_layer_that_ran_it() -> None:
    assert run(10, started(a=(0, 4), b=(4, 10)), TOKEN, TOKEN) == {"a": 4 * 12, "b": 6 * 12}


def test_who_takes_over_is_paid_for_the_rebuild_and_who_stays_is_not() -> None:
    events = [started(a=(0, 4), b=(4, 10)), TOKEN, Stalled("gone"), started(a=(0, 4), c=(4, 10)),
              TOKEN]  # fmt: skip
    assert run(10, *events) == {"a": 4 * 12, "b": 6 * 11, "c": 6 * 12}


def test_other_layers_on_the_same_node_are_run_anew() -> None:
    events = [started(a=(0, 4), b=(4, 10)), started(a=(0, 10))]
    assert run(10, *events) == {"a": 4 * 10 + 10 * 10, "b": 6 * 10}


def receipt(count: int = 50, day: int = DAY, server: Seal = BERT) -> Receipt:
    return ANNA.receipt(Account(day, server.me, MODEL), count)


def test_an_honest_receipt_is_taken_by_the_node_that_it_is_for() -> None:
    assert BERT.check(ANNA.me, receipt(), DAY) == Account(DAY, ANNA.me, MODEL)


@pytest.mark.parametrize(
    ("origin", "forged", "says"),
    [
        (EVE, receipt(), "another node"),
        (ANNA, receipt(server=EVE), "forged"),
        (ANNA, replace(receipt(), layer_tokens=51), "forged"),
        (ANNA, replace(receipt(), day=DAY - 1), "forged"),
        (ANNA, replace(receipt(), model_id=ModelId("cd" * 16)), "forged"),
        (ANNA, replace(receipt(), signature=b""), "forged"),
        (ANNA, replace(receipt(), public_key=EVE.public_key), "another node"),
        (ANNA, replace(receipt(), public_key=b"short"), "malformed"),
        (ANNA, receipt(day=DAY - 8), "day out of range"),
        (ANNA, receipt(day=DAY + 2), "day out of range"),
        (ANNA, receipt(count=0), "count out of range"),
        (ANNA, receipt(count=1 << 60), "count out of range"),
        (ANNA, replace(receipt(), model_id=ModelId("../" * 3)), "no model"),
        (ANNA, replace(receipt(), model_id=ModelId("a" * 33)), "no model"),
    ],
)
def test_what_no_honest_node_sends_hangs_up(origin: Seal, forged: Receipt, says: str) -> None:
    with pytest.raises(RemoteProtocolError, match=says):
        BERT.check(origin.me, forged, DAY)


def test_a_receipt_of_another_swarm_is_worth_nothing() -> None:
    with pytest.raises(RemoteProtocolError, match="forged"):
        seal("b", "other").check(ANNA.me, receipt(), DAY)


def test_a_signature_of_another_kind_is_no_receipt() -> None:
    identity = Identity(b"a" * 32)
    sealed = replace(ANNA, sign=lambda domain, data: identity.sign(b"gossip record", data))
    with pytest.raises(RemoteProtocolError, match="forged"):
        BERT.check(ANNA.me, sealed.receipt(Account(DAY, BERT.me, MODEL), 5), DAY)


def test_a_sum_is_never_rolled_back() -> None:
    book, account = ReceiptBook(10), Account(DAY, ANNA.me, MODEL)
    assert book.signed(account, receipt(50)) and book.signed(account, receipt(70))
    assert not book.signed(account, receipt(60))
    assert book.signed(account, receipt(70)) and book.served == {account: 70}


def test_the_book_is_bounded_both_ways() -> None:
    book = ReceiptBook(3)
    for number in range(10):
        account = Account(DAY + number, ANNA.me, MODEL)
        book.consume(account, 5)
        book.signed(account, receipt())
    assert len(book.consumed) == len(book.served) == 3
    book.forget_before(DAY + 2)
    assert len(book.consumed) == len(book.served) == len(book.unsent()) == 1


def test_no_node_fills_the_book_for_the_others() -> None:
    book = ReceiptBook(2 * NODE_ACCOUNTS_MAX)
    for number in range(3 * NODE_ACCOUNTS_MAX):
        book.signed(Account(DAY, EVE.me, ModelId(f"{number:032x}")), receipt())
    assert len(book.served) == NODE_ACCOUNTS_MAX
    assert book.signed(Account(DAY, ANNA.me, MODEL), receipt())


def test_sums_reach_the_other_side_once_there_is_a_link_and_survive_restarts(
    tmp_path: Path,
) -> None:
    wire: list[Receipt] = []
    linked: set[NodeId] = set()
    notes: list[Note] = []

    def send(peer: NodeId, message: Receipt | Receipts) -> bool:
        assert peer == BERT.me
        assert isinstance(message, Receipt)
        wire.append(message)
        return True

    def desk(who: Seal) -> ReceiptDesk:
        links = ReceiptLinks(lambda: linked, send)
        store = ReceiptStore(tmp_path / who.me)
        return ReceiptDesk(who, store, links, lambda: WALL_S, notes.append)

    async def main() -> None:
        for who in (ANNA, BERT):
            (tmp_path / who.me).mkdir()
        anna = desk(ANNA)
        await anna.start()
        anna.consumed(BERT.me, MODEL, 30)
        anna.consumed(BERT.me, MODEL, 12)
        anna.consumed(ANNA.me, MODEL, 99)
        await anna.close()
        assert wire == []
        linked.add(BERT.me)
        anna = desk(ANNA)
        await anna.start()
        anna.consumed(BERT.me, MODEL, 8)
        await anna.close()
        (sent,) = wire
        bert = desk(BERT)
        await bert.start()
        bert.received(ANNA.me, sent)
        bert.received(ANNA.me, ANNA.receipt(Account(DAY, BERT.me, MODEL), 49))
        bert.received(ANNA.me, ANNA.receipt(Account(DAY, BERT.me, MODEL), 48))
        await bert.close()

    asyncio.run(main())
    assert ReceiptStore(tmp_path / ANNA.me).sums()[0] == {Account(DAY, BERT.me, MODEL): 50}
    assert ReceiptStore(tmp_path / BERT.me).sums()[1] == {Account(DAY, ANNA.me, MODEL): 50}
    assert [entry.event for entry in notes] == ["receipt.refused"]


def test_what_came_before_the_file_was_read_is_not_lost() -> None:
    book, mine, theirs = ReceiptBook(10), Account(DAY, BERT.me, MODEL), Account(DAY, ANNA.me, MODEL)
    book.consume(mine, 5)
    book.signed(theirs, receipt(50))
    book.load({mine: 30}, {theirs: 40})
    assert book.consumed == {mine: 35} and book.served == {theirs: 50}


def test_a_daemon_hands_receipts_to_the_desk_and_all_else_to_the_node() -> None:
    class Node:
        def __init__(self) -> None:
            self.heard_of: list[NodeId] = []
            self.given: list[Message] = []

        def heard(self, peer: NodeId) -> None:
            self.heard_of.append(peer)

        def message_received(self, peer: NodeId, message: Message) -> None:
            self.given.append(message)

    class Desk:
        def __init__(self) -> None:
            self.given: list[Message] = []

        def received(self, peer: NodeId, message: Receipt) -> None:
            self.given.append(message)

    from swarm.daemon import _Late

    late, node, desk = _Late(), Node(), Desk()
    late.target, late.receipts = node, desk  # type: ignore[assignment]
    late.message_received(ANNA.me, receipt())
    late.message_received(ANNA.me, Ping(1))
    assert desk.given == [receipt()] and node.given == [Ping(1)]
    assert node.heard_of == [ANNA.me], "a receipt is a sign of life, as any message is"
