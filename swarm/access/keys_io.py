"""Keys of the API on disk (`<home>/keys.sqlite`), and a gateway's fresh copy of them in memory."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from swarm.access.database_io import Database
from swarm.access.keys import ApiKey, Gate, KeyRing, Rate
from swarm.errors import ConfigError
from swarm.notes import Level, NoteSink, note

FILE_NAME = "keys.sqlite"
KEYS_MAX = 1000
"""Held in memory by each gateway of the home, revoked ones too; `list` shows them all."""
RELOAD_S = 1.0
"""A key that was made or revoked meanwhile counts after this long at the latest."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS keys (
    name TEXT PRIMARY KEY,
    digest BLOB NOT NULL UNIQUE,
    created_s REAL NOT NULL,
    models TEXT NOT NULL,
    rate_count INTEGER,
    rate_per_s REAL,
    tokens_per_day INTEGER,
    revoked_s REAL
);
"""


class KeyStore:
    """Blocking; a gateway calls it from a thread. Raises ConfigError with one plain sentence."""

    def __init__(self, home: Path) -> None:
        self._database = Database(home / FILE_NAME, _SCHEMA, version=1)

    def keys(self) -> tuple[ApiKey, ...]:
        """All that were ever made here, oldest first."""
        if not self._database.exists:
            return ()
        with self._database.open() as connection:
            rows = connection.execute(
                "SELECT name, digest, created_s, models, rate_count, rate_per_s, tokens_per_day,"
                " revoked_s FROM keys ORDER BY created_s, name"
            ).fetchall()
        return tuple(map(_key, rows))

    def add(self, key: ApiKey) -> None:
        rate = (None, None) if key.rate is None else (key.rate.count, key.rate.per_s)
        with self._database.open() as connection:
            (count,) = connection.execute("SELECT count(*) FROM keys").fetchone()
            if count >= KEYS_MAX:
                raise ConfigError(f"there are {count} keys already, which is the most there can be")
            try:
                connection.execute(
                    "INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (key.name, key.digest, key.created_s, json.dumps(key.models), *rate,
                     key.tokens_per_day, key.revoked_s),
                )  # fmt: skip
            except sqlite3.IntegrityError as error:
                raise ConfigError(
                    f"there is, or was, a key named {key.name!r}; usage is counted by name, so"
                    " give this one another"
                ) from error

    def revoke(self, name: str, at_s: float) -> None:
        changed = 0
        if self._database.exists:
            with self._database.open() as connection:
                changed = connection.execute(
                    "UPDATE keys SET revoked_s = ? WHERE name = ? AND revoked_s IS NULL",
                    (at_s, name),
                ).rowcount
        if not changed:
            raise ConfigError(f"no key in force is named {name!r}; `swarm keys list` shows them")


class KeyWatch:
    """Keeps a gate's keys as they are on disk. Looks when somebody asks, never on the loop."""

    def __init__(
        self, store: KeyStore, gate: Gate, clock: Callable[[], float], notes: NoteSink
    ) -> None:
        self._store = store
        self._gate = gate
        self._clock = clock
        self._notes = notes
        self._looked_at: float | None = None
        self._look: asyncio.Task[None] | None = None
        self._known: tuple[ApiKey, ...] | None = None

    async def refresh(self) -> None:
        """Returns once the gate's keys are at most `RELOAD_S` old, or cannot be read."""
        now = self._clock()
        if self._looked_at is not None and now - self._looked_at < RELOAD_S:
            return
        if self._look is None or self._look.done():
            self._look = asyncio.create_task(self._read(now))
        await asyncio.shield(self._look)

    async def close(self) -> None:
        if self._look is not None:
            with suppress(asyncio.CancelledError):
                await self._look

    async def _read(self, now: float) -> None:
        """Keys that cannot be read stay as they were: nobody gets in by it, or is locked out."""
        try:
            keys = await asyncio.to_thread(self._store.keys)
        except ConfigError as error:
            if self._looked_at is None or self._known is not None:
                self._notes(note("gateway.keys_unread", Level.ERROR, detail=str(error)))
            keys = self._known or ()
        self._looked_at = now
        if keys != self._known:
            self._known = keys
            self._gate.load(KeyRing(keys))


def _key(row: tuple[Any, ...]) -> ApiKey:
    name, digest, created_s, models, count, per_s, tokens_per_day, revoked_s = row
    try:
        rate = None if count is None else Rate(int(count), float(per_s))
        return ApiKey(
            name=str(name),
            digest=bytes(digest),
            created_s=float(created_s),
            models=tuple(map(str, json.loads(models))),
            rate=rate,
            tokens_per_day=None if tokens_per_day is None else int(tokens_per_day),
            revoked_s=None if revoked_s is None else float(revoked_s),
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the key {name!r} in {FILE_NAME} is damaged; revoke it") from error
