"""The handshake without a network: who gets in, what both sides learn, what is refused and how."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm import shapes
from swarm.errors import HandshakeFailed, RemoteProtocolError
from swarm.link import noise
from swarm.link.frames import Opener, Sealer
from swarm.link.handshake import (
    HANDSHAKE_LIMIT,
    Credentials,
    Established,
    Handshake,
    Proof,
    ProtocolRange,
)
from swarm.link.identity import OPEN_SWARM_KEY, Identity, SwarmKey
from swarm.link.noise import Cipher, NoiseHandshake, NoiseKeys
from swarm.messages import Lane
from swarm.terms import INCARNATION_LIMIT, Incarnation

KEY = SwarmKey(bytes(range(32)))
LEFT = Credentials(Identity(bytes(31) + b"\1"), KEY, Incarnation(3), listening_port=7001)
RIGHT = Credentials(Identity(bytes(31) + b"\2"), KEY, Incarnation(9), listening_port=7002)


def entropy(seed: int) -> Callable[[int], bytes]:
    return random.Random(seed).randbytes


def sides(
    left: Credentials = LEFT,
    right: Credentials = RIGHT,
    lane: Lane = Lane.CONTROL,
    binding: bytes = b"",
) -> tuple[Handshake, Handshake]:
    dialler = Handshake.dialler(left, entropy(1), lane, binding)
    return dialler, Handshake.accepter(right, entropy(2), lambda _: True)


def complete(dialler: Handshake, accepter: Handshake) -> tuple[Established, Established]:
    """What the dialler and the accepter learnt."""
    answer = accepter.receive(dialler.start()).answer
    assert answer is not None
    reply = dialler.receive(answer)
    assert reply.answer is not None
    assert reply.established is not None
    last = accepter.receive(reply.answer)
    assert last.established is not None
    return reply.established, last.established


def test_both_sides_learn_who_the_other_is() -> None:
    seen_by_left, seen_by_right = complete(*sides())
    assert seen_by_left.node == RIGHT.identity.node_id
    assert seen_by_left.public_key == RIGHT.identity.public_key
    assert (seen_by_left.incarnation, seen_by_left.listening_port) == (9, 7002)
    assert seen_by_right.node == LEFT.identity.node_id
    assert (seen_by_right.incarnation, seen_by_right.listening_port) == (3, 7001)
    assert seen_by_left.lane is seen_by_right.lane is Lane.CONTROL
    assert seen_by_left.binding == seen_by_right.binding
    assert not seen_by_left.is_self
    assert not seen_by_right.is_self


@pytest.mark.parametrize("left_aes", [True, False])
@pytest.mark.parametrize("right_aes", [True, False])
def test_keys_fit_and_the_cipher_is_the_one_both_have(left_aes: bool, right_aes: bool) -> None:
    left, right = complete(*sides(replace(LEFT, aes=left_aes), replace(RIGHT, aes=right_aes)))
    expected = Cipher.AES_GCM if left_aes and right_aes else Cipher.CHACHA_POLY
    assert left.cipher is right.cipher is expected
    assert left.send_key == right.receive_key
    assert left.receive_key == right.send_key
    assert left.send_key != left.receive_key
    frame = b"".join(Sealer(left.cipher, left.send_key, Lane.CONTROL, 0).seal([b"hello"]))
    assert Opener(right.cipher, right.receive_key, 0).open(memoryview(frame)[4:]) == b"hello"


def test_a_data_lane_shows_the_binding_of_its_control_lane() -> None:
    control, _ = complete(*sides())
    left, right = complete(*sides(lane=Lane.DATA, binding=control.binding))
    assert left.lane is right.lane is Lane.DATA
    assert right.binding == control.binding


def test_no_two_handshakes_share_a_binding_or_a_key() -> None:
    found = []
    for seed in range(10):
        dialler = Handshake.dialler(LEFT, entropy(seed), Lane.CONTROL)
        accepter = Handshake.accepter(RIGHT, entropy(seed + 100), lambda _: True)
        found.append(complete(dialler, accepter)[0])
    assert len({each.binding for each in found}) == 10
    assert len({key for each in found for key in (each.send_key, each.receive_key)}) == 20


def test_a_stranger_fails_at_the_first_message_without_diffie_hellman(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stranger, inside = sides(left=replace(LEFT, swarm_key=OPEN_SWARM_KEY))
    hello = stranger.start()

    def no_diffie_hellman(*_: bytes) -> bytes:
        raise AssertionError("a stranger made us work")

    monkeypatch.setattr(noise, "crypto_scalarmult", no_diffie_hellman)
    monkeypatch.setattr(noise, "crypto_scalarmult_base", no_diffie_hellman)
    with pytest.raises(HandshakeFailed, match="key of this swarm"):
        inside.receive(hello)


@pytest.mark.parametrize(
    ("ours", "theirs", "agreed"),
    [((1, 2), (2, 4), 2), ((1, 1), (1, 1), 1), ((2, 4), (1, 3), 3), ((1, 9), (3, 4), 4)],
)
def test_the_highest_common_version_is_used(
    ours: tuple[int, int], theirs: tuple[int, int], agreed: int
) -> None:
    left, right = complete(
        *sides(
            replace(LEFT, protocol=ProtocolRange(*ours)),
            replace(RIGHT, protocol=ProtocolRange(*theirs)),
        )
    )
    assert left.protocol == right.protocol == agreed


def test_version_skew_is_named_in_full_on_both_sides() -> None:
    dialler, accepter = sides(
        replace(LEFT, protocol=ProtocolRange(1, 2)), replace(RIGHT, protocol=ProtocolRange(3, 4))
    )
    reply = accepter.receive(dialler.start())
    assert str(reply.failure) == "peer speaks protocol 1-2, we speak 3-4"
    assert reply.answer is not None
    with pytest.raises(HandshakeFailed, match="peer speaks protocol 3-4, we speak 1-2"):
        dialler.receive(reply.answer)


def test_a_repeated_first_message_is_refused() -> None:
    dialler, _ = sides()
    hello = dialler.start()
    seen: list[bytes] = []

    def is_fresh(ephemeral: bytes) -> bool:
        seen.append(ephemeral)
        return seen.count(ephemeral) == 1

    Handshake.accepter(RIGHT, entropy(2), is_fresh).receive(hello)
    with pytest.raises(HandshakeFailed, match="repeated"):
        Handshake.accepter(RIGHT, entropy(3), is_fresh).receive(hello)
    # A stranger's message is not even looked up.
    with pytest.raises(HandshakeFailed):
        Handshake.accepter(RIGHT, entropy(4), is_fresh).receive(bytes(100))
    assert len(seen) == 2


def test_a_replayed_last_message_fits_no_other_handshake() -> None:
    dialler, accepter = sides()
    answer = accepter.receive(dialler.start()).answer
    assert answer is not None
    last = dialler.receive(answer).answer
    assert last is not None
    other = Handshake.accepter(RIGHT, entropy(77), lambda _: True)
    other.receive(Handshake.dialler(LEFT, entropy(1), Lane.CONTROL).start())
    with pytest.raises(HandshakeFailed):
        other.receive(last)


def test_oneself_is_recognized() -> None:
    dialler, accepter = sides(right=LEFT)
    answer = accepter.receive(dialler.start()).answer
    assert answer is not None
    found = dialler.receive(answer).established
    assert found is not None
    assert found.is_self


def _forged(change: Callable[[Proof], Proof]) -> tuple[Handshake, bytes]:
    """A dialler, and an answer whose proof was changed by somebody who holds the swarm key."""
    dialler, _ = sides()
    keys = NoiseKeys(
        static=RIGHT.identity.noise_private,
        ephemeral=entropy(5)(32),
        prologue=b"swarm link 1\0" + KEY.tag.encode(),
        psk=KEY.psk,
    )
    accepter = NoiseHandshake(keys, Cipher.CHACHA_POLY, initiator=False)
    accepter.read(dialler.start())
    signed = KEY.tag.encode() + RIGHT.identity.noise_public
    proof = Proof(
        public_key=RIGHT.identity.public_key,
        signature=RIGHT.identity.sign(b"link static key", signed),
        incarnation=Incarnation(1),
        protocol_min=1,
        protocol_max=1,
        aes=True,
        listening_port=1,
        lane=Lane.CONTROL,
        binding=b"",
    )
    return dialler, accepter.write(shapes.pack(change(proof)))


def test_an_honest_proof_passes_the_forger() -> None:
    dialler, answer = _forged(lambda proof: proof)
    assert dialler.receive(answer).established is not None


@pytest.mark.parametrize(
    "change",
    [
        lambda proof: replace(proof, public_key=LEFT.identity.public_key),
        lambda proof: replace(proof, public_key=b"short"),
        lambda proof: replace(proof, signature=bytes(64)),
        lambda proof: replace(proof, signature=b""),
        lambda proof: replace(
            proof, signature=RIGHT.identity.sign(b"records", RIGHT.identity.noise_public)
        ),
        lambda proof: replace(proof, listening_port=65536),
        lambda proof: replace(proof, listening_port=-1),
        lambda proof: replace(proof, incarnation=Incarnation(-1)),
        lambda proof: replace(proof, incarnation=Incarnation(0)),
        lambda proof: replace(proof, incarnation=Incarnation(INCARNATION_LIMIT)),
        lambda proof: replace(proof, incarnation=Incarnation((1 << 63) - 1)),
        lambda proof: replace(proof, binding=b"too short"),
    ],
)
def test_a_member_cannot_pose_as_another(change: Callable[[Proof], Proof]) -> None:
    """Holding the swarm key is not enough to have an identity."""
    dialler, answer = _forged(change)
    with pytest.raises((HandshakeFailed, RemoteProtocolError)):
        dialler.receive(answer)


@given(st.binary(max_size=HANDSHAKE_LIMIT), st.booleans())
@settings(deadline=None)
def test_garbage_only_ever_fails(garbage: bytes, to_dialler: bool) -> None:
    dialler, accepter = sides()
    hello = dialler.start()
    if not to_dialler:
        accepter.receive(hello)
    with pytest.raises((HandshakeFailed, RemoteProtocolError)):
        (dialler if to_dialler else accepter).receive(garbage)


@given(st.binary(max_size=300))
@settings(deadline=None)
def test_any_sealed_payload_only_ever_fails(payload: bytes) -> None:
    """A member may put anything into the payloads."""
    keys = NoiseKeys(
        bytes(31) + b"\7", entropy(5)(32), b"swarm link 1\0" + KEY.tag.encode(), KEY.psk
    )
    member = NoiseHandshake(keys, Cipher.CHACHA_POLY, initiator=True)
    _, accepter = sides()
    with pytest.raises((HandshakeFailed, RemoteProtocolError)):
        accepter.receive(member.write(payload))


def test_messages_are_far_below_the_limit() -> None:
    dialler, accepter = sides(lane=Lane.DATA, binding=bytes(32))
    hello = dialler.start()
    answer = accepter.receive(hello).answer
    assert answer is not None
    last = dialler.receive(answer).answer
    assert last is not None
    assert max(len(hello), len(answer), len(last)) < HANDSHAKE_LIMIT // 2


def test_nothing_shows_the_keys() -> None:
    left, _ = complete(*sides())
    assert repr(left.send_key) not in repr(left)
    assert repr(KEY.secret) not in repr(LEFT)
