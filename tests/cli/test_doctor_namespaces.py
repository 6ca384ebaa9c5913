"""`swarm doctor` on hosts that are ill names the right cause, and on one that is not none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
import swarm_netns
from doctor_hosts import Ward, ward

pytestmark = [
    pytest.mark.xdist_group("processes"),
    pytest.mark.skipif(swarm_netns.why_not() is not None, reason=str(swarm_netns.why_not())),
    pytest.mark.skipif(shutil.which("nft") is None, reason="nft, which makes firewalls, is absent"),
]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ward]:
    with ward(tmp_path_factory.mktemp("ward")) as made:
        yield made


def test_a_healthy_host_is_called_healthy(hosts: Ward) -> None:
    report = hosts.reports["healthy"]
    assert report["status"] == 0 and report["healthy"], report
    assert {"multicast", "peers", "versions", "clock", "key", "ports"} <= hosts.well("healthy")
    assert set(hosts.causes("healthy")) <= {"no-node", "other-swarms"}
    said = [row["what"] for row in report["findings"]]
    assert any("heard: yes, sent: yes" in what for what in said)
    assert any("bert" in what and "in both directions" in what for what in said)


def test_a_node_that_runs_is_asked(hosts: Ward) -> None:
    report = hosts.reports["with a node"]
    assert report["healthy"] and set(hosts.causes("with a node")) <= {"other-swarms"}
    said = [row["what"] for row in report["findings"]]
    assert any(what.startswith("Node ella runs here") for what in said)
    assert not any(row["check"] == "ports" for row in report["findings"])


@pytest.mark.parametrize(
    ("name", "cause", "grade"),
    [
        ("multicast filtered", "multicast-filtered", "warning"),
        ("multicast in", "multicast-in-filtered", "problem"),
        ("multicast out", "multicast-out-filtered", "problem"),
        ("isolated", "isolation", "problem"),
        ("firewall here", "one-way-firewall-here", "problem"),
        ("firewall there", "one-way-firewall-there", "problem"),
        ("wrong key", "wrong-key", "problem"),
        ("version skew", "version-skew", "problem"),
        ("bridge", "bridge-shadows-network", "problem"),
        ("busy port", "port-busy", "problem"),
        ("full disk", "disk-full", "problem"),
    ],
)
def test_the_right_cause_is_named(hosts: Ward, name: str, cause: str, grade: str) -> None:
    found = hosts.causes(name)
    assert found.get(cause) == grade, hosts.reports[name]["findings"]
    others = {other for other, how in found.items() if how in ("warning", "problem")}
    assert others <= {cause, *ALSO.get(name, ())}
    assert hosts.reports[name]["status"] == int("problem" in found.values())


ALSO = {"isolated": {"silent"}}
"""What else is true there."""
