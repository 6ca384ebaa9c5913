"""Usage on disk (`<home>/usage.sqlite`): written in batches by a thread, read by whoever asks."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from pathlib import Path

from swarm.access.database_io import Database
from swarm.access.keys import DAY_S
from swarm.access.usage import Amount, Place, Rows, Tally, UsageLine
from swarm.errors import ConfigError
from swarm.notes import Level, NoteSink, note

FILE_NAME = "usage.sqlite"
FLUSH_S = 2.0
"""Counts wait this long to be written together: what a killed node can lose of them."""
PENDING_ROWS_MAX = 4096
"""Days, keys and models that can wait where the disk fails; some hundred bytes each."""
DAYS_KEPT = 400
LINES_MAX = 100_000
"""Of one answer to a question after usage."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS usage (
    day INTEGER NOT NULL,
    key TEXT NOT NULL,
    model TEXT NOT NULL,
    requests INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    PRIMARY KEY (day, key, model)
) WITHOUT ROWID;
"""
_EPOCH = datetime.date(1970, 1, 1)


def day_of(wall_s: float) -> int:
    return int(wall_s // DAY_S)


def day_text(day: int) -> str:
    return (_EPOCH + datetime.timedelta(days=day)).isoformat()


def parse_day(text: str) -> int:
    """Days since 1970 of `2026-01-31`. Raises ConfigError."""
    try:
        return (datetime.date.fromisoformat(text.strip()) - _EPOCH).days
    except ValueError as error:
        raise ConfigError(f"a day is given as 2026-01-31, not {text!r}") from error


class UsageStore:
    """Blocking; a gateway calls it from a thread. Raises ConfigError with one plain sentence."""

    def __init__(self, home: Path) -> None:
        self._database = Database(home / FILE_NAME, _SCHEMA, version=1)

    def add(self, rows: Rows) -> None:
        """All of them or none."""
        with self._database.open() as connection:
            connection.executemany(
                "INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
                " requests = requests + excluded.requests,"
                " prompt_tokens = prompt_tokens + excluded.prompt_tokens,"
                " completion_tokens = completion_tokens + excluded.completion_tokens,"
                " cached_tokens = cached_tokens + excluded.cached_tokens",
                [
                    (place.day, place.key, place.model, amount.requests, amount.prompt_tokens,
                     amount.completion_tokens, amount.cached_tokens)
                    for place, amount in rows
                ],
            )  # fmt: skip

    def lines(self, since_day: int = 0, key: str | None = None) -> tuple[UsageLine, ...]:
        """By day, key and model, oldest first; of one `key` alone where that is given."""
        if not self._database.exists:
            return ()
        with self._database.open() as connection:
            rows = connection.execute(
                "SELECT day, key, model, requests, prompt_tokens, completion_tokens, cached_tokens"
                " FROM usage WHERE day >= ? AND (? IS NULL OR key = ?)"
                " ORDER BY day, key, model LIMIT ?",
                (since_day, key, key, LINES_MAX),
            ).fetchall()
        return tuple(
            UsageLine(day_text(day), name, model, Amount(*counts))
            for day, name, model, *counts in rows
        )

    def made_whole(self) -> Path | None:
        """Where a damaged file was set aside; None for one that can be used."""
        return self._database.made_whole()

    def begin(self, today: int) -> dict[str, int]:
        """Forget what is too old; the tokens of `today` by key."""
        if not self._database.exists:
            return {}
        with self._database.open() as connection:
            connection.execute("DELETE FROM usage WHERE day < ?", (today - DAYS_KEPT,))
            rows = connection.execute(
                "SELECT key, sum(prompt_tokens + completion_tokens) FROM usage WHERE day = ?"
                " GROUP BY key",
                (today,),
            ).fetchall()
        return dict(rows)


class UsageLedger:
    """A gateway's counts on their way to the disk. All methods on the gateway's loop."""

    def __init__(self, store: UsageStore, wall_clock: Callable[[], float], notes: NoteSink) -> None:
        self._store = store
        self._wall_clock = wall_clock
        self._notes = notes
        self._tally = Tally(PENDING_ROWS_MAX)
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._is_failing = False

    async def start(self) -> None:
        """Read what was used today before this start. Raises ConfigError."""
        kept = await asyncio.to_thread(self._store.made_whole)
        if kept is not None:
            self._notes(note("gateway.usage_damaged", Level.WARNING, kept=str(kept)))
        day = day_of(self._wall_clock())
        self._tally.begin_day(day, await asyncio.to_thread(self._store.begin, day))

    def add(self, key: str, model: str, amount: Amount) -> None:
        self._tally.add(Place(day_of(self._wall_clock()), key, model), amount)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self._due)

    def used_today(self, key: str) -> int:
        return self._tally.used(key, day_of(self._wall_clock()))

    async def lines(self, since_day: int, key: str | None) -> tuple[UsageLine, ...]:
        """What is on disk, after what waits was written there. Raises ConfigError."""
        await self._flush()
        return await asyncio.to_thread(self._store.lines, since_day, key)

    async def close(self) -> None:
        """Write what waits."""
        if self._timer is not None:
            self._timer.cancel()
        await self._flush()

    def _due(self) -> None:
        self._timer = None
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())

    async def _flush(self) -> None:
        if self._writing is not None and not self._writing.done():
            await asyncio.shield(self._writing)
        if self._tally.has_pending:
            self._writing = asyncio.create_task(self._write())
            await asyncio.shield(self._writing)

    async def _write(self) -> None:
        rows = self._tally.take()
        try:
            await asyncio.to_thread(self._store.add, rows)
        except ConfigError as error:
            self._tally.put_back(rows)
            if not self._is_failing:
                self._notes(note("gateway.usage_unwritten", Level.ERROR, detail=str(error)))
            self._is_failing = True
        else:
            self._is_failing = False
        if self._tally.has_pending and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self._due)
