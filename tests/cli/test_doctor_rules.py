"""What the doctor makes of facts: one row for each cause, and that each says what to do."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from swarm.commands.doctor import report
from swarm.commands.doctor.facts import (
    Card,
    Compute,
    Facts,
    Folder,
    Heard,
    Machine,
    Multicast,
    Origin,
    Peer,
    Port,
    RunningNode,
)
from swarm.commands.doctor.findings import Grade
from swarm.discovery.interfaces import AddressClass
from swarm.link.found import Found, Outcome
from swarm.link.handshake import ProtocolRange
from swarm.terms import Address, NodeId

GIB = 1 << 30
CARD = Card("eth0", "10.0.0.1", 24, AddressClass.LAN)
WIFI = Card("wlan0", "10.0.1.1", 24, AddressClass.LAN, is_wireless=True)
DOCKER = Card("docker0", "172.17.0.1", 16, AddressClass.VIRTUAL)
VPN = Card("wg0", "10.9.0.1", 24, AddressClass.TUNNEL)
THERE = Address("10.0.0.2", 7946)
MEMBER = Found(
    THERE, Outcome.MEMBER, node=NodeId("b" * 32), protocol=ProtocolRange(1, 1),
    is_reached_back=True, clock_offset_s=0.2,
)  # fmt: skip
BERT = Peer(MEMBER, "bert", Origin.STATE, is_heard=True, is_linked=True)
OWN_SECOND = replace(BERT, found=replace(MEMBER, address=Address(CARD.host, 7947)))
ALL_FREE = Port("the gateway", Address("127.0.0.1", 8000), is_asked=False)
HOME = Folder("the home", "/srv/home", 50 * GIB)
MACHINE = Machine(16 * GIB, 12 * GIB, 20_000, (HOME,), (ALL_FREE,))
COMPUTE = Compute("2.13.0", devices=(("cuda:0", "a GPU"),), flash_attention="2.8", compiler="g++")
WELL = Facts(
    tag="aa", key_problem="", config_problem="", cards=(CARD,),
    multicast=(Multicast(CARD.host, True, True),), uses_multicast=True,
    heard=(Heard(MEMBER.node, "aa", "bert", (THERE,)),), peers=(BERT,),
    node=RunningNode("http://127.0.0.1:8000", "aa", "anna", (Address("10.0.0.1", 7946),)),
    machine=MACHINE, compute=COMPUTE,
)  # fmt: skip
OURS = ProtocolRange(1, 1)


def causes(facts: Facts) -> dict[str, Grade]:
    found = report.diagnose(facts, OURS)
    return {f.cause: f.grade for f in found if f.grade is not Grade.OK}


def peer(outcome: Outcome, origin: Origin = Origin.ASKED, **more: object) -> Peer:
    silent = Found(THERE, outcome, "no answer in time", protocol=ProtocolRange(1, 1))
    return replace(Peer(silent, "bert", origin), **more)  # type: ignore[arg-type]


def deaf(sent: bool | None, heard: bool | None, *peers: Peer, card: Card = CARD) -> Facts:
    seen = (Multicast(card.host, sent, heard),)
    return replace(WELL, cards=(card,), multicast=seen, peers=peers, heard=())


def machine(**more: object) -> Facts:
    return replace(WELL, machine=replace(MACHINE, **more))  # type: ignore[arg-type]


def compute(**more: object) -> Facts:
    return replace(WELL, compute=replace(COMPUTE, **more))  # type: ignore[arg-type]


def shut_out(detail: str) -> Peer:
    return replace(BERT, found=replace(MEMBER, is_reached_back=False, back_detail=detail))


def skewed(low: int, high: int, outcome: Outcome = Outcome.OTHER_VERSION) -> Facts:
    found = replace(MEMBER, outcome=outcome, protocol=ProtocolRange(low, high))
    return replace(WELL, peers=(replace(BERT, found=found),))


def test_all_is_well() -> None:
    assert causes(WELL) == {}
    assert report.exit_status(report.diagnose(WELL, OURS)) == 0


NEAR = Peer(replace(MEMBER, address=Address("172.17.0.9", 1)), "c", Origin.STATE)
LOST = peer(Outcome.SILENT, Origin.STATE)
BEHIND = replace(LOST, found=replace(LOST.found, address=Address("172.17.0.9", 1)))
ROWS: list[tuple[str, Grade, Facts]] = [
    # interfaces
    ("no-network", Grade.PROBLEM, replace(WELL, cards=())),
    ("only-bridges", Grade.PROBLEM, replace(WELL, cards=(DOCKER,))),
    ("no-lan-address", Grade.WARNING, replace(WELL, cards=(VPN, DOCKER))),
    ("no-lan-address", Grade.WARNING,
     replace(WELL, cards=(Card("eth0", "169.254.1.1", 16, AddressClass.LINK_LOCAL),))),
    ("bridge", Grade.NOTE, replace(WELL, cards=(CARD, DOCKER))),
    ("bridge", Grade.NOTE, replace(WELL, cards=(CARD, DOCKER), peers=(BERT, NEAR))),
    ("bridge-shadows-network", Grade.PROBLEM,
     replace(WELL, cards=(CARD, replace(DOCKER, host="10.0.0.9")))),
    ("peer-behind-bridge", Grade.PROBLEM,
     replace(WELL, cards=(CARD, DOCKER), peers=(BERT, BEHIND))),
    ("vpn", Grade.NOTE, replace(WELL, cards=(CARD, VPN))),
    ("network-twice", Grade.WARNING, replace(WELL, cards=(CARD, replace(WIFI, host="10.0.0.8")))),
    ("several-networks", Grade.NOTE, replace(WELL, cards=(CARD, WIFI))),
    ("ipv6-only", Grade.WARNING,
     replace(WELL, cards=(Card("eth0", "fd00::1", 64, AddressClass.LAN),))),
    # multicast
    ("multicast-off", Grade.NOTE, replace(WELL, uses_multicast=False)),
    ("multicast-impossible", Grade.PROBLEM,
     replace(WELL, multicast=(Multicast(CARD.host, None, None, "no such device"),))),
    ("multicast-filtered", Grade.WARNING, deaf(False, False, BERT)),
    ("multicast-in-filtered", Grade.PROBLEM, deaf(True, False, BERT)),
    ("multicast-out-filtered", Grade.PROBLEM, deaf(False, True, BERT)),
    ("multicast-unanswered", Grade.WARNING, deaf(None, None, BERT)),
    ("nobody-there", Grade.NOTE, deaf(None, None)),
    ("nobody-there", Grade.NOTE, deaf(None, None, OWN_SECOND)),
    ("nobody-there", Grade.NOTE, deaf(None, None, peer(Outcome.SILENT, is_neighbour=True))),
    ("isolation", Grade.PROBLEM, deaf(None, None, peer(Outcome.SILENT))),
    ("isolation", Grade.WARNING, deaf(None, None, peer(Outcome.SILENT, Origin.REMEMBERED))),
    # peers
    ("no-peers", Grade.NOTE, replace(WELL, peers=())),
    ("one-way-firewall-here", Grade.PROBLEM,
     replace(WELL, peers=(shut_out("no answer in time"),))),
    ("one-way-firewall-there", Grade.PROBLEM,
     replace(WELL, peers=(peer(Outcome.SILENT, is_linked=True),))),
    ("indirect-link", Grade.NOTE,
     replace(WELL, peers=(peer(Outcome.SILENT, is_linked=True, kind="relayed"),))),
    ("indirect-link", Grade.NOTE,
     replace(WELL, peers=(peer(Outcome.NO_WAY, is_linked=True, kind="webrtc"),))),
    ("one-way-firewall-there", Grade.PROBLEM,
     replace(WELL, peers=(peer(Outcome.SILENT, is_heard=True),))),
    ("firewall-there", Grade.PROBLEM,
     replace(WELL, peers=(peer(Outcome.SILENT, is_neighbour=True),))),
    ("silent", Grade.PROBLEM, replace(WELL, peers=(peer(Outcome.SILENT),))),
    ("silent", Grade.NOTE, replace(WELL, peers=(peer(Outcome.SILENT, Origin.REMEMBERED),))),
    ("nobody-listens", Grade.PROBLEM, replace(WELL, peers=(peer(Outcome.CLOSED),))),
    ("no-way", Grade.PROBLEM, replace(WELL, peers=(peer(Outcome.NO_WAY),))),
    ("mute", Grade.PROBLEM, replace(WELL, peers=(peer(Outcome.MUTE),))),
    # key, versions, clocks
    ("key-damaged", Grade.PROBLEM, replace(WELL, tag="", key_problem="it is short")),
    ("no-key", Grade.NOTE, replace(WELL, tag="")),
    ("wrong-key", Grade.PROBLEM, replace(WELL, peers=(peer(Outcome.OTHER_KEY),))),
    ("wrong-key", Grade.PROBLEM, replace(WELL, tag="bb", peers=())),
    ("other-swarms", Grade.NOTE,
     replace(WELL, heard=(*WELL.heard, Heard(NodeId("c"), "cc", "carl", ())))),
    ("version-skew", Grade.PROBLEM, skewed(7, 9)),
    ("versions-differ", Grade.NOTE, skewed(1, 2, Outcome.MEMBER)),
    ("clock-skew", Grade.WARNING,
     replace(WELL, peers=(replace(BERT, found=replace(MEMBER, clock_offset_s=-90.0)),))),
    # this machine
    ("bad-settings", Grade.PROBLEM, replace(WELL, config_problem="unknown key 'x'")),
    ("no-node", Grade.NOTE, replace(WELL, node=None)),
    ("node-mute", Grade.WARNING,
     replace(WELL, node=RunningNode("http://x", "", "", (), "it does not answer"))),
    ("port-busy", Grade.WARNING,
     machine(ports=(replace(ALL_FREE, problem="address already in use", is_busy=True),))),
    ("port-busy", Grade.PROBLEM,
     machine(ports=(replace(ALL_FREE, is_asked=True, problem="in use", is_busy=True),))),
    ("port-refused", Grade.PROBLEM, machine(ports=(replace(ALL_FREE, problem="not allowed"),))),
    ("disk-full", Grade.PROBLEM,
     machine(folders=(replace(HOME, problem="no space left", is_full=True),))),
    ("disk-unwritable", Grade.PROBLEM, machine(folders=(replace(HOME, problem="read-only"),))),
    ("disk-low", Grade.WARNING, machine(folders=(replace(HOME, free_bytes=1000),))),
    ("memory-low", Grade.WARNING, machine(memory_free_bytes=GIB // 2)),
    ("few-files", Grade.WARNING, machine(files_max=256)),
    # torch
    ("torch-unusable", Grade.PROBLEM, compute(problem="no module named torch")),
    ("device-broken", Grade.PROBLEM, compute(broken_devices=(("cuda:1", "driver too old"),))),
    ("gpu-unused", Grade.WARNING, compute(devices=(), has_nvidia=True)),
    ("device-missing", Grade.PROBLEM, compute(wanted="mps")),
    ("device-missing", Grade.PROBLEM, compute(wanted="cpu, cuda:7")),
    ("no-flash-attn", Grade.NOTE, compute(flash_attention="", flash_problem="not installed")),
    ("no-compiler", Grade.WARNING, compute(compiler="")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("cause", "grade", "facts"), ROWS, ids=[f"{c}-{g.value}" for c, g, _ in ROWS]
)
def test_a_cause_is_named(cause: str, grade: Grade, facts: Facts) -> None:
    found = report.diagnose(facts, OURS)
    assert causes(facts).get(cause) is grade, causes(facts)
    named = next(f for f in found if f.cause == cause)
    assert named.what.endswith(".") and named.so_what.endswith(".")
    if grade in (Grade.PROBLEM, Grade.WARNING):
        assert named.to_do.endswith(".")
    assert report.exit_status(found) == int(Grade.PROBLEM in causes(facts).values())


def test_every_cause_of_trouble_has_a_row() -> None:
    """The rules name no cause that the table above does not know."""
    import re
    from pathlib import Path

    folder = Path(report.__file__).parent
    text = "".join(f.read_text() for f in folder.glob("*.py") if not f.name.endswith("_io.py"))
    graded = set(re.findall(r'Grade\.\w+,\s*"[\w-]+",\s*"([\w-]+)"', text))
    assert graded and graded <= {cause for cause, _, _ in ROWS}


def test_a_firewall_towards_one_of_two_is_on_the_way() -> None:
    other = replace(BERT, found=replace(MEMBER, node=NodeId("c")), name="carl")
    found = report.diagnose(replace(WELL, peers=(other, shut_out("refused"))), OURS)
    assert any("the way from there" in f.so_what for f in found)


def test_an_address_that_is_not_needed_asks_for_nothing() -> None:
    old = peer(Outcome.SILENT, Origin.REMEMBERED)
    found = report.diagnose(replace(WELL, peers=(BERT, old)), OURS)
    assert [f.to_do for f in found if f.cause == "silent"] == [""]


def test_the_report_in_both_forms() -> None:
    found = report.diagnose(replace(WELL, tag="bb", peers=()), OURS)
    told = json.loads(json.dumps(report.as_json(found)))
    assert not told["healthy"] and told["counts"]["problem"] == 1
    row = next(row for row in told["findings"] if row["grade"] == "problem")
    assert row["cause"] == "wrong-key" and row["what_to_do"]
    shown = io.StringIO()
    Console(file=shown, width=80).print(report.as_text(found))
    text = shown.getvalue()
    assert "PROBLEM This machine has the key of swarm bb" in text and "→ If they" in text
    assert text.rstrip().endswith("1 problem.")
