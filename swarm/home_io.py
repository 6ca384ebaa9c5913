"""The folder of one node on disk: its key, the swarm's key, counters, peers, the way to it.

node.key          32-byte seed of the node's identity            mode 0600
node-ID.key       seeds given up because another machine uses them too
key               the swarm key in text form                     mode 0600
keyring.json      its generation, older keys, nodes put out      mode 0600
incarnation       restart counter, raised before every start
peers.json        endpoints that answered last time
gateway.json      {"url", "pid", "control_token"} while it runs  mode 0600
lock              held while a node runs from this folder
cache/            manifests and text files of checkpoints
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from swarm.errors import ConfigError
from swarm.link.identity import SwarmKey
from swarm.link.keyring import KeyRing
from swarm.messages import OlderKey
from swarm.terms import INCARNATION_LIMIT, Address, NodeId

SEED_BYTES = 32
STAYS_BYTES_MAX = 4 << 20
INCARNATION_RESERVE = 1 << 32
"""A node that starts must also be able to raise its incarnation while it runs."""


class Home:
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigError(f"cannot use {path} as the home folder: {error.strerror}") from error

    @property
    def cache(self) -> Path:
        return self.path / "cache"

    @property
    def config_text(self) -> str:
        file = self.path / "config.toml"
        return file.read_text() if file.exists() else ""

    # ------------------------------------------------------------ keys

    def node_seed(self, entropy: Callable[[int], bytes]) -> bytes:
        """The node's seed, drawn on first use."""
        file = self.path / "node.key"
        if not file.exists():
            self._write(file, entropy(SEED_BYTES).hex(), secret=True)
        try:
            seed = bytes.fromhex(file.read_text().strip())
        except ValueError as error:
            raise ConfigError(f"{file} is damaged; remove it to get a new identity") from error
        if len(seed) != SEED_BYTES:
            raise ConfigError(f"{file} is damaged; remove it to get a new identity")
        return seed

    def renew_node_seed(self, label: str, entropy: Callable[[int], bytes]) -> Path:
        """A fresh seed takes the place of the present one, which is kept under `label`.

        Returns where. Raises ConfigError when the folder cannot be written.
        """
        kept = self.path / f"node-{label}.key"
        self._write(kept, self.node_seed(entropy).hex(), secret=True)
        self._write(self.path / "node.key", entropy(SEED_BYTES).hex(), secret=True)
        return kept

    def swarm_key(self) -> SwarmKey | None:
        file = self.path / "key"
        if not file.exists():
            return None
        try:
            return SwarmKey.parse(file.read_text().strip())
        except (ConfigError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{file} is damaged; remove it and join again with --key, or start a new swarm"
            ) from error

    def save_swarm_key(self, key: SwarmKey) -> None:
        self._write(self.path / "key", key.text + "\n", secret=True)

    def key_ring(self) -> KeyRing | None:
        """The swarm key with its history; None: there is no key yet."""
        key = self.swarm_key()
        if key is None:
            return None
        file = self.path / "keyring.json"
        if not file.exists():
            return KeyRing(key)
        try:
            told = json.loads(file.read_text())
            if told["tag"] != key.tag:
                return KeyRing(key)  # of a swarm that this node has left
            older = tuple(OlderKey(bytes.fromhex(s), float(until)) for s, until in told["older"])
            revoked = frozenset(NodeId(str(node)) for node in told["revoked"])
            return KeyRing(key, int(told["generation"]), older, revoked)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ConfigError(
                f"{file} is damaged; remove it, and the nodes that were put out are known again"
                " from the other members"
            ) from error

    def save_key_ring(self, ring: KeyRing) -> None:
        row = {
            "tag": ring.key.tag,
            "generation": ring.generation,
            "older": [[old.secret.hex(), old.until_s] for old in ring.older],
            "revoked": sorted(ring.revoked),
        }
        self._write(self.path / "keyring.json", json.dumps(row) + "\n", secret=True)
        self.save_swarm_key(ring.key)

    # ------------------------------------------------------------ counters and peers

    def next_incarnation(self) -> int:
        """Raise the restart counter and keep it before anybody hears of it."""
        value = self._incarnation() + 1
        self.save_incarnation(value)
        return value

    def save_incarnation(self, incarnation: int) -> None:
        self._write(self.path / "incarnation", f"{incarnation}\n")

    def save_peers(self, addresses: tuple[Address, ...]) -> None:
        rows = [[address.host, address.port] for address in addresses]
        self._write(self.path / "peers.json", json.dumps(rows) + "\n")

    def peers(self) -> tuple[Address, ...]:
        """Remembered endpoints; a damaged file counts as none."""
        try:
            rows = json.loads((self.path / "peers.json").read_text())
            return tuple(Address(str(host), int(port)) for host, port in rows)
        except (OSError, ValueError, TypeError):
            return ()

    def save_stays(self, data: bytes) -> None:
        self._write(self.path / "stays.json", data.decode())

    def stays(self) -> bytes:
        """How long peers used to stay; nothing where it is not known, or too long to be that."""
        try:
            with (self.path / "stays.json").open("rb") as stream:
                return stream.read(STAYS_BYTES_MAX)
        except OSError:
            return b""

    def _incarnation(self) -> int:
        file = self.path / "incarnation"
        try:
            value = max(0, int(file.read_text())) if file.exists() else 0
        except ValueError as error:
            raise ConfigError(
                f"{file} is damaged; write a number above any used before into it"
            ) from error
        if value >= INCARNATION_LIMIT - INCARNATION_RESERVE:
            raise ConfigError(
                f"{file} holds {value}, which is more than a restart counter may be; write a"
                " smaller number above any used before into it, or remove it and node.key"
                " to get a new identity"
            )
        return value

    # ------------------------------------------------------------ the running node

    def save_gateway(self, url: str, control_token: str) -> None:
        row = {"url": url, "pid": os.getpid(), "control_token": control_token}
        self._write(self.path / "gateway.json", json.dumps(row) + "\n", secret=True)

    def forget_gateway(self) -> None:
        (self.path / "gateway.json").unlink(missing_ok=True)

    def lock(self) -> int:
        """Hold the folder for this process; returns the open file.

        Raises ConfigError when another process holds it, or nothing can be written there.
        """
        try:
            handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigError(f"cannot write to {self.path}: {error.strerror}") from error
        try:
            _lock(handle)
        except OSError as error:
            os.close(handle)
            raise ConfigError(
                f"a node runs from {self.path} already; give a second one its own --home"
            ) from error
        return handle

    def _write(self, file: Path, text: str, *, secret: bool = False) -> None:
        """Whole or not at all, also when the power goes."""
        part = file.with_name(file.name + ".part")
        try:
            mode = 0o600 if secret else 0o644
            handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
            with os.fdopen(handle, "w") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(part, file)
        except OSError as error:
            raise ConfigError(f"cannot write {file}: {error.strerror}") from error


def _lock(handle: int) -> None:
    if os.name == "nt":
        import msvcrt

        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
