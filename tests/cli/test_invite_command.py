"""`swarm invite` and `swarm join INVITE`: what they print, and that it works."""

from __future__ import annotations

import asyncio
import json
import queue
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from link_pair import KEY, OTHER_KEY, Bench, Build
from swarm_procs import PROGRAM, NodePlan, Swarm

from swarm import cli
from swarm.commands.invite_io import check_invite
from swarm.discovery.invite import Invite, parse_invite
from swarm.errors import ConfigError
from swarm.home_io import Home
from swarm.terms import Address

SOMEWHERE = "192.0.2.1:7000"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = cli.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return status, out, err


@contextmanager
def listening() -> Iterator[Address]:
    """A node of the swarm of `KEY`."""
    ready: queue.Queue[tuple[Address, asyncio.AbstractEventLoop, asyncio.Event]] = queue.Queue()

    async def main() -> None:
        bench, ended = Bench("tcp"), asyncio.Event()
        node = await bench.node(Build())
        ready.put((node.address, asyncio.get_running_loop(), ended))
        await ended.wait()
        await bench.close()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    address, loop, ended = ready.get(timeout=20)
    yield address
    loop.call_soon_threadsafe(ended.set)
    thread.join()


def test_an_invite_holds_the_key_and_addresses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run(capsys, "invite", "--home", tmp_path)
    assert status == 1
    assert "no swarm key" in err
    Home(tmp_path).save_swarm_key(KEY)
    status, out, err = run(capsys, "invite", "--home", tmp_path, "--address", SOMEWHERE)
    assert (status, err) == (0, "")
    found = parse_invite(out.removeprefix("swarm join "))
    assert found.secret == KEY.secret
    assert found.addresses == (Address("192.0.2.1", 7000),)
    status, out, err = run(capsys, "invite", "--home", tmp_path, "--json")
    assert json.loads(out)["addresses"] == []
    status, out, err = run(capsys, "invite", "--home", tmp_path)
    assert "no address" in err
    assert KEY.text not in out + err


def test_the_code_is_drawn_with_half_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    from swarm.commands.invite_io import _print_code

    _print_code(Invite(KEY.secret, KEY.tag, (Address("10.0.0.1", 7000),)).text)
    lines = capsys.readouterr().out.splitlines()
    assert 15 < len(lines) < 40
    assert max(map(len, lines)) < 80


@pytest.mark.parametrize("wrong", ["invite-abc", "swarm-abc", "--key=x invite-abc"])
def test_what_is_no_invite_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    status, out, err = run(capsys, "join", *wrong.split(), "--home", tmp_path / "home")
    assert (status, out) == (1, "")
    assert err.startswith("swarm: ") and err.count("\n") == 1
    assert not (tmp_path / "home" / "key").exists()


def test_a_stale_invite_is_named_and_a_silent_one_is_tried(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with listening() as address:
        check_invite(Invite(KEY.secret, KEY.tag, (address,)))
        assert capsys.readouterr().err == ""
        with pytest.raises(ConfigError, match="no longer valid") as raised:
            check_invite(Invite(OTHER_KEY.secret, KEY.tag, (Address("127.0.0.1", 1), address)))
        assert str(address) in str(raised.value)
    check_invite(Invite(KEY.secret, KEY.tag, (Address("127.0.0.1", 1),)))
    assert "nobody answers" in capsys.readouterr().err


@pytest.mark.xdist_group("processes")
def test_a_machine_joins_by_an_invite_without_multicast(tmp_path: Path) -> None:
    with Swarm(tmp_path) as swarm:
        first = swarm.start(NodePlan("first"))
        said = subprocess.run(
            [str(PROGRAM), "invite", "--home", str(first.home), "--json"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        invite = json.loads(said.stdout)["invite"]
        command = [str(PROGRAM), "join", invite, "--home", str(tmp_path / "second"), "--no-mdns"]
        command += ["--gateway-only", "--log-json", "--gateway", "127.0.0.1:0"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as second:
            try:
                assert second.stdout is not None
                lines: list[str] = []
                for line in second.stdout:
                    lines.append(line)
                    if '"link.up"' in line:
                        break
                assert any('"link.up"' in line for line in lines), lines
            finally:
                second.terminate()
                lines += list(second.stdout or ())
        assert invite not in "".join(lines)
        assert swarm.key not in "".join(lines) + first.log
        assert Home(tmp_path / "second").swarm_key() == Home(first.home).swarm_key()
