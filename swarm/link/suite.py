"""The cryptography of links as handshakes and frames use it. `NOISE` is the only one here.

Another one is given in code alone, to `Credentials`: no config, flag or peer can choose it, and
its handshakes fail against those of `NOISE` at the first message. The simulator has one without
secrets, since what it tests is not the arithmetic of curves (`sims/plain_suite.py`).
"""

from __future__ import annotations

from typing import Protocol

from swarm.link.identity import verify
from swarm.link.noise import Bytes, Cipher, CipherState, NoiseHandshake, NoiseKeys


class HandshakeState(Protocol):
    """One side of a three-message handshake; `NoiseHandshake` says what each part must hold."""

    remote_static: bytes
    remote_ephemeral: bytes

    @property
    def handshake_hash(self) -> bytes: ...

    def write(self, payload: bytes) -> bytes: ...

    def read(self, message: bytes) -> bytes: ...

    def split(self) -> tuple[bytes, bytes]: ...


class FrameState(Protocol):
    """Seals or opens the frames of one direction, in order. A seal adds `TAG_BYTES`."""

    nonce: int

    def encrypt(self, associated: Bytes, plaintext: Bytes) -> bytes: ...

    def decrypt(self, associated: Bytes, ciphertext: Bytes) -> Bytes:
        """Good for as long as `ciphertext` is, of which it may be a part. Raises InvalidTag for
        whatever is not the next frame."""

    def rekey(self) -> None: ...


class Suite(Protocol):
    def handshake(self, keys: NoiseKeys, *, initiator: bool) -> HandshakeState: ...

    def frames(self, cipher: Cipher, key: bytes) -> FrameState: ...

    def verify(self, public_key: bytes, domain: bytes, data: bytes, signature: bytes) -> bool: ...


class NoiseSuite:
    """Noise over X25519, AEADs from `cryptography`, Ed25519."""

    def handshake(self, keys: NoiseKeys, *, initiator: bool) -> HandshakeState:
        return NoiseHandshake(keys, Cipher.CHACHA_POLY, initiator=initiator)

    def frames(self, cipher: Cipher, key: bytes) -> FrameState:
        return CipherState(cipher, key)

    def verify(self, public_key: bytes, domain: bytes, data: bytes, signature: bytes) -> bool:
        return verify(public_key, domain, data, signature)


NOISE = NoiseSuite()
