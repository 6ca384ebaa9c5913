"""Small SQLite files of a node's home: made with mode 0600, one schema version each."""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from swarm.errors import ConfigError

BUSY_TIMEOUT_S = 5.0
"""How long a writer waits for another process that writes."""
COMPANIONS = ("", "-wal", "-shm")
"""What SQLite keeps beside a file, by the end of its name."""


class DamagedFile(ConfigError):
    """What is in the file is no database, or no whole one."""


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
        """One transaction. Raises ConfigError for a file that cannot be used, naming it, and
        DamagedFile where that lies in the file itself."""
        try:
            if not self.exists:
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            with closing(sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S)) as connection:
                self._prepare(connection)
                with connection:
                    yield connection
        except (OSError, sqlite3.OperationalError) as error:
            raise ConfigError(f"cannot use {self.path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise DamagedFile(f"{self.path} is damaged: {error}") from error

    def check(self) -> None:
        """Raises DamagedFile for one that cannot be read from end to end."""
        if self.exists:
            with self.open() as connection:
                (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise DamagedFile(f"{self.path} is damaged: {found.splitlines()[-1]}")

    def set_aside(self) -> Path:
        """Give a damaged file another name, so that a new one takes its place; that name."""
        names = (self.path.with_name(f"{self.path.name}.damaged-{n}") for n in itertools.count(1))
        kept = next(name for name in names if not name.exists())
        try:
            for end in COMPANIONS:
                file = Path(f"{self.path}{end}")
                if file.exists():
                    file.rename(f"{kept}{end}")
        except OSError as error:
            raise ConfigError(
                f"{self.path} is damaged and cannot be set aside: {error.strerror}"
            ) from error
        return kept

    def made_whole(self) -> Path | None:
        """Look through the file, and set it aside where it is damaged: where it is then."""
        try:
            self.check()
        except DamagedFile:
            return self.set_aside()
        return None

    def _prepare(self, connection: sqlite3.Connection) -> None:
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found > self.version:
            raise ConfigError(f"{self.path} was written by a newer version of swarm; update this")
        if found < self.version:
            connection.executescript(f"PRAGMA journal_mode=WAL;{self.schema}")
            connection.execute(f"PRAGMA user_version={self.version}")
        connection.execute("PRAGMA synchronous=NORMAL")
