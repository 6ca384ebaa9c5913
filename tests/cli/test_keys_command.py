"""`swarm keys` and `swarm usage` on a home, and a start that they allow or not."""

from __future__ import annotations

import json
import re
import stat
import subprocess
from pathlib import Path

import pytest
from background import gateway, save_gateway
from fake_node import FakeNode
from swarm_procs import PROGRAM

from swarm import cli
from swarm.access.keys import digest_of
from swarm.access.keys_io import KeyStore
from swarm.access.receipts import Account
from swarm.access.receipts_io import ReceiptStore
from swarm.access.usage import Amount, Place
from swarm.access.usage_io import UsageStore, parse_day
from swarm.terms import NodeId, short


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = cli.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return status, out, err


def test_a_key_is_shown_once_and_kept_as_a_hash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    status, out, err = run(
        capsys, "keys", "add", "anna", "--models", "small,big", "--models", "third",
        "--rate", "10/s", "--tokens-per-day", "5000", "--home", home,
    )  # fmt: skip
    text = out.strip()
    assert status == 0 and re.fullmatch(r"sk-swarm-[0-9a-f]{64}", text) and "once" in err
    (key,) = KeyStore(home).keys()
    assert key.digest == digest_of(text) and key.models == ("small", "big", "third")
    status, out, _ = run(capsys, "keys", "list", "--home", home)
    assert status == 0 and text not in out
    for shown in ("anna", "small, big, third", "10/s", "5,000", "in force"):
        assert shown in out
    assert run(capsys, "keys", "revoke", "anna", "--home", home)[:2] == (0, "revoked anna\n")
    _, out, _ = run(capsys, "keys", "list", "--home", home, "--json")
    (entry,) = json.loads(out)
    assert entry["name"] == "anna" and entry["revoked"] and "digest" not in entry
    for file in home.glob("keys.sqlite*"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert text.encode() not in file.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["add", "a b"], "letters, digits"),
        (["add", "a", "--rate", "often"], "10/s"),
        (["revoke", "nobody"], "'nobody'"),
    ],
)
def test_what_cannot_be_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    status, out, err = run(capsys, "keys", *arguments, "--home", tmp_path)
    assert (status, out) == (1, "") and says in err and err.count("\n") == 1


def test_without_a_home_there_is_nothing_to_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "none"
    assert "no keys" in run(capsys, "keys", "list", "--home", home)[1]
    assert "nothing" in run(capsys, "usage", "--home", home)[1]
    assert "no key in force" in run(capsys, "keys", "revoke", "anna", "--home", home)[2]
    assert not home.exists()


def test_usage_as_a_table_as_json_and_for_a_spreadsheet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    days = [parse_day(f"2026-01-0{number}") for number in (1, 2)]
    UsageStore(tmp_path).add(
        (
            (Place(days[0], "anna", "small"), Amount(1, 1000, 20, 5)),
            (Place(days[1], "anna", "small"), Amount(1, 2000, 30, 5)),
            (Place(days[1], "", "=cmd|' /C calc'!A0"), Amount(1, 2, 3)),
        )
    )
    _, out, _ = run(capsys, "usage", "--home", tmp_path)
    assert re.search(r"anna +small +2 +3,000 +50 +10", out) and "(no key)" in out
    _, out, _ = run(capsys, "usage", "--home", tmp_path, "--since", "2026-01-02", "--json")
    assert [line["prompt_tokens"] for line in json.loads(out)] == [2, 2000]
    _, out, _ = run(capsys, "usage", "--home", tmp_path, "--csv")
    lines = out.splitlines()
    assert lines[0].startswith("day,key,model,requests")
    assert "2026-01-02,anna,small,1,2000,30,5" in lines
    assert any(",'=cmd" in line for line in lines)
    assert run(capsys, "usage", "--home", tmp_path, "--csv", "--json")[0] == 1
    assert run(capsys, "usage", "--home", tmp_path, "--since", "soon")[0] == 1


def test_layers_run_between_nodes_are_shown_by_the_names_that_the_running_node_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known, stranger = NodeId("a" * 32), NodeId("f" * 32)
    model = FakeNode().views[0].spec.model_id
    sums = {Account(20000, node, model): 7 for node in (known, stranger)}
    ReceiptStore(tmp_path).save(sums, {}, {})
    _, out, _ = run(capsys, "usage", "--nodes", "--home", tmp_path)
    assert "anna" not in out and short(known) in out, "no node runs"
    with gateway(FakeNode) as (_, served):
        save_gateway(tmp_path, served.url)
        _, out, _ = run(capsys, "usage", "--nodes", "--home", tmp_path)
    assert f"anna {short(known)}" in out and f"tiny {short(model)}" in out
    assert re.search(rf"  {short(stranger)}  ", out)


def test_a_node_does_not_open_itself_to_a_network_without_a_key(tmp_path: Path) -> None:
    ran = subprocess.run(
        [PROGRAM, "join", "--home", tmp_path, "--no-mdns", "--listen", "127.0.0.1:0",
         "--gateway", "0.0.0.0:0"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 1, ran.stderr
    sentence = ran.stderr.splitlines()[-1]
    assert "swarm keys add NAME" in sentence and "--no-auth" in sentence
    assert not (tmp_path / "gateway.json").exists()
