"""The keys of a swarm over time: how states merge, and what handshakes make of them."""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path

import pytest
from link_pair import KEY, LOOPS, Bench, Build, LinkNode, run

from swarm.errors import CapacityError, ConfigError, HandshakeFailed, RemoteProtocolError
from swarm.home_io import Home
from swarm.key_desk_io import KeyDesk, KeyPorts
from swarm.link.handshake import Credentials, Handshake
from swarm.link.identity import OPEN_SWARM_KEY, Identity, SwarmKey
from swarm.link.keyring import OLDER_MAX, REVOKED, REVOKED_MAX, KeyRing
from swarm.messages import KeyNotice, Lane, Message, OlderKey
from swarm.notes import Note
from swarm.terms import Incarnation, NodeId

DAY = 86_400.0
OUT = NodeId("o" * 32)


def secret(number: int) -> bytes:
    return number.to_bytes(32, "big")


def test_a_later_key_names_its_swarm_in_its_text() -> None:
    later = SwarmKey(secret(7), KEY.tag)
    assert later.tag == KEY.tag
    assert SwarmKey.parse(later.text) == later
    assert SwarmKey.parse(KEY.text) == KEY
    assert SwarmKey(KEY.secret, KEY.tag) == KEY
    assert len(later.text) > len(KEY.text)
    with pytest.raises(ConfigError, match="mistyped"):
        SwarmKey.parse(later.text[:-9] + "aaaaaaaaa")


def test_a_rotated_key_is_accepted_until_its_end() -> None:
    ring = KeyRing(KEY).rotated(secret(1), 10 * DAY)
    assert ring.key == SwarmKey(secret(1), KEY.tag)
    assert ring.accepted(9 * DAY) == (KEY,)
    assert ring.accepted(10 * DAY) == ()
    again = ring.rotated(secret(2), 20 * DAY)
    assert again.accepted(9 * DAY) == (ring.key, KEY)
    for number in range(10):
        again = again.rotated(secret(10 + number), 30 * DAY)
    assert len(again.older) == OLDER_MAX


def test_putting_a_node_out_ends_every_key_that_it_knows() -> None:
    ring = KeyRing(KEY).rotated(secret(1), 10 * DAY).without(OUT, secret(2))
    assert ring.accepted(0.0) == ()
    assert ring.revoked == {OUT}
    assert ring.merged(KeyRing(KEY).rotated(secret(1), 10 * DAY).notice(), 0.0) == ring
    full = KeyRing(KEY, revoked=frozenset(NodeId(str(n)) for n in range(REVOKED_MAX)))
    with pytest.raises(CapacityError):
        full.without(OUT, secret(1))


def test_who_was_away_and_who_was_invited_end_up_with_the_same() -> None:
    ring = KeyRing(KEY).rotated(secret(1), 10 * DAY)
    assert KeyRing(KEY).merged(ring.notice(), DAY) == ring
    assert ring.merged(KeyRing(KEY).notice(), DAY) == ring
    invited = KeyRing(ring.key)
    assert invited.merged(ring.notice(), DAY) == ring
    assert ring.merged(invited.notice(), DAY) == ring


def test_of_two_keys_made_at_once_everybody_takes_the_same() -> None:
    rng = random.Random(3)
    for _ in range(200):
        base = KeyRing(KEY)
        rivals = [
            base.rotated(rng.randbytes(32), 5 * DAY),
            base.rotated(rng.randbytes(32), 3 * DAY),
            base.without(OUT, rng.randbytes(32)),
        ]
        results = set()
        for order in itertools.permutations(rivals):
            ring = base
            for other in order:
                ring = ring.merged(other.notice(), DAY)
            results.add((ring.key, ring.generation, ring.revoked))
            assert KEY not in ring.accepted(DAY), "the earlier end of an older key holds"
        assert len(results) == 1


def credentials(key: SwarmKey, seed: int, older: tuple[SwarmKey, ...] = ()) -> Credentials:
    return Credentials(Identity(secret(seed)), key, Incarnation(1), older_keys=older)


@pytest.mark.parametrize("used", [0, 1, 2])
def test_a_handshake_opens_with_any_key_that_is_accepted(used: int) -> None:
    keys = [KEY, SwarmKey(secret(1), KEY.tag), SwarmKey(secret(2), KEY.tag)]
    dialler = Handshake.dialler(credentials(keys[used], 5), os.urandom, Lane.CONTROL)
    accepter = Handshake.accepter(
        credentials(keys[2], 6, (keys[1], keys[0])), os.urandom, lambda _: True
    )
    answer = accepter.receive(dialler.start()).answer
    last = dialler.receive(answer or b"")
    found = accepter.receive(last.answer or b"").established
    assert found is not None and last.established is not None
    assert found.send_key == last.established.receive_key


def test_a_key_that_is_not_accepted_opens_none() -> None:
    dialler = Handshake.dialler(credentials(KEY, 5), os.urandom, Lane.CONTROL)
    later = SwarmKey(secret(2), KEY.tag)
    accepter = Handshake.accepter(
        credentials(later, 6, (SwarmKey(secret(1), KEY.tag),)), os.urandom, lambda _: True
    )
    with pytest.raises(HandshakeFailed, match="key of this swarm"):
        accepter.receive(dialler.start())


# ---------------------------------------------------------------- kept and told


def test_a_home_keeps_the_ring(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert home.key_ring() is None
    home.save_swarm_key(KEY)
    assert home.key_ring() == KeyRing(KEY)
    ring = KeyRing(KEY).rotated(secret(1), 10 * DAY).without(OUT, secret(2))
    home.save_key_ring(ring)
    assert Home(tmp_path).key_ring() == ring
    assert (tmp_path / "keyring.json").stat().st_mode & 0o077 == 0
    other = SwarmKey(secret(9))
    home.save_swarm_key(other)
    assert home.key_ring() == KeyRing(other), "what is kept of another swarm says nothing"
    home.save_swarm_key(ring.key)
    (tmp_path / "keyring.json").write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        home.key_ring()


def desk_of(node: LinkNode, folder: Path) -> KeyDesk:
    home = Home(folder / node.id)
    home.save_swarm_key(KEY)
    notes: list[Note] = node.events.notes
    ports = KeyPorts(node.links, node.links.set_keys, notes.append, lambda: DAY)
    desk = KeyDesk(node.id, home, KeyRing(KEY), ports)

    def received(_: NodeId, message: Message) -> None:
        if isinstance(message, KeyNotice):
            desk.received(message)

    node.events.on_message = received
    return desk


@pytest.mark.parametrize("loop", LOOPS)
def test_a_change_goes_round_and_who_is_out_stays_out(loop: str, tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        nodes = [await bench.node() for _ in range(4)]
        desks = [desk_of(node, tmp_path) for node in nodes]
        first, second, third, bad = nodes
        for one, other in ((first, second), (second, third), (second, bad), (first, bad)):
            one.links.dial([other.address], other.id)
            await one.linked_to(other)
            await other.linked_to(one)
        home = Home(tmp_path / first.id)
        ring = KeyRing(KEY).without(bad.id, secret(2))
        home.save_key_ring(ring)
        desks[0].reload()
        await bad.events.until(lambda: not bad.events.up)
        assert {entry[2] for entry in bad.events.all("down")} == {REVOKED}
        await third.events.until(lambda: third.events.messages)
        assert Home(tmp_path / third.id).key_ring() == ring
        assert Home(tmp_path / bad.id).key_ring() == KeyRing(KEY)
        assert not [m for _, m in bad.events.messages if isinstance(m, KeyNotice)]
        bad.links.dial([third.address], third.id)
        await bad.events.until(lambda: bad.events.all("dial_failed"))
        disguised = await bench.node()
        disguised.links.dial([third.address], third.id)
        await disguised.events.until(lambda: disguised.events.all("dial_failed"))
        knowing = await bench.node(Build(key=ring.key, seed=bench.seeds[bad.id]))
        knowing.links.dial([third.address], third.id)
        await knowing.events.until(lambda: knowing.events.all("dial_failed"))
        assert REVOKED in knowing.events.all("dial_failed")[0][2]
        welcome = await bench.node(Build(key=ring.key))
        welcome.links.dial([third.address], third.id)
        await welcome.linked_to(third)

    run(loop, "tcp", scenario)


@pytest.mark.parametrize(
    "notice",
    [
        KeyNotice("other", 1, secret(1), (), ()),
        KeyNotice(KEY.tag, 1, b"short", (), ()),
        KeyNotice(KEY.tag, 1 << 40, secret(1), (), ()),
        KeyNotice(KEY.tag, 1, secret(1), (OlderKey(b"", 0.0),), ()),
        KeyNotice(KEY.tag, 1, secret(1), (OlderKey(secret(3), 0.0),) * (OLDER_MAX + 1), ()),
    ],
)
def test_a_notice_that_cannot_be_ends_the_link(notice: KeyNotice, tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        desk = desk_of(await bench.node(), tmp_path)
        with pytest.raises(RemoteProtocolError):
            desk.received(notice)

    run("asyncio", "tcp", scenario)


def test_the_open_swarm_keeps_its_key(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        node = await bench.node()
        taken: list[KeyRing] = []
        ports = KeyPorts(node.links, taken.append, lambda _: None)
        desk = KeyDesk(node.id, Home(tmp_path), KeyRing(OPEN_SWARM_KEY), ports)
        desk.received(KeyRing(OPEN_SWARM_KEY).rotated(secret(1), 0.0).notice())
        assert len(taken) == 1

    run("asyncio", "tcp", scenario)


def test_no_text_shows_a_secret() -> None:
    ring = KeyRing(SwarmKey(secret(3), KEY.tag)).rotated(secret(4), DAY)
    for shown in (repr(ring), repr(ring.notice()), str(ring.older[0])):
        assert repr(secret(3)) not in shown
        assert repr(secret(4)) not in shown
