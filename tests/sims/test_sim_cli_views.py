"""What people see of runs beside verdicts: explanations, the terminal view, figures, the report."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
from rich.console import Console

from sims import catalogue, figure, figures, figures_speed, plots, report
from sims.cli import main
from sims.fewer_faults import Trial, attempt, fewest
from sims.figure import Figure, Kind
from sims.gossip_only import GossipWorld
from sims.measures import GossipJob, Parting, gossip_measure, heal_seconds, loss_of
from sims.phrases import Chorus, Event
from sims.pool import Job, play
from sims.runner import ALL, Options, Spectator
from sims.scenarios import REGISTRY, scenario
from sims.scene import scene
from sims.storms import is_well
from sims.story import Story
from sims.watch import Watch
from sims.world import World

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
SILENT = Job("silent death", 2)


def terminal(width: int = 80, height: int = 24) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=height)


# ---------------------------------------------------------------- spectators change nothing


def test_a_run_is_the_same_whoever_looks_at_it() -> None:
    plain = play(SILENT)
    watch = Watch(terminal(), "", 1e9)
    for spectator in (Story(terminal()), watch, Trial()):
        assert play(SILENT, spectator).trace_hash == plain.trace_hash
    assert attempt(SILENT).result is not None


class Camera(Spectator):
    """Takes a picture at every moment of interest."""

    def __init__(self, width: int, height: int) -> None:
        self.size = width, height
        self.pictures: list[str] = []
        self._steps = 0

    def begins(self, world: World) -> None:
        self._world = world

    def at_rest(self) -> None:
        self._steps += 1
        if self._steps % 50 == 0:
            events = [Event(1.0, ("n1",), "something that is longer than a line " * 4)] * 30
            self.pictures.append(scene(self._world, "a title", events, *self.size).plain)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 12), (200, 60)])
def test_pictures_fit_the_terminal(width: int, height: int) -> None:
    camera = Camera(width, height)
    play(SILENT, camera)
    assert len(camera.pictures) > 10
    for picture in camera.pictures:
        lines = picture.split("\n")
        assert len(lines) == height
        assert max(map(len, lines)) <= width


def test_pictures_show_losses_answers_and_the_hop_that_works() -> None:
    camera = Camera(100, 30)
    play(SILENT, camera)
    seen = "\n".join(camera.pictures)
    assert "○ " in seen and " off" in seen
    assert "▶n" in seen and "finished" in seen
    assert "████████" in seen and "machines that serve each" in seen


def test_a_swarm_too_large_for_the_terminal_shows_those_in_trouble() -> None:
    camera = Camera(80, 14)
    play(SILENT, camera)
    assert any("more machines" in picture and "○" in picture for picture in camera.pictures)


def test_what_many_do_alike_is_one_event() -> None:
    told: list[Event] = []
    chorus = Chorus(told.append)
    for index in range(9):
        chorus.add(Event(1.0 + index * 0.01, (f"n{index}",), "n9 suspected"))
    chorus.add(Event(1.05, ("n1",), "killed", is_fault=True))
    chorus.add(Event(1.06, ("n2",), "killed", is_fault=True))
    chorus.flush()
    assert [event.what for event in told] == ["n9 suspected", "killed", "killed"]
    assert told[0].names == "n0, n1, n2, n3, n4 and 4 more"


# ---------------------------------------------------------------- explanations


@pytest.fixture
def fragile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A story that fails when n2 was killed while n1 stood still, and has much else in it."""
    monkeypatch.setitem(REGISTRY, "fragile", REGISTRY["three hops"])

    @scenario("fragile")
    async def story(world: World) -> None:
        """Many faults, two of which matter."""
        nodes = world.swarm((0, 4), (4, 8), (8, 12), (0, 12))
        await world.settled()
        for node in nodes:
            world.drift(node, 10.0)
        world.stall(nodes[0], 1.0)
        world.reset(nodes[2], nodes[3])
        await world.sleep(0.5)
        is_stalled = world.truth.has("stalled", nodes[0].number)
        world.crash_worker(nodes[3])
        world.kill(nodes[1])
        await world.sleep(0.5)
        assert not (is_stalled and not nodes[1].is_running), "both at once"
        await world.sleep(5.0)


@pytest.mark.usefixtures("fragile")
def test_the_faults_that_matter_are_found() -> None:
    job = Job("fragile", 1)
    first = attempt(job)
    assert first.culprit == "assertionerror" and len(first.faults) == 8
    best = fewest(first, job, lambda runs, left: None)
    assert [fault.what for fault in best.faults] == ["stall n1 1", "kill n2"]


@pytest.mark.usefixtures("fragile")
def test_an_explanation_tells_what_is_different_without_the_last_fault(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["--seed", "1", "--scenario", "fragile", "--explain"]) == 1
    printed = capsys.readouterr().out
    assert "Of 8 faults it takes only 2:" in printed
    assert "both at once" in printed
    assert "Without kill n2 at" in printed and "all holds" in printed
    assert main(["--seed", "1", "--scenario", "three-hops", "--explain"]) == 0
    assert "all invariants held" in capsys.readouterr().out


# ---------------------------------------------------------------- figures


def test_quantiles_are_samples() -> None:
    values = [float(value) for value in range(1, 101)]
    assert figure.quantile(values, 0.5) == 50.0
    assert figure.quantile(values, 0.99) == 99.0
    assert figure.quantile([7.0], 0.99) == 7.0
    assert math.isnan(figure.quantile([], 0.5))


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (0.1234, "0.123"), (12.345, "12.35"), (12345.6, "12,346"), (math.inf, "never")],
)
def test_figures_are_shown_with_the_digits_that_mean_something(value: float, shown: str) -> None:
    assert figure.plain(value) == shown


def test_losses_are_measured() -> None:
    _, loss = loss_of(SILENT)
    assert loss.passed and loss.fault_count == loss.reroute_count == 1
    assert 200 < loss.detections_ms[0] < 500
    assert loss.stalls_ms[0] > loss.detections_ms[0] - 30


def test_a_partition_heals_within_the_aim() -> None:
    _, seconds = heal_seconds(Parting(1, 6))
    assert 0 < seconds <= 3.0


def test_gossip_alone_joins_parts_and_heals() -> None:
    world = GossipWorld(8, 3, loss=0.01)
    assert world.run_until(world.is_one_view, 30.0, 0.1) < 30.0
    world.part(4)
    world.run(15.0)
    assert not world.is_one_view() and sum(node.deaths for node in world.nodes) >= 32
    world.heal()
    assert world.run_until(world.is_one_view, 10.0, 0.1) < 10.0


def test_gossip_is_measured() -> None:
    measure = gossip_measure(GossipJob(1, 6, 5, 0.01))
    assert measure.deaths == 0 and len(measure.changes_s) == 5
    assert 0 < measure.idle_bytes_s < measure.busy_bytes_s < 8000
    assert max(measure.changes_s) < 1.0


def _made_up(name: str) -> Figure:
    samples = {
        "stall peer death": [40.0, 60.0, 50.0],
        "detection peer death": [0.1, math.inf],
        "change 10": [0.1, 0.2],
        "heal 10": [0.5],
        "nodes": [10.0, 100.0],
        "idle bytes per s": [600.0, 1200.0],
        "busy bytes per s": [900.0, 4000.0],
        "idle 10": [100.0, 110.0],
    }
    rows = (("<peer> death", 1.5, True), ("silent", None, False))
    columns = ("scenario", "reroutes per loss", "held")
    return Figure(
        name, "A <title>", columns, rows, f"scripts/sim --figures {name}", (), False, samples
    )


def test_a_report_has_a_page_the_data_and_the_plots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = {n: Kind(n, "", lambda wishes, n=n: _made_up(n)) for n in report.REPORTED}  # type: ignore[misc]
    monkeypatch.setattr(report, "KINDS", kinds)
    assert main(["--report", str(tmp_path / "out")]) == 1
    assert f"written: {tmp_path / 'out' / report.PAGE}" in capsys.readouterr().out.replace("\n", "")
    page = (tmp_path / "out" / report.PAGE).read_text()
    assert "&lt;peer&gt; death" in page and "<peer>" not in page
    data = json.loads((tmp_path / "out" / report.DATA).read_text())
    assert set(data["figures"]) == set(report.REPORTED)
    assert data["figures"]["heal"]["samples"]["detection peer death"] == [0.1, None]
    for file in plots.PLOTS if plots.is_available() else ():
        assert (tmp_path / "out" / file).read_bytes().startswith(b"\x89PNG")
        assert file in page


def test_without_matplotlib_one_sentence_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        report, "KINDS", {n: Kind(n, "", lambda wishes: _made_up("x")) for n in report.REPORTED}
    )
    monkeypatch.setattr(plots, "is_available", lambda: False)
    main(["--report", str(tmp_path)])
    assert "matplotlib is not installed" in capsys.readouterr().out.replace("\n", " ")
    assert "<img" not in (tmp_path / report.PAGE).read_text()


def test_a_missed_aim_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(figures.KINDS, "heal", Kind("heal", "", lambda wishes: _made_up("heal")))
    assert main(["--figures", "heal"]) == 1
    assert "NO" in capsys.readouterr().out


def test_determinism_is_a_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(figures_speed, "REPLAYED", (("three hops", 1),))
    assert main(["--figures", "determinism", "--seeds", "2", "--jobs", "1"]) == 0
    assert "A seed is one run" in capsys.readouterr().out


# ---------------------------------------------------------------- long days, short


def test_a_kill_storm_loses_nothing() -> None:
    result = play(Job("kill storm", 1, Options(node_count=6, minutes=0.3)))
    assert result.passed, result.violations
    assert set(result.outcomes) == {"finished"} and result.outcomes.total() > 5


def test_the_storm_spares_the_last_of_each_layer() -> None:
    killed: list[str] = []

    class Count(Spectator):
        def begins(self, world: World) -> None:
            world.listeners.append(
                lambda line: killed.append(line.who) if line.entry.event == "host.killed" else None
            )

    play(Job("kill storm", 1, Options(node_count=3, minutes=0.3)), Count())
    assert killed == []
    assert is_well is not None


def test_quiet_hours_are_quiet() -> None:
    result = play(Job("quiet hours", 1, Options(node_count=4, minutes=0.3)))
    assert result.passed and not result.outcomes
    assert result.events["member.suspect"] == 0


# ---------------------------------------------------------------- the document


def test_the_document_lists_every_scenario_invariant_and_figure() -> None:
    rows = {
        tuple(cell.strip() for cell in line.strip("|").split("|"))
        for line in DOCUMENT.read_text().splitlines()
        if line.startswith("|")
    }
    due = [(name, REGISTRY[name].says) for name in catalogue.names()]
    due += [(kind.name, kind.says) for kind in ALL]
    due += [(f"`{kind.name}`", kind.says) for kind in figures.KINDS.values()]
    missing = [f"| {' | '.join(row)} |" for row in due if row not in rows]
    assert not missing, "\n".join(["add to docs/reliability.md:", *missing])
