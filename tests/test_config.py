"""One frozen config from file, environment and flags; everything unknown stops the start."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from swarm.config import Config, as_toml, lan, load_config, sim
from swarm.errors import ConfigError


def test_the_printed_config_builds_itself_again() -> None:
    for config in (lan(), sim()):
        assert load_config(as_toml(config), {}, {}) == config


def test_flags_win_over_variables_over_file() -> None:
    text = "[gateway]\nport = 1\nretry_after_s = 7\n[shard]\nthreads = 3"
    environment = {"SWARM_GATEWAY_PORT": "2", "SWARM_SHARD_THREADS": "4", "PATH": "/bin"}
    config = load_config(text, environment, {"shard": {"threads": 5}})
    assert (config.gateway.port, config.gateway.retry_after_s, config.shard.threads) == (2, 7, 5)


@pytest.mark.parametrize(
    ("text", "environment", "named"),
    [
        ("[gatway]\nport = 1", {}, "gatway"),
        ("[gateway]\nprt = 1", {}, "prt"),
        ("[gateway]\nport = 'x'", {}, "gateway.port"),
        ("[gateway]\nport = -1", {}, "gateway.port"),
        ("[gateway]\nport = true", {}, "gateway.port"),
        ("[discovery]\nmdns = 'maybe'", {}, "discovery.mdns"),
        ("gateway = 3", {}, "gateway"),
        ("= 3", {}, "TOML"),
        ("", {"SWARM_NOTHING_HERE": "1"}, "SWARM_NOTHING_HERE"),
        ("", {"SWARM_GATEWAY_PRT": "1"}, "prt"),
        ("[link]\nping_interval_s = inf", {}, "link.ping_interval_s"),
    ],
)
def test_what_is_wrong_is_named(text: str, environment: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load_config(text, environment, {})


def test_nothing_edits_a_config() -> None:
    section: Any = lan().gateway
    with pytest.raises(FrozenInstanceError):
        section.port = 3


def test_every_section_is_documented() -> None:
    assert [section.name for section in fields(Config)] == [
        "link", "discovery", "gossip", "routing", "shard", "moves", "owner", "weights",
        "gateway",
    ]  # fmt: skip
