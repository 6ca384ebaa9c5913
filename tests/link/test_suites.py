"""Links without cryptography are for the simulator alone: same rules, no real node takes them."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidTag
from link_pair import KEY, OTHER_KEY, Recorder

from sims.plain_suite import PLAIN, PlainIdentity, plain_signature
from swarm.config import LinkConfig
from swarm.errors import HandshakeFailed
from swarm.link.frames import Opener, Sealer
from swarm.link.handshake import Credentials, Established, Handshake
from swarm.link.identity import Identity, verify
from swarm.link.noise import TAG_BYTES, Cipher
from swarm.link.suite import NOISE
from swarm.link.tcp_io import Surroundings, TcpLinks
from swarm.messages import Lane
from swarm.terms import Incarnation

ROOT = Path(__file__).parents[2]
LEFT = Credentials(PlainIdentity(bytes(32)), KEY, Incarnation(3), 7001, suite=PLAIN)
RIGHT = Credentials(PlainIdentity(bytes([1]) * 32), KEY, Incarnation(9), 7002, suite=PLAIN)
REAL = Credentials(Identity(bytes(32)), KEY, Incarnation(1))


def entropy(seed: int) -> Callable[[int], bytes]:
    return random.Random(seed).randbytes


def sides(left: Credentials, right: Credentials) -> tuple[Handshake, Handshake]:
    dialler = Handshake.dialler(left, entropy(1), Lane.CONTROL)
    return dialler, Handshake.accepter(right, entropy(2), lambda _: True)


def complete(dialler: Handshake, accepter: Handshake) -> tuple[Established, Established]:
    answer = accepter.receive(dialler.start()).answer
    assert answer is not None
    reply = dialler.receive(answer)
    assert reply.answer is not None
    assert reply.established is not None
    last = accepter.receive(reply.answer).established
    assert last is not None
    return reply.established, last


def test_a_plain_handshake_tells_the_same_as_a_real_one() -> None:
    seen_by_left, seen_by_right = complete(*sides(LEFT, RIGHT))
    assert (seen_by_left.node, seen_by_left.incarnation) == (RIGHT.identity.node_id, 9)
    assert (seen_by_right.node, seen_by_right.listening_port) == (LEFT.identity.node_id, 7001)
    assert seen_by_left.binding == seen_by_right.binding
    assert seen_by_left.send_key == seen_by_right.receive_key
    assert seen_by_left.send_key != seen_by_left.receive_key
    again = Handshake.dialler(LEFT, entropy(7), Lane.CONTROL)
    other, _ = complete(again, Handshake.accepter(RIGHT, entropy(8), lambda _: True))
    assert other.binding != seen_by_left.binding


def test_plain_frames_have_the_real_length_and_must_come_in_order() -> None:
    plain = Sealer(Cipher.AES_GCM, bytes(32), Lane.CONTROL, 2, PLAIN)
    real = Sealer(Cipher.AES_GCM, bytes(32), Lane.CONTROL, 2, NOISE)
    frames = [b"".join(plain.seal([b"frame", b"%d" % number])) for number in range(5)]
    assert [len(frame) for frame in frames] == [len(real.seal([b"frame0"])[0])] * 5
    opener = Opener(Cipher.AES_GCM, bytes(32), 2, PLAIN)
    bodies = [memoryview(frame)[4:] for frame in frames]
    assert opener.open(bodies[0]) == b"frame0"
    for wrong in (bodies[0], bodies[2], bodies[1][:TAG_BYTES], bodies[1][:3]):
        with pytest.raises(Exception, match="forged, repeated or out of order"):
            opener.open(wrong)
    assert [opener.open(body) for body in bodies[1:]] == [b"frame%d" % n for n in range(1, 5)]


def test_a_stranger_fails_at_the_first_message() -> None:
    dialler, accepter = sides(replace(LEFT, swarm_key=OTHER_KEY), RIGHT)
    with pytest.raises(HandshakeFailed, match="key of this swarm"):
        accepter.receive(dialler.start())


@pytest.mark.parametrize(("left", "right"), [(LEFT, REAL), (REAL, RIGHT)])
def test_a_real_node_and_a_plain_one_never_meet(left: Credentials, right: Credentials) -> None:
    dialler, accepter = sides(left, right)
    with pytest.raises(HandshakeFailed, match="key of this swarm"):
        accepter.receive(dialler.start())


def test_a_real_node_takes_no_plain_answer_frame_or_signature() -> None:
    dialler, _ = sides(REAL, REAL)
    _, plain = sides(LEFT, RIGHT)
    answer = plain.receive(Handshake.dialler(LEFT, entropy(4), Lane.CONTROL).start()).answer
    dialler.start()
    assert answer is not None
    with pytest.raises(HandshakeFailed):
        dialler.receive(answer)
    sealed = PLAIN.frames(Cipher.AES_GCM, bytes(32)).encrypt(b"", b"frame")
    with pytest.raises(InvalidTag):
        NOISE.frames(Cipher.AES_GCM, bytes(32)).decrypt(b"", sealed)
    public_key = REAL.identity.public_key
    assert not verify(public_key, b"d", b"data", plain_signature(public_key, b"d", b"data"))


def test_the_switch_is_code_alone() -> None:
    """No setting names a suite, a node's links use the real one, and nothing that a daemon is
    made of imports sims (the command line does: it also runs simulations)."""
    assert not [name for name in LinkConfig.__slots__ if "suite" in name or "cipher" in name]
    assert REAL.suite is NOISE
    links = TcpLinks(REAL, LinkConfig(), Recorder(), Surroundings(float, bytes, lambda _: None))
    assert links._maker.credentials.suite is NOISE
    files = (ROOT / "swarm").rglob("*.py")
    for file in [f for f in files if f.name != "cli.py" and f.parent.name != "commands"]:
        names = [
            name
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in [getattr(node, "module", None) or "", *(a.name for a in node.names)]
        ]
        assert not [name for name in names if name.split(".")[0] == "sims"], file
