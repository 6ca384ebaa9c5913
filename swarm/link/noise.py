"""Noise_XX and Noise_XXpsk0 over X25519 and BLAKE2s, after the Noise specification, revision 34.

Sans-IO and pure: keys come in, messages go in and out. Section numbers are the specification's.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from nacl.bindings import crypto_scalarmult, crypto_scalarmult_base
from nacl.exceptions import CryptoError

from swarm.errors import HandshakeFailed, LocalProtocolError

KEY_BYTES = 32
TAG_BYTES = 16
_MAX_NONCE = (1 << 64) - 1
Bytes = bytes | bytearray | memoryview


class Cipher(Enum):
    """AEADs by their names in Noise protocol names."""

    AES_GCM = "AESGCM"
    CHACHA_POLY = "ChaChaPoly"


_NONCE: dict[Cipher, Callable[[int], bytes]] = {
    Cipher.AES_GCM: struct.Struct(">4xQ").pack,
    Cipher.CHACHA_POLY: struct.Struct("<4xQ").pack,
}
_AEAD: dict[Cipher, type[AESGCM] | type[ChaCha20Poly1305]] = {
    Cipher.AES_GCM: AESGCM,
    Cipher.CHACHA_POLY: ChaCha20Poly1305,
}


class CipherState:
    """A key and a 64-bit counter nonce that rises by one with every message (5.1)."""

    __slots__ = ("_aead", "_encode_nonce", "cipher", "nonce")

    def __init__(self, cipher: Cipher, key: bytes) -> None:
        self.cipher = cipher
        self.nonce = 0
        self._encode_nonce = _NONCE[cipher]
        self._aead = _AEAD[cipher](key)

    def encrypt(self, associated: Bytes, plaintext: Bytes) -> bytes:
        if self.nonce >= _MAX_NONCE:
            raise LocalProtocolError("nonces are used up")
        sealed = self._aead.encrypt(self._encode_nonce(self.nonce), plaintext, associated)
        self.nonce += 1
        return sealed

    def decrypt(self, associated: Bytes, ciphertext: Bytes) -> bytes:
        """Raises InvalidTag, and then keeps its nonce."""
        if self.nonce >= _MAX_NONCE:
            raise InvalidTag
        plaintext = self._aead.decrypt(self._encode_nonce(self.nonce), ciphertext, associated)
        self.nonce += 1
        return plaintext

    def rekey(self) -> None:
        """A new key by the default rule of 4.2; the counter goes on."""
        stream = self._aead.encrypt(self._encode_nonce(_MAX_NONCE), bytes(KEY_BYTES), b"")
        self._aead = _AEAD[self.cipher](stream[:KEY_BYTES])


class _SymmetricState:
    """Chaining key, transcript hash and, once there is a key, a cipher (5.2)."""

    def __init__(self, name: str, cipher: Cipher) -> None:
        raw = name.encode()
        self.hash = raw.ljust(32, b"\0") if len(raw) <= 32 else hashlib.blake2s(raw).digest()
        self._chaining_key = self.hash
        self._cipher = cipher
        self._state: CipherState | None = None

    def mix_hash(self, data: bytes) -> None:
        self.hash = hashlib.blake2s(self.hash + data).digest()

    def mix_key(self, material: bytes) -> None:
        self._chaining_key, key = self._hkdf(material, 2)
        self._state = CipherState(self._cipher, key)

    def mix_key_and_hash(self, material: bytes) -> None:
        self._chaining_key, digest, key = self._hkdf(material, 3)
        self.mix_hash(digest)
        self._state = CipherState(self._cipher, key)

    def encrypt_and_hash(self, plaintext: bytes) -> bytes:
        sealed = self._state.encrypt(self.hash, plaintext) if self._state else plaintext
        self.mix_hash(sealed)
        return sealed

    def decrypt_and_hash(self, sealed: bytes) -> bytes:
        plaintext = self._state.decrypt(self.hash, sealed) if self._state else sealed
        self.mix_hash(sealed)
        return plaintext

    @property
    def tag_bytes(self) -> int:
        return TAG_BYTES if self._state else 0

    def split(self) -> tuple[bytes, bytes]:
        first, second = self._hkdf(b"", 2)
        return first, second

    def _hkdf(self, material: bytes, count: int) -> list[bytes]:
        temporary = hmac.digest(self._chaining_key, material, "blake2s")
        outputs = [b""]
        for index in range(1, count + 1):
            outputs.append(hmac.digest(temporary, outputs[-1] + bytes([index]), "blake2s"))
        return outputs[1:]


@dataclass(frozen=True, slots=True)
class NoiseKeys:
    """What one side brings: private keys of 32 bytes, the prologue, and the psk (None: plain XX).

    `ephemeral` must be fresh randomness for every handshake.
    """

    static: bytes
    ephemeral: bytes
    prologue: bytes
    psk: bytes | None

    def __repr__(self) -> str:
        return "NoiseKeys(...)"


_XX = (("e",), ("e", "ee", "s", "es"), ("s", "se"))


class NoiseHandshake:
    """One side of an XX or XXpsk0 handshake (5.3, 7.5, 9). Messages alternate, initiator first."""

    def __init__(self, keys: NoiseKeys, cipher: Cipher, *, initiator: bool) -> None:
        self._keys = keys
        self._initiator = initiator
        pattern = "XX" if keys.psk is None else "XXpsk0"
        self._symmetric = _SymmetricState(f"Noise_{pattern}_25519_{cipher.value}_BLAKE2s", cipher)
        self._symmetric.mix_hash(keys.prologue)
        self._messages_done = 0
        self.remote_static = b""
        self.remote_ephemeral = b""

    @property
    def finished(self) -> bool:
        return self._messages_done == len(_XX)

    @property
    def handshake_hash(self) -> bytes:
        """Unique to the session once finished: the channel binding of 11.2."""
        return self._symmetric.hash

    def write(self, payload: bytes) -> bytes:
        """The next message of this side. Raises HandshakeFailed for a bad key sent before."""
        symmetric = self._symmetric
        message = bytearray()
        for token in self._begin(ours=True):
            if token == "e":
                message += self._ephemeral_token(crypto_scalarmult_base(self._keys.ephemeral))
            elif token == "s":
                message += symmetric.encrypt_and_hash(crypto_scalarmult_base(self._keys.static))
            else:
                self._mix(token)
        message += symmetric.encrypt_and_hash(payload)
        self._messages_done += 1
        return bytes(message)

    def read(self, message: bytes) -> bytes:
        """The payload of the other side's next message. Raises HandshakeFailed: all is over."""
        symmetric = self._symmetric
        rest = message
        try:
            for token in self._begin(ours=False):
                if token == "e":
                    self.remote_ephemeral, rest = _cut(rest, KEY_BYTES)
                    self._ephemeral_token(self.remote_ephemeral)
                elif token == "s":
                    sealed, rest = _cut(rest, KEY_BYTES + symmetric.tag_bytes)
                    self.remote_static = symmetric.decrypt_and_hash(sealed)
                else:
                    self._mix(token)
            payload = symmetric.decrypt_and_hash(rest)
        except InvalidTag as error:
            raise HandshakeFailed("the other side does not hold the key of this swarm") from error
        self._messages_done += 1
        return payload

    def split(self) -> tuple[bytes, bytes]:
        """Keys for (initiator to responder, responder to initiator), 32 bytes each (5.2)."""
        if not self.finished:
            raise LocalProtocolError("the handshake is not finished")
        return self._symmetric.split()

    def _begin(self, *, ours: bool) -> tuple[str, ...]:
        if self.finished or ours != (self._initiator == (self._messages_done % 2 == 0)):
            raise LocalProtocolError("not this side's turn in the handshake")
        if self._messages_done == 0 and self._keys.psk is not None:
            self._symmetric.mix_key_and_hash(self._keys.psk)
        return _XX[self._messages_done]

    def _ephemeral_token(self, public: bytes) -> bytes:
        self._symmetric.mix_hash(public)
        if self._keys.psk is not None:
            self._symmetric.mix_key(public)
        return public

    def _mix(self, token: str) -> None:
        """A Diffie-Hellman token: first letter the initiator's key, second the other's."""
        pair = token if self._initiator else token[::-1]
        private = self._keys.ephemeral if pair[0] == "e" else self._keys.static
        public = self.remote_ephemeral if pair[1] == "e" else self.remote_static
        try:
            shared = crypto_scalarmult(private, public)
        except CryptoError as error:
            raise HandshakeFailed("the other side sent a public key of low order") from error
        self._symmetric.mix_key(shared)


def _cut(data: bytes, count: int) -> tuple[bytes, bytes]:
    if len(data) < count:
        raise HandshakeFailed("a handshake message is cut short")
    return data[:count], data[count:]
