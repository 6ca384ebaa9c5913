"""Invites: what goes in comes out, and what is no invite is one plain sentence."""

from __future__ import annotations

import base64
import random

import pytest

from swarm.discovery.invite import ADDRESSES_MAX, PREFIX, Invite, _checksum, parse_invite
from swarm.errors import ConfigError
from swarm.terms import Address

SECRET = bytes(range(32))
TAG = "0123456789abcdef"
PLACES = (Address("10.0.0.1", 7000), Address("fd00::1", 7001), Address("box.example", 65535))
FULL = Invite(SECRET, TAG, PLACES, 20_000)


def made_of(body: bytes) -> str:
    return PREFIX + base64.b32encode(body + _checksum(body)).decode().rstrip("=").lower()


@pytest.mark.parametrize("invite", [FULL, Invite(SECRET, TAG), Invite(SECRET, TAG, PLACES[:1], 1)])
def test_what_goes_in_comes_out(invite: Invite) -> None:
    assert parse_invite(invite.text) == invite
    assert parse_invite(invite.text.upper()) == invite
    assert parse_invite(f"  {invite.text[:20]}\n{invite.text[20:]} ") == invite


def test_it_is_short_and_shows_no_secret_by_accident() -> None:
    assert len(Invite(SECRET, TAG, PLACES[:2], 20_000).text) < 130
    assert repr(SECRET) not in repr(FULL)
    assert FULL.text not in repr(FULL)


def test_too_many_addresses_and_scopes_are_left_out() -> None:
    many = tuple(Address("10.0.0.1", port) for port in range(1, 20))
    assert parse_invite(Invite(SECRET, TAG, many).text).addresses == many[:ADDRESSES_MAX]
    local = (Address("fe80::1%eth0", 1), Address("n" * 300, 2), PLACES[0])
    assert parse_invite(Invite(SECRET, TAG, local).text).addresses == PLACES[:1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "begins with"),
        ("swarm-abc", "begins with"),
        (PREFIX, "copied whole"),
        (PREFIX + "01890", "only the letters"),
        (FULL.text[:-1], "mistyped"),
        (FULL.text[:30] + ("a" if FULL.text[30] != "a" else "b") + FULL.text[31:], "mistyped"),
        (made_of(b"\2" + bytes(48)), "version 2"),
        (made_of(b"\1\0\0" + bytes(8) + SECRET + b"\1"), "addresses"),
        (made_of(b"\1\0\0" + bytes(8) + SECRET + b"\1\4\1\2"), "addresses"),
        (made_of(b"\1\0\0" + bytes(8) + SECRET + b"\xff" + b"\4\1\2\3\4\0\1" * 9), "addresses"),
        (made_of(b"\1\0\0" + bytes(8) + SECRET + b"\1\0\0\0\0\0\0\0"), "addresses"),
    ],
)
def test_what_is_no_invite_is_one_sentence_without_it(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        parse_invite(text)
    assert "\n" not in str(raised.value)
    assert not text.removeprefix(PREFIX) or text.removeprefix(PREFIX) not in str(raised.value)


def test_no_letters_do_worse_than_an_error() -> None:
    rng = random.Random(1)
    for _ in range(2000):
        text = list(FULL.text)
        for _ in range(rng.randint(1, 4)):
            text[rng.randrange(len(text))] = rng.choice("abcxyz234567=- é0")
        try:
            found = parse_invite("".join(text))
        except ConfigError:
            continue
        assert found == FULL, "the last letter has bits to spare, and blanks are none"
