"""Receipts on their way: counted from sessions, signed and sent now and then, kept on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from swarm.access.database_io import Database
from swarm.access.ledger import Entry, Ledger
from swarm.access.receipts import (
    DAY_AHEAD_MAX,
    DAY_PAST_MAX,
    Account,
    ReceiptBook,
    Seal,
    Sums,
)
from swarm.access.usage_io import DAYS_KEPT, LINES_MAX, day_of, day_text
from swarm.errors import ConfigError
from swarm.messages import RECEIPTS_MAX, Receipt, Receipts
from swarm.notes import Level, NoteSink, note
from swarm.terms import ModelId, NodeId, short

FILE_NAME = "receipts.sqlite"
SEND_S = 15.0
"""Sums that changed are signed and sent this often: one small message a serving node and model."""
SENDS_MAX = 64
"""Receipts signed at a time, some 40 microseconds each; the others wait for the next time."""
ACCOUNTS_MAX = 4096
"""Nodes, models and days, each way: of a week, some hundred bytes each."""
TELL_S = 120.0
"""What nodes ran for each other is passed on this often: one message of at most 64 a peer."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS consumed (
    day INTEGER NOT NULL, node TEXT NOT NULL, model_id TEXT NOT NULL,
    layer_tokens INTEGER NOT NULL, PRIMARY KEY (day, node, model_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS served (
    day INTEGER NOT NULL, node TEXT NOT NULL, model_id TEXT NOT NULL,
    layer_tokens INTEGER NOT NULL, public_key BLOB NOT NULL, signature BLOB NOT NULL,
    PRIMARY KEY (day, node, model_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ledger (
    day INTEGER NOT NULL, server TEXT NOT NULL, origin TEXT NOT NULL, model_id TEXT NOT NULL,
    layer_tokens INTEGER NOT NULL, public_key BLOB NOT NULL, signature BLOB NOT NULL,
    PRIMARY KEY (day, server, origin, model_id)
) WITHOUT ROWID;
"""


class ReceiptStore:
    """Blocking; a node calls it from a thread. Raises ConfigError with one plain sentence."""

    def __init__(self, home: Path) -> None:
        self._database = Database(home / FILE_NAME, _SCHEMA, version=2)

    def save(
        self, consumed: Sums, served: dict[Account, Receipt], ledger: dict[Entry, Receipt]
    ) -> None:
        with self._database.open() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO consumed VALUES (?, ?, ?, ?)",
                [(a.day, a.node, a.model_id, count) for a, count in consumed.items()],
            )
            connection.executemany(
                "INSERT OR REPLACE INTO served VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (a.day, a.node, a.model_id, r.layer_tokens, r.public_key, r.signature)
                    for a, r in served.items()
                ],
            )
            connection.executemany(
                "INSERT OR REPLACE INTO ledger VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (e.day, e.server, e.origin, e.model_id, r.layer_tokens, r.public_key,
                     r.signature)
                    for e, r in ledger.items()
                ],
            )  # fmt: skip

    def ledger(self, since_day: int = 0) -> dict[Entry, Receipt]:
        """What all nodes ran for others, as far as it has become known here."""
        if not self._database.exists:
            return {}
        with self._database.open() as connection:
            rows = connection.execute(
                "SELECT day, server, origin, model_id, layer_tokens, public_key, signature"
                " FROM ledger WHERE day >= ? ORDER BY day, server, origin, model_id LIMIT ?",
                (since_day, LINES_MAX),
            )
            return {
                Entry(day, NodeId(server), NodeId(origin), ModelId(model)): Receipt(
                    key, ModelId(model), day, count, signature
                )
                for day, server, origin, model, count, key, signature in rows
            }

    def made_whole(self) -> Path | None:
        """Where a damaged file was set aside; None for one that can be used."""
        return self._database.made_whole()

    def begin(self, today: int) -> None:
        """Forget what is too old."""
        if self._database.exists:
            with self._database.open() as connection:
                for table in ("consumed", "served", "ledger"):
                    connection.execute(f"DELETE FROM {table} WHERE day < ?", (today - DAYS_KEPT,))

    def sums(self, since_day: int = 0) -> tuple[Sums, Sums]:
        """Consumed, by who served; and served, by who signed for it."""
        if not self._database.exists:
            return {}, {}
        with self._database.open() as connection:
            found = [
                {
                    Account(day, NodeId(node), ModelId(model_id)): count
                    for day, node, model_id, count in connection.execute(
                        f"SELECT day, node, model_id, layer_tokens FROM {table} WHERE day >= ?"
                        " ORDER BY day, node, model_id LIMIT ?",
                        (since_day, LINES_MAX),
                    )
                }
                for table in ("consumed", "served")
            ]
        return found[0], found[1]


@dataclass(frozen=True, slots=True)
class ReceiptLinks:
    """`send`: False where there is no link to that node now; it is tried again."""

    peers: Callable[[], Collection[NodeId]]
    send: Callable[[NodeId, Receipt | Receipts], bool]


class ReceiptDesk:
    """All methods on the node's loop. `start`, then `close`."""

    def __init__(
        self,
        seal: Seal,
        store: ReceiptStore,
        links: ReceiptLinks,
        wall_clock: Callable[[], float],
        notes: NoteSink,
    ) -> None:
        self._seal = seal
        self._store = store
        self._send = links.send
        self._peers = links.peers
        self._wall_clock = wall_clock
        self._notes = notes
        self._book = ReceiptBook(ACCOUNTS_MAX)
        self._ledger = Ledger(ACCOUNTS_MAX)
        self._timer: asyncio.TimerHandle | None = None
        self._telling: asyncio.TimerHandle | None = None
        self._work: asyncio.Task[None] | None = None
        self._complained: set[NodeId] = set()
        """Who signed less than before; each is told of once."""
        self._is_closed = False

    async def start(self) -> None:
        """Raises ConfigError where what was kept cannot be read, and is not just damaged."""
        kept = await asyncio.to_thread(self._store.made_whole)
        if kept is not None:
            self._notes(note("receipt.damaged", Level.WARNING, kept=str(kept)))
        today = day_of(self._wall_clock())
        await asyncio.to_thread(self._store.begin, today)
        first = today - DAY_PAST_MAX
        consumed, served = await asyncio.to_thread(self._store.sums, first)
        self._book.load(consumed, served)
        for entry, receipt in (await asyncio.to_thread(self._store.ledger, first)).items():
            self._ledger.learn(entry, receipt, is_saved=True)
        self._tell_later()
        self._arm()

    def consumed(self, server: NodeId, model_id: ModelId, layer_tokens: int) -> None:
        """`server` ran so much for a session of this node. Its own work needs no receipt."""
        if server != self._seal.me:
            account = Account(day_of(self._wall_clock()), server, model_id)
            self._book.consume(account, layer_tokens)
            self._arm()

    def received(self, peer: NodeId, receipt: Receipt) -> None:
        """Raises RemoteProtocolError for a forged one: the link is then closed."""
        account = self._seal.check(peer, receipt, day_of(self._wall_clock()))
        self._ledger.learn(self._entry(self._seal.me, peer, receipt), receipt)
        if not self._book.signed(account, receipt) and peer not in self._complained:
            self._complained.add(peer)
            day, count = day_text(receipt.day), receipt.layer_tokens
            self._notes(
                note("receipt.refused", Level.WARNING, node=short(peer), day=day, count=count)
            )
        self._arm()

    def told(self, message: Receipts) -> None:
        """What a peer knows of others. Raises RemoteProtocolError for a forged one."""
        today = day_of(self._wall_clock())
        for served in message.entries[:RECEIPTS_MAX]:
            server, receipt = served.server, served.receipt
            entry = self._entry(server, self._seal.origin_of(receipt), receipt)
            is_now = today - DAY_PAST_MAX <= receipt.day <= today + DAY_AHEAD_MAX
            if is_now and self._ledger.is_news(entry, receipt.layer_tokens):
                self._seal.check_for(server, receipt, today)
                self._ledger.learn(entry, receipt)
        self._arm()

    @staticmethod
    def _entry(server: NodeId, origin: NodeId, receipt: Receipt) -> Entry:
        return Entry(receipt.day, server, origin, receipt.model_id)

    async def close(self) -> None:
        self._is_closed = True
        for timer in (self._timer, self._telling):
            if timer is not None:
                timer.cancel()
        self._timer = self._telling = None
        if self._work is not None:
            await asyncio.gather(self._work, return_exceptions=True)
        self._send_all()
        await self._save()

    def _arm(self) -> None:
        has_news = self._book.has_news or self._ledger.has_unsaved
        if self._timer is None and has_news and not self._is_closed:
            self._timer = asyncio.get_running_loop().call_later(SEND_S, self._due)

    def _due(self) -> None:
        self._timer = None
        for known in (self._book, self._ledger):
            known.forget_before(day_of(self._wall_clock()) - DAY_PAST_MAX)
        self._send_all()
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._save())
        else:
            self._arm()

    def _send_all(self) -> None:
        """To those that are linked, so many at a time: each is a signature on the loop."""
        peers = set(self._peers())
        linked = [pair for pair in self._book.unsent() if pair[0].node in peers]
        for account, layer_tokens in linked[:SENDS_MAX]:
            receipt = self._seal.receipt(account, layer_tokens)
            self._ledger.learn(self._entry(account.node, self._seal.me, receipt), receipt)
            if self._send(account.node, receipt):
                self._book.sent(account)

    def _tell_later(self) -> None:
        self._telling = asyncio.get_running_loop().call_later(TELL_S, self._tell)

    def _tell(self) -> None:
        """Pass on to each peer what it may not know."""
        peers = tuple(self._peers())
        self._ledger.forget_peers(peers)
        for peer in peers:
            news = self._ledger.untold(peer)
            if news is not None and not self._send(peer, news):
                self._ledger.forget_peers([known for known in peers if known != peer])
        self._tell_later()

    async def _save(self) -> None:
        consumed, served = self._book.take_unsaved()
        ledger = self._ledger.take_unsaved()
        if consumed or served or ledger:
            try:
                await asyncio.to_thread(self._store.save, consumed, served, ledger)
            except ConfigError as error:
                self._book.put_back(consumed, served)
                self._ledger.put_back(ledger)
                self._notes(note("receipt.unsaved", Level.ERROR, detail=str(error)))
        self._arm()
