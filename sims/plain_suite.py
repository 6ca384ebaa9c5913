"""Link cryptography without cryptography, for simulated nodes: cheap, deterministic, no secrets.

Same message pattern, lengths and rules as the real suite: strangers fail at the first message,
frames must come in order, and nothing of it opens for a node that uses the real one. What it does
not do is keep anything secret or hard to forge. It lives here so that no daemon can use it.

    credentials = Credentials(PlainIdentity(seed), swarm_key, incarnation, suite=PLAIN)
"""

from __future__ import annotations

import hashlib
import struct

from cryptography.exceptions import InvalidTag

from swarm.errors import HandshakeFailed
from swarm.link.identity import SIGNATURE_BYTES, Identity, node_id_of
from swarm.link.noise import KEY_BYTES, TAG_BYTES, Bytes, Cipher, NoiseKeys
from swarm.link.suite import FrameState, HandshakeState

_TAG = struct.Struct(">Q8x")
_BULK_BYTES = 16 * 1024


def _digest(person: bytes, *parts: bytes, size: int = KEY_BYTES) -> bytes:
    return hashlib.blake2b(b"".join(parts), digest_size=size, person=person).digest()


class PlainIdentity(Identity):
    """An identity whose keys are hashes of its seed and whose signatures anybody could make."""

    __slots__ = ()

    def __init__(self, seed: bytes) -> None:
        self.public_key = _digest(b"plain public", seed)
        self.node_id = node_id_of(self.public_key)
        self.noise_private = _digest(b"plain noise", seed)
        self.noise_public = self.noise_private

    def sign(self, domain: bytes, data: bytes) -> bytes:
        return plain_signature(self.public_key, domain, data)


def plain_signature(public_key: bytes, domain: bytes, data: bytes) -> bytes:
    length = bytes([len(domain)])
    return _digest(b"plain sign", public_key, length, domain, data, size=SIGNATURE_BYTES)


class _PlainHandshake:
    """Every message: who belongs to this swarm, the sender's keys as far as due, the payload."""

    def __init__(self, keys: NoiseKeys, *, initiator: bool) -> None:
        self.remote_static = b""
        self.remote_ephemeral = b""
        self._keys = keys
        self._initiator = initiator
        self._mark = _digest(b"plain mark", keys.prologue, keys.psk or b"", size=TAG_BYTES)
        self._messages_done = 0

    @property
    def handshake_hash(self) -> bytes:
        pair = (self._keys.ephemeral, self.remote_ephemeral)
        return _digest(b"plain hash", *(pair if self._initiator else pair[::-1]))

    def write(self, payload: bytes) -> bytes:
        number = self._messages_done
        self._messages_done += 1
        ephemeral = self._keys.ephemeral if number < 2 else b""
        static = self._keys.static if number > 0 else b""
        return self._mark + ephemeral + static + payload

    def read(self, message: bytes) -> bytes:
        number = self._messages_done
        if message[:TAG_BYTES] != self._mark:
            raise HandshakeFailed("the other side does not hold the key of this swarm")
        start = TAG_BYTES
        if number < 2:
            self.remote_ephemeral = message[start : start + KEY_BYTES]
            start += KEY_BYTES
        if number > 0:
            self.remote_static = message[start : start + KEY_BYTES]
            start += KEY_BYTES
        if len(message) < start:
            raise HandshakeFailed("a handshake message is cut short")
        self._messages_done += 1
        return message[start:]

    def split(self) -> tuple[bytes, bytes]:
        shared = self.handshake_hash
        return shared + b"0", shared + b"1"


class _PlainFrames:
    """Frames in the clear; the tag is the frame's number."""

    __slots__ = ("nonce",)

    def __init__(self) -> None:
        self.nonce = 0

    def encrypt(self, associated: Bytes, plaintext: Bytes) -> bytes:
        sealed = b"".join((plaintext, _TAG.pack(self.nonce)))
        self.nonce += 1
        return sealed

    def decrypt(self, associated: Bytes, ciphertext: Bytes) -> Bytes:
        """Bulk is not copied: it is good for as long as the frame is."""
        if ciphertext[-TAG_BYTES:] != _TAG.pack(self.nonce):
            raise InvalidTag
        self.nonce += 1
        plaintext = ciphertext[:-TAG_BYTES]
        return plaintext if len(plaintext) > _BULK_BYTES else bytes(plaintext)

    def rekey(self) -> None:
        """There is no key."""


class PlainSuite:
    def handshake(self, keys: NoiseKeys, *, initiator: bool) -> HandshakeState:
        return _PlainHandshake(keys, initiator=initiator)

    def frames(self, cipher: Cipher, key: bytes) -> FrameState:
        return _PlainFrames()

    def verify(self, public_key: bytes, domain: bytes, data: bytes, signature: bytes) -> bool:
        return plain_signature(public_key, domain, data) == signature


PLAIN = PlainSuite()
