"""The command line of the simulator: what it prints, what it returns, what it refuses."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sims import catalogue, figures, pool, repeats, watchdog
from sims.ablations import ABLATIONS
from sims.cli import main
from sims.pool import BROKEN_HARNESS, Job, play, spread
from sims.runner import ALL, Options
from sims.scenarios import REGISTRY, Scenario
from sims.story import LINES_MAX
from sims.world import World
from swarm import cli as swarm_cli

ROOT = Path(__file__).resolve().parents[2]
QUICK = "three-hops"
CAUGHT = ABLATIONS["outbox budget"]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


def run(*words: str) -> int:
    return main(list(words))


# ---------------------------------------------------------------- what it prints


def test_the_list_names_every_scenario_invariant_and_figure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("--list") == 0
    printed = capsys.readouterr().out
    for name in (*REGISTRY, *(kind.name for kind in ALL), *figures.KINDS):
        assert name in printed


def test_one_seed_is_told_and_judged_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seed", "3", "--scenario", QUICK) == 0
    printed = capsys.readouterr().out
    assert "n1, n2, n3  switched on" in printed
    assert "answer 1 goes over n1[0:4]>n2[4:8]>n3[8:12]" in printed
    held = [line for line in printed.splitlines() if line.startswith("held")]
    assert [line.split(maxsplit=1)[1].strip() for line in held] == [kind.name for kind in ALL]
    trace = play(Job("three hops", 3)).trace_hash
    assert f"trace    {trace}" in printed
    assert f"again    scripts/sim --scenario {QUICK} --seed 3" in printed


def test_the_whole_log_has_lines_that_the_story_leaves_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run("--seed", "3", "--scenario", QUICK)
    story = capsys.readouterr().out
    run("--seed", "3", "--scenario", QUICK, "--log")
    log = capsys.readouterr().out
    assert "link.up" in log and "link.up" not in story


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_many_seeds_are_judged_together(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seeds", "3", "--scenario", QUICK, "--jobs", jobs) == 0
    printed = capsys.readouterr().out
    held = [line for line in printed.splitlines() if line.startswith("held")]
    assert len(held) == len(ALL) and all(line.rstrip().endswith("in all runs") for line in held)
    assert "9: 9 finished" in printed
    assert "3 in " in printed and "0 failed" in printed


def test_failing_seeds_are_listed_with_a_command_that_fails_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = catalogue.typed(CAUGHT.name)
    scenario = catalogue.typed(CAUGHT.scenario)
    words = ["--scenario", scenario, "--without", name]
    first = ["--first-seed", str(CAUGHT.seed)]
    assert run("--seeds", "1", *first, "--jobs", "1", *words) == 1
    printed = capsys.readouterr().out
    again = f"scripts/sim --scenario {scenario} --seed {CAUGHT.seed} --without {name}"
    assert again in printed.splitlines()
    assert run(*again.split()[1:]) == 1
    assert "BROKEN" in capsys.readouterr().out


def test_every_run_of_all_scenarios_is_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {name: REGISTRY[name] for name in ("three hops", "peer death")}
    monkeypatch.setattr(catalogue, "REGISTRY", few)
    assert run("--seeds", "2", "--scenario", "all", "--jobs", "1") == 0
    assert "4 in " in capsys.readouterr().out


def test_an_interrupted_batch_tells_of_what_is_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def two_then_ctrl_c(wishes: object, jobs: list[Job], unit: str) -> Iterator[object]:
        yield from ((job, play(job)) for job in jobs[:2])
        raise KeyboardInterrupt

    monkeypatch.setattr("sims.modes.watched", two_then_ctrl_c)
    assert run("--seeds", "9", "--scenario", QUICK) == 130
    printed = capsys.readouterr().out
    assert "interrupted after 2 of 9 runs" in printed and "6: 6 finished" in printed


def test_a_long_story_is_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sims.story.LINES_MAX", 2)
    run("--seed", "3", "--scenario", QUICK)
    printed = capsys.readouterr().out
    assert "more lines; --log prints everything" in printed and LINES_MAX > 2


def test_the_user_command_is_the_same_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert swarm_cli.main(["sim", "--seed", "3", "--scenario", QUICK]) == 0
    assert "held  ids equal the oracle" in capsys.readouterr().out
    assert swarm_cli.main(["sim", "--seed", "3", "--scenario", "nothing"]) == 2
    assert capsys.readouterr().err.startswith("swarm sim: there is no scenario 'nothing'")


def test_the_script_parses() -> None:
    assert subprocess.run(["bash", "-n", ROOT / "scripts" / "sim"], check=False).returncode == 0


# ---------------------------------------------------------------- what it refuses


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--seed", "1", "--scenario", "peer-deth"], "did you mean 'peer death'"),
        (["--seed", "1", "--scenario", "xyzzy"], "no name is like it"),
        (["--seed", "1", "--scenario", QUICK, "--nodes", "9"], "always told with the same nodes"),
        (["--seeds", "2", "--scenario", QUICK, "--minutes", "9"], "--minutes is for: "),
        (["--scenario", QUICK], "give either --seed N"),
        (["--seed", "1", "--seeds", "1"], "give either --seed N"),
        (["--seeds", "2", "--explain"], "--explain looks at one run"),
        (["--seeds", "2", "--hash-seeds"], "--hash-seeds looks at one run"),
        (["--seed", "1", "--watch"], "--watch needs a terminal"),
        (["--seed", "1", "--without", "epoch chek"], "did you mean 'epoch check'?"),
        (["--figures", "sped"], "did you mean 'speed'?"),
        (["--report", "/proc/nowhere"], "cannot write into /proc/nowhere"),
    ],
)
def test_bad_input_gets_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.err.count("\n") == 1 and not printed.out


def test_nonsense_options_are_refused_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seeds", "0") == 2
    assert run("--sed", "1") == 2
    assert "Usage" in capsys.readouterr().err


def test_no_words_at_all_get_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    assert "--seed" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_a_name_as_it_is_typed_is_found(name: str) -> None:
    assert catalogue.find(catalogue.typed(name)).name == name
    assert catalogue.find(name.upper()).name == name


# ---------------------------------------------------------------- runs that break


async def _breaks(world: World) -> None:
    """A story with a mistake in it."""
    raise KeyError("no such machine")


async def _hangs(world: World) -> None:
    """A story that never ends and never waits."""
    while True:
        pass


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, story in (("breaks", _breaks), ("hangs", _hangs)):
        monkeypatch.setitem(REGISTRY, name, Scenario(name, "", story))


@pytest.mark.usefixtures("told")
def test_a_story_that_raises_is_a_failing_run() -> None:
    result = play(Job("breaks", 1))
    assert result.violations[0].invariant == BROKEN_HARNESS
    assert "KeyError in test_sim_cli.py" in result.violations[0].detail


@pytest.mark.usefixtures("told")
def test_a_run_that_stands_still_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "LOOK_S", 0.02)
    result = play(Job("hangs", 1))
    assert result.violations[0].invariant == BROKEN_HARNESS
    assert "time stood still" in result.violations[0].detail
    assert "test_sim_cli.py:_hangs" in result.violations[0].detail


@pytest.mark.usefixtures("told")
def test_what_a_broken_run_did_not_judge_is_not_called_held(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("--seed", "1", "--scenario", "breaks") == 1
    printed = capsys.readouterr().out
    assert "held" not in printed and printed.count("not judged") == len(ALL)


# ---------------------------------------------------------------- one seed, one run


def test_replays_and_hash_seeds_are_one_trace(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--seed", "5", "--scenario", "peer-death", "--replays", "3", "--jobs", "1"]
    assert run(*words, "--hash-seeds") == 0
    printed = capsys.readouterr().out
    assert "3 of 3 times" in printed and printed.count(play(Job("peer death", 5)).trace_hash) == 2


def test_different_traces_are_a_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = iter(("aa", "bb", "aa"))
    monkeypatch.setattr(repeats, "again", lambda wishes, job, times: traces)
    assert run("--seed", "5", "--scenario", QUICK, "--replays", "3") == 1
    printed = capsys.readouterr().out
    assert "2 different traces" in printed and "aa  2 times" in printed


def test_jobs_are_done_once_each_whatever_the_processes() -> None:
    assert sorted(spread(abs, range(-5, 0), 1)) == [1, 2, 3, 4, 5]
    assert sorted(spread(abs, range(-20, 0), 2)) == list(range(1, 21))


def test_wishes_become_part_of_the_command() -> None:
    job = Job("kill storm", 7, Options(node_count=9, minutes=1.5))
    assert job.command == "scripts/sim --scenario kill-storm --seed 7 --nodes 9 --minutes 1.5"
    assert pool.core_count() >= 1
