"""Who a node is (Ed25519, X25519) and which swarm it belongs to (one shared key).

Pure: seeds come in as arguments; reading and keeping them is the caller's business.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import nacl.bindings
from nacl.exceptions import CryptoError
from nacl.signing import SigningKey, VerifyKey

from swarm.errors import ConfigError
from swarm.terms import NodeId, short

SEED_BYTES = 32
SIGNATURE_BYTES = 64
IDS_KEPT = 4096
"""Node ids are asked for with every record and handshake; those of so many keys are at hand."""
SECRETS_KEPT = 64
KEY_PREFIX = "swarm-"
_CHECKSUM_BYTES = 3
TAG_BYTES = 8
_KEY_LETTERS = (SEED_BYTES + _CHECKSUM_BYTES) * 8 // 5
_LATER_LETTERS = -(-(SEED_BYTES + TAG_BYTES + _CHECKSUM_BYTES) * 8 // 5)
"""Of a key that is not the first of its swarm: it names the swarm too."""


@lru_cache(maxsize=IDS_KEPT)
def node_id_of(public_key: bytes) -> NodeId:
    """BLAKE2b-160 of an Ed25519 public key as 32 lower-case base32 letters."""
    digest = hashlib.blake2b(public_key, digest_size=20, person=b"swarm-node").digest()
    return NodeId(base64.b32encode(digest).decode().lower())


def verify(public_key: bytes, domain: bytes, data: bytes, signature: bytes) -> bool:
    """Whether `signature` is `public_key`'s over `data` in `domain`; no malformed part is."""
    if len(public_key) != SEED_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        VerifyKey(public_key).verify(_signed_bytes(domain, data), signature)
    except CryptoError:
        return False
    return True


def _signed_bytes(domain: bytes, data: bytes) -> bytes:
    """The length before the domain keeps (domain, data) pairs apart whatever their bytes are."""
    return b"swarm-sign" + bytes([len(domain)]) + domain + data


class Identity:
    """The keys of one node. `repr` shows the node id and nothing secret."""

    __slots__ = ("_signing_key", "node_id", "noise_private", "noise_public", "public_key")

    def __init__(self, seed: bytes) -> None:
        """`seed`: 32 secret bytes; the Noise static key is derived from it.

        The two keys are derived under separate labels, so that neither tells of the other.
        """
        if len(seed) != SEED_BYTES:
            raise ConfigError(f"an identity seed has {SEED_BYTES} bytes, not {len(seed)}")
        self._signing_key = SigningKey(seed)
        self.public_key = bytes(self._signing_key.verify_key)
        self.node_id = node_id_of(self.public_key)
        self.noise_private = _derive(seed, b"noise static key")
        self.noise_public = nacl.bindings.crypto_scalarmult_base(self.noise_private)

    def sign(self, domain: bytes, data: bytes) -> bytes:
        """64 bytes over `data`, valid in `domain` only."""
        return bytes(self._signing_key.sign(_signed_bytes(domain, data)).signature)

    def __repr__(self) -> str:
        return f"Identity({short(self.node_id)})"


@dataclass(frozen=True, slots=True)
class SwarmKey:
    """The secret that makes nodes one swarm. `repr` and `str` show its tag only.

    `swarm`: the tag, where this is not the first key of the swarm; "": it follows from the secret.
    """

    secret: bytes = field(repr=False)
    swarm: str = ""

    def __post_init__(self) -> None:
        if len(self.secret) != SEED_BYTES:
            raise ConfigError(f"a swarm key has {SEED_BYTES} bytes, not {len(self.secret)}")
        if self.swarm == self._first_tag:
            object.__setattr__(self, "swarm", "")

    @staticmethod
    def generate(entropy: Callable[[int], bytes]) -> SwarmKey:
        return SwarmKey(entropy(SEED_BYTES))

    @staticmethod
    def parse(text: str) -> SwarmKey:
        """The key behind its text form; blanks and case do not matter.

        Raises ConfigError that says what is wrong, without repeating the text.
        """
        letters = "".join(text.split()).lower()
        if not letters.startswith(KEY_PREFIX):
            raise ConfigError(f"a swarm key begins with {KEY_PREFIX!r}; `swarm key show` prints it")
        letters = letters.removeprefix(KEY_PREFIX)
        if len(letters) not in (_KEY_LETTERS, _LATER_LETTERS):
            raise ConfigError(
                f"a swarm key has {_KEY_LETTERS} letters after {KEY_PREFIX!r}, this one"
                f" {len(letters)}; was it copied whole?"
            )
        try:
            raw = base64.b32decode(letters.upper() + "=" * (-len(letters) % 8))
        except (binascii.Error, ValueError) as error:
            raise ConfigError("a swarm key has only the letters a-z and digits 2-7") from error
        told, checksum = raw[:-_CHECKSUM_BYTES], raw[-_CHECKSUM_BYTES:]
        if not hmac.compare_digest(checksum, _checksum(told)):
            raise ConfigError("the swarm key is mistyped: its last letters do not fit the rest")
        return SwarmKey(told[:SEED_BYTES], told[SEED_BYTES:].hex())

    @property
    def text(self) -> str:
        """The secret in the form that people type: for `--key`, never for a log."""
        told = self.secret + bytes.fromhex(self.swarm)
        letters = base64.b32encode(told + _checksum(told)).decode().rstrip("=")
        return KEY_PREFIX + letters.lower()

    @property
    def tag(self) -> str:
        """16 hex digits that name the swarm in public and tell nothing of the key."""
        return self.swarm or self._first_tag

    @property
    def _first_tag(self) -> str:
        return _derive(self.secret, b"tag")[:TAG_BYTES].hex()

    @property
    def psk(self) -> bytes:
        """The 32 bytes that enter the Noise handshake, and nothing else."""
        return _derive(self.secret, b"noise psk 1")

    @property
    def is_open(self) -> bool:
        """Whether this is the public key of the open swarm, which anyone may join."""
        return hmac.compare_digest(self.secret, OPEN_SWARM_KEY.secret)

    def __str__(self) -> str:
        return f"SwarmKey(tag={self.tag})"

    __repr__ = __str__


def _checksum(secret: bytes) -> bytes:
    return hashlib.blake2b(secret, digest_size=_CHECKSUM_BYTES, person=b"swarm-check").digest()


@lru_cache(maxsize=SECRETS_KEPT)
def _derive(secret: bytes, label: bytes) -> bytes:
    """HKDF-Expand (RFC 5869, SHA-256, one block) of a uniformly random secret."""
    return hmac.digest(secret, b"swarm " + label + b"\x01", "sha256")


OPEN_SWARM_KEY = SwarmKey(hashlib.sha256(b"the open swarm: anyone on the LAN may join").digest())
"""Known to everybody: links are sealed and authenticated by identity, but nobody is kept out."""
