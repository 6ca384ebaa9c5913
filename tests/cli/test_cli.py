"""The command line: what it prints, what it returns, and that no error shows a traceback."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from background import gateway, save_gateway
from fake_node import FakeNode, Step, failed, model, rerouted, saying, spoken, started

from swarm import cli
from swarm.config import Config, as_toml
from swarm.effects import Stalled
from swarm.errors import ConfigError, NoRoute
from swarm.link.identity import SwarmKey
from swarm.options import EngineOptions, JoinOptions
from swarm.terms import Address, LayerRange

GONE = NoRoute(model().spec.model_id, (LayerRange(2, 4),), "cover did not return")


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = cli.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return status, out, err


def complaint(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line on standard error of a command that fails."""
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (1, "")
    assert err.startswith("swarm: ") and err.count("\n") == 1
    return err


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--version")
    assert status == 0 and out.startswith("swarm 0.")


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["join", "--threads", "0"], ["chat", "a", "b"]]
)
def test_wrong_usage_is_told(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    status, _, err = run(capsys, *arguments)
    assert status == 2 and "Traceback" not in err


def test_a_package_that_is_missing_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "swarm.commands.bench_run_io", raising=False)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    said = complaint(capsys, "bench", "http://127.0.0.1:9")
    assert said == "swarm: the package aiohttp is missing; run scripts/setup\n"


# ------------------------------------------------------------------ a node that is not there


@pytest.mark.parametrize("command", ["status", "chat", "leave"])
def test_no_node_is_one_sentence_with_what_to_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    assert "swarm join" in complaint(capsys, command, "--home", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def ended_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


@pytest.mark.parametrize("command", ["status", "chat", "leave"])
def test_a_stale_file_is_one_sentence_with_what_to_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    save_gateway(tmp_path, "http://127.0.0.1:1", pid=ended_process())
    assert "ended without saying so" in complaint(capsys, command, "--home", tmp_path)
    save_gateway(tmp_path, "http://127.0.0.1:1")
    assert "no gateway answers" in complaint(capsys, command, "--home", tmp_path)
    (tmp_path / "gateway.json").write_text('{"url": 3}')
    assert "damaged" in complaint(capsys, command, "--home", tmp_path)


# ------------------------------------------------------------------ status


def test_status_shows_nodes_models_and_sessions(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    views = (model("whole"), model("holed", missing=(LayerRange(1, 3),)))
    with gateway(lambda: FakeNode(views=views)) as (_, served):
        save_gateway(tmp_path, served.url)
        status, out, _ = run(capsys, "status", "--home", tmp_path)
    assert status == 0
    for wanted in ("anna", "bert", "1.2 ms", "alive", "whole 0:2 embed", "covered",
                   "layers 1:3 missing", "anna 0:2 → bert 2:4", "without a key"):  # fmt: skip
        assert wanted in out


STEERING = "\x1b[2J\x9bZ\u202e"


def test_no_name_steers_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    views = (model(f"m{STEERING}"),)
    with gateway(lambda: FakeNode(views=views)) as (_, served):
        save_gateway(tmp_path, served.url)
        shown = [run(capsys, "status", "--home", tmp_path)[1]]
        shown.append(run(capsys, "status", "--json", "--home", tmp_path)[1])
    with gateway(lambda: FakeNode(views=(*views, model("b")))) as (_, served):
        shown.append(run(capsys, "chat", "--url", served.url)[2])
    assert "[2J" in shown[0] and json.loads(shown[1])["models"][0]["name"] == f"m{STEERING}"
    assert "several models" in shown[2]
    for text in shown:
        assert all(line.isprintable() for line in text.split("\n")), ascii(text)


def test_status_as_json_is_the_state(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with gateway(FakeNode) as (_, served):
        save_gateway(tmp_path, served.url)
        status, out, _ = run(capsys, "status", "--json", "--home", tmp_path)
    assert status == 0 and json.loads(out)["node_id"] == "a" * 32


# ------------------------------------------------------------------ chat


def talk(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    scripts: list[Sequence[Step] | Any],
    typed: str,
    *arguments: str,
) -> tuple[int, str, list[Any]]:
    """A chat with these lines typed; status, what was shown, the orders that the node got."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    with gateway(lambda: FakeNode(scripts=scripts)) as (node, served):
        status, out, err = run(capsys, "chat", "--url", served.url, *arguments)
    assert "Traceback" not in out + err
    return status, out, node.orders


def test_no_answer_steers_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever holds the head chooses the text."""
    status, out, _ = talk(capsys, monkeypatch, [saying("one\x1b[2J\ntwo")], "hello\n/exit\n")
    assert status == 0 and "one [2J\ntwo" in out and "\x1b" not in out


def test_a_chat_streams_and_shows_its_route(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, orders = talk(
        capsys, monkeypatch, [saying("the quick fox")], "hello\n/exit\n", "--max-tokens", "7"
    )
    assert status == 0
    assert "the quick fox" in out and "route: anna 0:2 → bert 2:4" in out
    assert f"{len(spoken('the quick fox'))} tokens" in out
    assert orders[0].max_tokens == 7


def test_a_chat_shows_stalls_and_the_new_route(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = rerouted(spoken("the dog"), spoken(" and fox"))
    status, out, _ = talk(capsys, monkeypatch, [script], "hello\n")
    assert status == 0
    assert "the dog [stalled: b vanished]  and fox" in out
    assert "1 reroutes, stalled 125 ms" in out


def test_a_chat_remembers_what_was_said_until_told_to_forget(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = "a\n\nb\n/reset\na\n/help\n/exit\nnever"
    status, out, orders = talk(capsys, monkeypatch, [saying("x")] * 3, typed)
    first, second, third = [len(order.prompt_ids) for order in orders]
    assert status == 0 and second > first and third == first
    assert "/clear   forgets" in out


def test_a_failed_turn_is_told_and_not_remembered(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = [started("a", "b"), *spoken("the"), Stalled("b vanished"), failed(GONE)]
    status, out, orders = talk(capsys, monkeypatch, [GONE, cut, saying("x")], "a\na\na\n")
    assert status == 0 and out.count("missing layers 2:4") == 2
    assert len({order.prompt_ids for order in orders}) == 1
    status, *_ = talk(capsys, monkeypatch, [cut], "a\n")
    assert status == 1


def test_an_answer_that_hangs_up_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, _ = talk(capsys, monkeypatch, [[started("a", "b"), *spoken("the")]], "a\n")
    assert status == 1 and "cut off" in out


@pytest.mark.parametrize(
    ("views", "says"),
    [
        ((), "no model is known here"),
        ((model("one", missing=(LayerRange(1, 2),)),), "one: layers 1:2 missing"),
        ((model("one"), model("two")), "swarm chat one|two"),
    ],
)
def test_a_chat_without_a_clear_model_says_what_to_do(
    capsys: pytest.CaptureFixture[str], views: Any, says: str
) -> None:
    with gateway(lambda: FakeNode(views=views)) as (_, served):
        assert says in complaint(capsys, "chat", "--url", served.url)


@pytest.mark.parametrize(
    ("views", "says"),
    [
        ((model("one"), model("two")), "there is no model 'three' here; covered now: one, two"),
        ((model("three", missing=(LayerRange(1, 2),)),), "1:2"),
    ],
)
def test_a_chat_with_a_model_that_is_not_there_ends_at_once(
    capsys: pytest.CaptureFixture[str], views: Any, says: str
) -> None:
    with gateway(lambda: FakeNode(views=views)) as (_, served):
        assert says in complaint(capsys, "chat", "three", "--url", served.url)


@pytest.mark.parametrize("url", ["https://x:1", "http://", "http://x:99999", "ftp://x"])
def test_a_url_that_is_none(capsys: pytest.CaptureFixture[str], url: str) -> None:
    assert "http://HOST:PORT" in complaint(capsys, "chat", "--url", url)


# ------------------------------------------------------------------ leave


class Leaver(FakeNode):
    """Ends a process, as a daemon ends itself, when it is asked to leave."""

    process: subprocess.Popen[bytes] | None = None

    async def leave(self, grace_s: float) -> None:
        assert self.process is not None
        self.process.kill()


def test_leave_asks_with_the_token_and_waits_for_the_end(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    program = "import sys; sys.stdin.read()"
    with (
        gateway(Leaver) as (node, served),
        subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process,
    ):
        assert isinstance(node, Leaver)
        node.process = process
        save_gateway(tmp_path, served.url, pid=process.pid, token="wrong")
        assert "control token" in complaint(capsys, "leave", "--home", tmp_path)
        assert process.poll() is None
        save_gateway(tmp_path, served.url, pid=process.pid)
        status, out, _ = run(capsys, "leave", "--home", tmp_path)
        assert status == 0 and out.endswith("left\n")


def test_leave_later_returns_at_once_and_may_be_taken_back(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with gateway(FakeNode) as (node, served):
        save_gateway(tmp_path, served.url)
        home = ("--home", tmp_path)
        assert "--stay" in run(capsys, "leave", "--in", "5m", *home)[1]
        assert "stays" in run(capsys, "leave", "--stay", *home)[1]
        assert "no departure" in complaint(capsys, "leave", "--stay", *home)
        assert "5m" in complaint(capsys, "leave", "--in", "later", *home)
        assert "at most 7 days" in complaint(capsys, "leave", "--in", "8d", *home)
        assert "exclude each other" in complaint(capsys, "leave", "--in", "5m", "--stay", *home)
        assert node.notices == [300.0, None] and not node.left.is_set()


# ------------------------------------------------------------------ config and key


def test_config_prints_what_would_build_it_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(capsys, "config", "--home", tmp_path / "none")[1] == as_toml(Config())
    (tmp_path / "config.toml").write_text("[gateway]\nport = 9000\n")
    monkeypatch.setenv("SWARM_GATEWAY_KEEPALIVE_S", "3.5")
    _, out, _ = run(capsys, "config", "--home", tmp_path)
    assert "port = 9000" in out and "keepalive_s = 3.5" in out
    (tmp_path / "config.toml").write_text("[gateway]\nprot = 9000\n")
    assert "'prot'" in complaint(capsys, "config", "--home", tmp_path)


def test_a_key_is_made_once_shown_and_replaced_only_on_demand(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    assert "swarm key new" in complaint(capsys, "key", "show", "--home", home)
    status, line, _ = run(capsys, "key", "new", "--home", home)
    assert status == 0 and line.startswith("swarm join --key ")
    assert SwarmKey.parse(line.removeprefix("swarm join --key "))
    assert stat.S_IMODE((home / "key").stat().st_mode) == 0o600
    assert run(capsys, "key", "show", "--home", home)[1] == line
    assert "--replace" in complaint(capsys, "key", "new", "--home", home)
    assert run(capsys, "key", "new", "--replace", "--home", home)[1] != line


def test_key_and_config_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    made = json.loads(run(capsys, "key", "new", "--json", "--home", tmp_path)[1])
    assert json.loads(run(capsys, "key", "show", "--json", "--home", tmp_path)[1]) == made
    assert SwarmKey.parse(made["key"]).tag == made["tag"]
    settings = json.loads(run(capsys, "config", "--json", "--home", tmp_path)[1])
    assert settings["gateway"]["port"] == Config().gateway.port


def test_the_shell_completes_commands() -> None:
    asked = {"_SWARM_COMPLETE": "complete_bash", "COMP_WORDS": "swarm st", "COMP_CWORD": "1"}
    program = Path(sys.executable).with_name("swarm")
    done = subprocess.run(
        [program], capture_output=True, text=True, env=os.environ | asked, check=False
    )
    assert done.stdout.split() == ["status"], done.stderr


def test_a_damaged_key_is_told_without_showing_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("swarm-secretsecret")
    assert "secret" not in complaint(capsys, "key", "show", "--home", tmp_path)


# ------------------------------------------------------------------ join


def joined(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> JoinOptions:
    """What `swarm join` hands to the daemon."""
    from swarm import daemon

    got: list[JoinOptions] = []
    monkeypatch.setattr(daemon, "run", lambda options: got.append(options) or 0)
    assert cli.main(["join", *arguments]) == 0
    return got[0]


def test_join_without_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    options = joined(monkeypatch)
    assert options == JoinOptions(
        model=(), layers=None, memory_bytes=None, device=None, dtype=None, threads=None,
        gateway=None, listen=None, peers=(), key=None, open_swarm=False,
        home=Path("~/.swarm").expanduser(), name=None, mdns=True, log_json=False,
    )  # fmt: skip


def test_join_with_all_flags(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    line = (
        f"--model a --model b --layers 0:10 --memory 8GiB --device cuda:1 --dtype bfloat16"
        f" --threads 3 --gateway 127.0.0.1:0 --listen [::]:7000 --peer x:1 --peer y:2 --key k"
        f" --home {tmp_path} --name anna --no-mdns --log-json --no-auth"
        " --allow-origin https://one.example --allow-origin app://two"
    )
    assert joined(monkeypatch, *line.split()) == JoinOptions(
        model=("a", "b"), layers=LayerRange(0, 10), memory_bytes=8 << 30, device="cuda:1",
        dtype="bfloat16", threads=3, gateway=Address("127.0.0.1", 0),
        listen=Address("::", 7000), peers=(Address("x", 1), Address("y", 2)), key="k",
        open_swarm=False, home=tmp_path, name="anna", mdns=False, log_json=True, no_auth=True,
        allow_origin=("https://one.example", "app://two"),
    )  # fmt: skip
    assert joined(monkeypatch, "--open").open_swarm


def test_join_with_flags_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    line = (
        "--quantization int8 --kv-cache-dtype int8 --max-model-len 4096 --max-num-seqs 16"
        " --max-num-batched-tokens 256 --no-enable-prefix-caching --enforce-eager --no-exact"
        " --served-model-name small --served-model-name large"
    )
    options = joined(monkeypatch, *line.split())
    assert options.engine == EngineOptions(
        quantization="int8", kv_cache_dtype="int8", max_model_len=4096, max_num_seqs=16,
        max_num_batched_tokens=256, enable_prefix_caching=False, enforce_eager=True, exact=False,
    )  # fmt: skip
    assert options.served_model_name == ("small", "large")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--layers", "10"], "A:B"),
        (["--memory", "lots"], "8GiB"),
        (["--gateway", "8000"], "HOST:PORT"),
        (["--peer", "::1:3"], "brackets"),
        (["--key", "k", "--open"], "exclude"),
    ],
)
def test_join_with_a_wrong_flag(
    capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert says in complaint(capsys, "join", *arguments)


def test_an_error_of_the_daemon_is_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from swarm import daemon

    def refuse(_: JoinOptions) -> int:
        raise ConfigError("the model folder x does not exist")

    monkeypatch.setattr(daemon, "run", refuse)
    assert "folder x" in complaint(capsys, "join")


def test_the_program_is_installed_and_loads_no_torch() -> None:
    program = "import sys, swarm.cli as c; c.main(['--help']); sys.exit('torch' in sys.modules)"
    environment = os.environ | {"COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for command in ("join", "status", "chat", "leave", "config", "key"):
        assert command in done.stdout
