"""What a node keeps on disk."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from swarm.errors import ConfigError
from swarm.home_io import Home
from swarm.link.identity import SwarmKey
from swarm.terms import Address


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_secrets_are_for_the_owner_only_and_stay(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    seed = home.node_seed(os.urandom)
    key = SwarmKey.generate(os.urandom)
    home.save_swarm_key(key)
    home.save_gateway("http://127.0.0.1:1", "token")
    again = Home(tmp_path / "home")
    assert again.node_seed(os.urandom) == seed
    assert again.swarm_key() == key
    for name in ("node.key", "key", "gateway.json"):
        assert mode(home.path / name) == 0o600
    home.forget_gateway()
    home.forget_gateway()
    assert not (home.path / "gateway.json").exists()


def test_the_incarnation_rises_with_every_start(tmp_path: Path) -> None:
    assert [Home(tmp_path).next_incarnation() for _ in range(3)] == [1, 2, 3]
    Home(tmp_path).save_incarnation(9)
    assert Home(tmp_path).next_incarnation() == 10


def test_a_damaged_counter_is_said_and_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "incarnation").write_text("many")
    with pytest.raises(ConfigError, match="incarnation"):
        Home(tmp_path).next_incarnation()


@pytest.mark.parametrize("value", [1 << 53, (1 << 53) - 2, 10**30])
def test_a_counter_beyond_its_range_is_said(tmp_path: Path, value: int) -> None:
    (tmp_path / "incarnation").write_text(str(value))
    with pytest.raises(ConfigError, match=f"incarnation holds {value}"):
        Home(tmp_path).next_incarnation()
    assert (tmp_path / "incarnation").read_text() == str(value), "nothing is overwritten"


def test_a_damaged_identity_is_said(tmp_path: Path) -> None:
    for text in ("xyz", "abcd"):
        (tmp_path / "node.key").write_text(text)
        with pytest.raises(ConfigError, match="node.key"):
            Home(tmp_path).node_seed(os.urandom)


@pytest.mark.parametrize("data", [b"\xff\xfe\x80abc", b"hello", b""])
def test_a_damaged_swarm_key_is_said_and_the_file_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "key").write_bytes(data)
    with pytest.raises(ConfigError, match=f"{tmp_path}/key is damaged"):
        Home(tmp_path).swarm_key()


def test_peers_are_remembered_and_damage_forgets_them(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert home.peers() == ()
    addresses = (Address("10.0.0.1", 7), Address("fe80::1", 8))
    home.save_peers(addresses)
    assert home.peers() == addresses
    (tmp_path / "peers.json").write_text("[[1]]")
    assert home.peers() == ()


def test_one_node_a_folder(tmp_path: Path) -> None:
    handle = Home(tmp_path).lock()
    with pytest.raises(ConfigError, match="--home"):
        Home(tmp_path).lock()
    os.close(handle)
    os.close(Home(tmp_path).lock())


def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(ConfigError, match=f"cannot write to {tmp_path}"):
        Home(tmp_path).lock()


def test_a_home_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="home folder"):
        Home(tmp_path / "file")
