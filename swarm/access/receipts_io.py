"""Receipts on their way: counted from sessions, signed and sent now and then, kept on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from swarm.access.database_io import Database
from swarm.access.receipts import DAY_PAST_MAX, Account, ReceiptBook, Seal, Sums
from swarm.access.usage_io import DAYS_KEPT, LINES_MAX, day_of, day_text
from swarm.errors import ConfigError
from swarm.messages import Receipt
from swarm.notes import Level, NoteSink, note
from swarm.terms import ModelId, NodeId, short

FILE_NAME = "receipts.sqlite"
SEND_S = 15.0
"""Sums that changed are signed and sent this often: one small message a serving node and model."""
SENDS_MAX = 64
"""Receipts signed at a time, some 40 microseconds each; the others wait for the next time."""
ACCOUNTS_MAX = 4096
"""Nodes, models and days, each way: of a week, some hundred bytes each."""
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
"""


class ReceiptStore:
    """Blocking; a node calls it from a thread. Raises ConfigError with one plain sentence."""

    def __init__(self, home: Path) -> None:
        self._database = Database(home / FILE_NAME, _SCHEMA, version=1)

    def save(self, consumed: Sums, served: dict[Account, Receipt]) -> None:
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

    def made_whole(self) -> Path | None:
        """Where a damaged file was set aside; None for one that can be used."""
        return self._database.made_whole()

    def begin(self, today: int) -> None:
        """Forget what is too old."""
        if self._database.exists:
            with self._database.open() as connection:
                for table in ("consumed", "served"):
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

    is_linked: Callable[[NodeId], bool]
    send: Callable[[NodeId, Receipt], bool]


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
        self._is_linked = links.is_linked
        self._wall_clock = wall_clock
        self._notes = notes
        self._book = ReceiptBook(ACCOUNTS_MAX)
        self._timer: asyncio.TimerHandle | None = None
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
        consumed, served = await asyncio.to_thread(self._store.sums, today - DAY_PAST_MAX)
        self._book.load(consumed, served)
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
        if not self._book.signed(account, receipt) and peer not in self._complained:
            self._complained.add(peer)
            day, count = day_text(receipt.day), receipt.layer_tokens
            self._notes(
                note("receipt.refused", Level.WARNING, node=short(peer), day=day, count=count)
            )
        self._arm()

    async def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._work is not None:
            await asyncio.gather(self._work, return_exceptions=True)
        self._send_all()
        await self._save()

    def _arm(self) -> None:
        if self._timer is None and self._book.has_news and not self._is_closed:
            self._timer = asyncio.get_running_loop().call_later(SEND_S, self._due)

    def _due(self) -> None:
        self._timer = None
        self._book.forget_before(day_of(self._wall_clock()) - DAY_PAST_MAX)
        self._send_all()
        self._work = asyncio.create_task(self._save())

    def _send_all(self) -> None:
        """To those that are linked, so many at a time: each is a signature on the loop."""
        linked = [pair for pair in self._book.unsent() if self._is_linked(pair[0].node)]
        for account, layer_tokens in linked[:SENDS_MAX]:
            if self._send(account.node, self._seal.receipt(account, layer_tokens)):
                self._book.sent(account)

    async def _save(self) -> None:
        consumed, served = self._book.take_unsaved()
        if consumed or served:
            try:
                await asyncio.to_thread(self._store.save, consumed, served)
            except ConfigError as error:
                self._book.put_back(consumed, served)
                self._notes(note("receipt.unsaved", Level.ERROR, detail=str(error)))
        self._arm()
