"""Identities sign in domains; swarm keys survive being typed and show nothing of themselves."""

from __future__ import annotations

import base64
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import ConfigError
from swarm.link.identity import OPEN_SWARM_KEY, Identity, SwarmKey, node_id_of, verify

SEED = bytes(range(32))


def test_a_node_id_is_32_base32_letters_of_the_public_key() -> None:
    identity = Identity(SEED)
    assert identity.node_id == node_id_of(identity.public_key)
    assert len(identity.node_id) == 32
    assert set(identity.node_id) <= set("abcdefghijklmnopqrstuvwxyz234567")


def test_a_seed_gives_the_same_keys_for_ever() -> None:
    """A change here would make every node a stranger to its own past."""
    identity = Identity(SEED)
    assert identity.node_id == "aiwd4vx5b644u56o4kz45fviglrp6scx"
    assert SwarmKey(SEED).tag == "65ab01cc29df0eb2"
    again = Identity(SEED)
    assert (identity.public_key, identity.noise_public) == (again.public_key, again.noise_public)
    assert identity.noise_private != SEED
    assert Identity(bytes(32)).node_id != identity.node_id


def test_signatures_hold_in_their_domain_only() -> None:
    identity = Identity(SEED)
    signature = identity.sign(b"records", b"data")
    assert verify(identity.public_key, b"records", b"data", signature)
    assert not verify(identity.public_key, b"record", b"sdata", signature)
    assert not verify(identity.public_key, b"recordsd", b"ata", signature)
    assert not verify(identity.public_key, b"records", b"datb", signature)
    assert not verify(Identity(bytes(32)).public_key, b"records", b"data", signature)


@given(st.binary(max_size=70), st.binary(max_size=70))
def test_malformed_keys_and_signatures_are_merely_false(key: bytes, signature: bytes) -> None:
    assert not verify(key, b"records", b"data", signature)
    assert not verify(bytes(32), b"records", b"data", bytes(64))


@given(st.binary(min_size=32, max_size=32))
def test_a_swarm_key_survives_its_text_form(secret: bytes) -> None:
    key = SwarmKey(secret)
    assert SwarmKey.parse(key.text) == key
    assert SwarmKey.parse(f"  {key.text.upper()}\n") == key


def test_every_single_typing_error_is_noticed() -> None:
    text = SwarmKey(SEED).text
    for position in range(len("swarm-"), len(text)):
        for letter in "ab7":
            wrong = text[:position] + letter + text[position + 1 :]
            if wrong != text:
                with pytest.raises(ConfigError, match="mistyped"):
                    SwarmKey.parse(wrong)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "begins with"),
        ("hunter2", "begins with"),
        (SwarmKey(SEED).text[:-1], "copied whole"),
        (SwarmKey(SEED).text + "a", "copied whole"),
        ("swarm-" + "1" * 56, "letters a-z and digits 2-7"),
        ("swarm-" + "é" * 56, "letters a-z and digits 2-7"),
    ],
)
def test_a_wrong_key_is_refused_in_plain_words_without_repeating_it(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        SwarmKey.parse(text)
    assert len(text) < 10 or text not in str(caught.value)


def test_nothing_shows_the_secret() -> None:
    key, identity = SwarmKey(SEED), Identity(SEED)
    seed_forms = (repr(SEED), SEED.hex(), base64.b32encode(SEED).decode().lower()[:40])
    for text in (repr(key), str(key), f"{key}", repr(identity), str(identity), key.tag):
        assert not any(form in text for form in seed_forms)
    assert key.tag in str(key)
    assert len(key.tag) == 16


def test_tag_and_psk_differ_from_key_to_key_and_from_each_other() -> None:
    keys = [SwarmKey.generate(os.urandom) for _ in range(20)]
    assert len({key.tag for key in keys}) == 20
    assert len({key.psk for key in keys}) == 20
    assert all(key.psk != key.secret and not key.psk.hex().startswith(key.tag) for key in keys)


def test_the_open_swarm() -> None:
    assert OPEN_SWARM_KEY.is_open
    assert not SwarmKey(SEED).is_open


@pytest.mark.parametrize("size", [0, 31, 33])
def test_seeds_and_keys_have_32_bytes(size: int) -> None:
    with pytest.raises(ConfigError):
        Identity(bytes(size))
    with pytest.raises(ConfigError):
        SwarmKey(bytes(size))
