"""Receipts go round: everybody learns what was run for whom, and nobody can make it up."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from test_receipts import ANNA, BERT, DAY, EVE, MODEL, WALL_S, receipt, seal

from swarm.access.ledger import Entry, Ledger
from swarm.access.receipts import NODE_ACCOUNTS_MAX, Account, Seal
from swarm.access.receipts_io import FILE_NAME, ReceiptDesk, ReceiptLinks, ReceiptStore
from swarm.errors import RemoteProtocolError
from swarm.messages import (
    PEER_MESSAGES,
    RECEIPTS_MAX,
    Lane,
    Receipt,
    Receipts,
    ServedReceipt,
    decode,
    encode,
)
from swarm.terms import ModelId, NodeId

ENTRY = Entry(DAY, BERT.me, ANNA.me, MODEL)
PEER = NodeId("p" * 32)


def entry(number: int) -> Entry:
    return replace(ENTRY, model_id=ModelId(f"{number:032x}"))


def told(ledger: Ledger, peer: NodeId = PEER) -> list[int]:
    message = ledger.untold(peer)
    return [] if message is None else [e.receipt.layer_tokens for e in message.entries]


def test_a_peer_is_told_once_and_again_of_what_grew() -> None:
    ledger = Ledger(100)
    ledger.learn(ENTRY, receipt(50))
    ledger.learn(entry(1), receipt(7))
    assert told(ledger) == [7, 50] and told(ledger) == []
    ledger.learn(ENTRY, receipt(49))
    assert told(ledger) == []
    ledger.learn(ENTRY, receipt(60))
    assert told(ledger) == [60]
    ledger.forget_peers([])
    assert told(ledger) == [60, 7], "one that comes back may have lost all"


def test_much_is_told_in_pieces_and_what_changes_all_the_time_keeps_nothing_back() -> None:
    ledger = Ledger(1000)
    count = 2 * RECEIPTS_MAX
    for number in range(count):
        ledger.learn(entry(number), receipt(number + 1))
    first = told(ledger)
    assert first == list(range(count, RECEIPTS_MAX, -1))
    for number in range(RECEIPTS_MAX, count):
        ledger.learn(entry(number), receipt(1000 + number))
    assert told(ledger) == list(range(RECEIPTS_MAX, 0, -1)), "these were never told"
    assert sorted(told(ledger)) == [1000 + number for number in range(RECEIPTS_MAX, count)]
    assert told(ledger) == []


@pytest.mark.parametrize("party", [ANNA.me, BERT.me])
def test_who_has_it_already_is_not_told(party: NodeId) -> None:
    ledger = Ledger(100)
    ledger.learn(ENTRY, receipt(50))
    assert told(ledger, party) == []


def test_the_ledger_is_bounded_and_no_origin_fills_it() -> None:
    ledger = Ledger(NODE_ACCOUNTS_MAX + 1)
    for number in range(2 * NODE_ACCOUNTS_MAX):
        ledger.learn(entry(number), receipt())
    assert len(ledger.receipts()) == NODE_ACCOUNTS_MAX
    for letter in "xyz":
        ledger.learn(replace(ENTRY, origin=seal(letter).me), receipt())
    assert len(ledger.receipts()) == NODE_ACCOUNTS_MAX + 1
    ledger.take_unsaved()
    ledger.forget_before(DAY + 1)
    ledger.learn(replace(ENTRY, day=DAY + 1), receipt())
    assert len(ledger.receipts()) == 1


def test_the_largest_message_fits_its_frame() -> None:
    ledger = Ledger(1000)
    for number in range(RECEIPTS_MAX):
        ledger.learn(entry(number), receipt(1 << 52))
    message = ledger.untold(PEER)
    assert message is not None
    assert decode(b"".join(encode(message)), PEER_MESSAGES, Lane.CONTROL) == message


class Wire:
    """Desks of a chain of nodes, each linked with the next: what one sends the other gets."""

    def __init__(self, folder: Path, *whom: Seal) -> None:
        self.order = [who.me for who in whom]
        self.desks = {who.me: self._desk(folder, who) for who in whom}

    def _desk(self, folder: Path, who: Seal) -> ReceiptDesk:
        home = folder / who.me
        home.mkdir(exist_ok=True)
        at = self.order.index(who.me)
        peers = [node for node in self.order[max(0, at - 1) : at + 2] if node != who.me]

        def send(peer: NodeId, message: Receipt | Receipts) -> bool:
            if isinstance(message, Receipts):
                self.desks[peer].told(message)
            return True

        links = ReceiptLinks(lambda: peers, send)
        return ReceiptDesk(who, ReceiptStore(home), links, lambda: WALL_S, lambda _: None)

    def round(self) -> None:
        for desk in self.desks.values():
            desk._tell()

    async def close(self) -> None:
        for desk in self.desks.values():
            await desk.close()


def test_who_consumed_knows_its_own_sums_too(tmp_path: Path) -> None:
    async def main() -> None:
        wire = Wire(tmp_path, ANNA, BERT)
        for desk in wire.desks.values():
            await desk.start()
        wire.desks[ANNA.me].consumed(BERT.me, MODEL, 30)
        await wire.close()

    asyncio.run(main())
    (known,) = ReceiptStore(tmp_path / ANNA.me).ledger().items()
    assert known[0] == ENTRY and known[1].layer_tokens == 30


def test_a_receipt_goes_through_the_swarm_and_outlives_a_restart(tmp_path: Path) -> None:
    carl, dora = seal("c"), seal("d")
    signed = ANNA.receipt(Account(DAY, BERT.me, MODEL), 50)

    async def main() -> None:
        wire = Wire(tmp_path, BERT, carl, dora)
        for desk in wire.desks.values():
            await desk.start()
        wire.desks[BERT.me].received(ANNA.me, signed)
        wire.round()
        wire.round()
        await wire.close()

    asyncio.run(main())
    for who in (BERT, carl, dora):
        assert ReceiptStore(tmp_path / who.me).ledger() == {ENTRY: signed}
    assert ReceiptStore(tmp_path / dora.me).ledger(DAY + 1) == {}

    async def again() -> None:
        wire = Wire(tmp_path, dora, EVE)
        for desk in wire.desks.values():
            await desk.start()
        wire.round()
        await wire.close()

    asyncio.run(again())
    assert ReceiptStore(tmp_path / EVE.me).ledger() == {ENTRY: signed}


@pytest.mark.parametrize(
    ("forged", "says"),
    [
        (ServedReceipt(EVE.me, receipt()), "forged"),
        (ServedReceipt(BERT.me, replace(receipt(), layer_tokens=99)), "forged"),
        (ServedReceipt(BERT.me, replace(receipt(), public_key=EVE.public_key)), "forged"),
        (ServedReceipt(BERT.me, replace(receipt(), public_key=b"")), "malformed"),
        (ServedReceipt(NodeId("b"), receipt()), "no node"),
        (ServedReceipt(BERT.me, replace(receipt(), layer_tokens=1 << 60)), "out of range"),
    ],
)
def test_what_is_made_up_hangs_up(tmp_path: Path, forged: ServedReceipt, says: str) -> None:
    async def main() -> None:
        wire = Wire(tmp_path, seal("c"))
        (desk,) = wire.desks.values()
        await desk.start()
        with pytest.raises(RemoteProtocolError, match=says):
            desk.told(Receipts((forged,)))
        await wire.close()

    asyncio.run(main())
    assert ReceiptStore(tmp_path / seal("c").me).ledger() == {}


def test_a_day_that_is_over_is_no_fault_of_the_teller(tmp_path: Path) -> None:
    async def main() -> None:
        wire = Wire(tmp_path, seal("c"))
        (desk,) = wire.desks.values()
        await desk.start()
        desk.told(Receipts((ServedReceipt(BERT.me, receipt(day=DAY - 8)),)))
        await wire.close()

    asyncio.run(main())
    assert ReceiptStore(tmp_path / seal("c").me).ledger() == {}


def test_a_file_from_before_there_was_a_ledger_gets_one(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection, connection:
        connection.executescript(
            "CREATE TABLE consumed (day INTEGER NOT NULL, node TEXT NOT NULL, model_id TEXT NOT"
            " NULL, layer_tokens INTEGER NOT NULL, PRIMARY KEY (day, node, model_id));"
            f" INSERT INTO consumed VALUES ({DAY}, '{BERT.me}', '{MODEL}', 30);"
            " PRAGMA user_version=1"
        )
    store = ReceiptStore(tmp_path)
    assert store.ledger() == {}
    assert store.sums()[0] == {Account(DAY, BERT.me, MODEL): 30}


def test_what_is_old_is_kept_until_it_is_on_disk() -> None:
    ledger = Ledger(100)
    ledger.learn(ENTRY, receipt(50))
    ledger.forget_before(ENTRY.day + 1)
    assert list(ledger.take_unsaved()) == [ENTRY]
    ledger.forget_before(ENTRY.day + 1)
    assert ledger.receipts() == {}
