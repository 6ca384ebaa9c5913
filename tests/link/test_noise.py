"""The Noise state machine against published vectors and vectors of an independent library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from swarm.errors import HandshakeFailed, LocalProtocolError
from swarm.link.noise import Cipher, CipherState, NoiseHandshake, NoiseKeys

VECTORS = json.loads((Path(__file__).parent / "noise_vectors.json").read_text())
CASES = VECTORS["published"] + VECTORS["generated"]


def _sides(case: dict[str, Any]) -> tuple[NoiseHandshake, NoiseHandshake, Cipher]:
    cipher = Cipher(case["name"].split("_")[3])

    def keys(side: str) -> NoiseKeys:
        return NoiseKeys(
            static=bytes.fromhex(VECTORS[f"{side}_static"]),
            ephemeral=bytes.fromhex(VECTORS[f"{side}_ephemeral"]),
            prologue=bytes.fromhex(case["prologue"]),
            psk=bytes.fromhex(case["psk"]) or None,
        )

    dialler = NoiseHandshake(keys("init"), cipher, initiator=True)
    return dialler, NoiseHandshake(keys("resp"), cipher, initiator=False), cipher


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_vector(case: dict[str, Any]) -> None:
    dialler, accepter, cipher = _sides(case)
    for index, (payload, ciphertext) in enumerate(case["messages"][:3]):
        writer, reader = (dialler, accepter) if index % 2 == 0 else (accepter, dialler)
        assert writer.write(bytes.fromhex(payload)).hex() == ciphertext
        assert reader.read(bytes.fromhex(ciphertext)).hex() == payload
    assert dialler.finished
    assert accepter.finished
    assert dialler.handshake_hash == accepter.handshake_hash
    if case["handshake_hash"]:
        assert dialler.handshake_hash.hex() == case["handshake_hash"]
    for key, key_again, (payload, ciphertext) in zip(
        dialler.split(), accepter.split(), case["messages"][3:], strict=True
    ):
        sealed = CipherState(cipher, key).encrypt(b"", bytes.fromhex(payload))
        assert sealed.hex() == ciphertext
        assert CipherState(cipher, key_again).decrypt(b"", sealed).hex() == payload


def test_there_are_vectors_for_both_patterns_and_both_ciphers() -> None:
    names = {case["name"] for case in CASES}
    wanted = {f"Noise_{p}_25519_{c.value}_BLAKE2s" for p in ("XX", "XXpsk0") for c in Cipher}
    assert names == wanted


@pytest.mark.parametrize("case", CASES[-1:], ids=lambda case: case["name"])
def test_every_flipped_byte_of_every_message_is_noticed(case: dict[str, Any]) -> None:
    messages = [bytes.fromhex(ciphertext) for _, ciphertext in case["messages"][:3]]
    for index, message in enumerate(messages):
        for position in range(len(message)):
            dialler, accepter, _ = _sides(case)
            for earlier in range(index):
                writer, reader = (dialler, accepter) if earlier % 2 == 0 else (accepter, dialler)
                reader.read(writer.write(bytes.fromhex(case["messages"][earlier][0])))
            writer, reader = (dialler, accepter) if index % 2 == 0 else (accepter, dialler)
            writer.write(b"")
            broken = bytearray(message)
            broken[position] ^= 1
            with pytest.raises(HandshakeFailed):
                reader.read(bytes(broken))


@pytest.mark.parametrize("length", [0, 1, 31, 32, 47])
def test_a_short_first_message_fails(length: int) -> None:
    _, accepter, _ = _sides(CASES[-1])
    with pytest.raises(HandshakeFailed):
        accepter.read(bytes(length))


def test_a_public_key_of_low_order_fails() -> None:
    dialler, accepter, _ = _sides({**CASES[-1], "psk": ""})
    accepter.read(bytes(32) + b"")
    with pytest.raises(HandshakeFailed, match="low order"):
        accepter.write(b"")
    dialler.write(b"")
    with pytest.raises(HandshakeFailed, match="low order"):
        dialler.read(bytes(32 + 48 + 16))


def test_turns_are_kept() -> None:
    dialler, accepter, _ = _sides(CASES[0])
    with pytest.raises(LocalProtocolError):
        accepter.write(b"")
    with pytest.raises(LocalProtocolError):
        dialler.read(b"")
    with pytest.raises(LocalProtocolError):
        dialler.split()


def test_rekey_follows_the_specification() -> None:
    for cipher in Cipher:
        key = bytes(range(32))
        state, by_hand = CipherState(cipher, key), CipherState(cipher, key)
        state.encrypt(b"", b"one")
        state.rekey()
        by_hand.nonce = (1 << 64) - 2
        # The rule uses nonce 2^64-1, which ordinary messages may not: reach it through the AEAD.
        stream = by_hand._aead.encrypt(by_hand._encode_nonce((1 << 64) - 1), bytes(32), b"")
        fresh = CipherState(cipher, stream[:32])
        fresh.nonce = 1
        assert state.encrypt(b"", b"two") == fresh.encrypt(b"", b"two")
