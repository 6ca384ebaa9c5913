"""Small SQLite files of a node's home: made with mode 0600, one schema version each."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from swarm.errors import ConfigError

BUSY_TIMEOUT_S = 5.0
"""How long a writer waits for another process that writes."""


@dataclass(frozen=True, slots=True)
class Database:
    """A file and the statements that make it. Opened anew for every use, from any thread."""

    path: Path
    schema: str
    version: int

    @property
    def exists(self) -> bool:
        return self.path.exists()

    @contextmanager
    def open(self) -> Iterator[sqlite3.Connection]:
        """One transaction. Raises ConfigError for a file that cannot be used, naming it."""
        try:
            if not self.exists:
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            with closing(sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S)) as connection:
                self._prepare(connection)
                with connection:
                    yield connection
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"cannot use {self.path}: {error}") from error

    def _prepare(self, connection: sqlite3.Connection) -> None:
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found > self.version:
            raise ConfigError(f"{self.path} was written by a newer version of swarm; update this")
        if found < self.version:
            connection.executescript(f"PRAGMA journal_mode=WAL;{self.schema}")
            connection.execute(f"PRAGMA user_version={self.version}")
        connection.execute("PRAGMA synchronous=NORMAL")
