"""The proof that the checks see: each safeguard switched off, and the seed that catches it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.table import Table
from rich.text import Text

from sims import catalogue
from sims.ablations import Ablation
from sims.modes import FAILED, OK
from sims.mutants import MUTANTS
from sims.pool import Job, play, spread
from sims.progress import progress_bar, say
from sims.runner import Options, Result
from sims.wishes import Wishes
from swarm.errors import ConfigError

SEEDS_MAX = 500


@dataclass(frozen=True, slots=True)
class Catch:
    """`tried`: seeds that were played until one caught it; `result` None: none did."""

    ablation: Ablation
    tried: int
    result: Result | None


def find(name: str) -> Ablation:
    """Raises ConfigError with the nearest names."""
    plain = catalogue.spoken(name)
    found = next((MUTANTS[known] for known in MUTANTS if catalogue.spoken(known) == plain), None)
    if found is None:
        near = catalogue.nearest(plain, MUTANTS)
        raise ConfigError(f"there is no safeguard {name!r} to switch off; {near}")
    return found


def hunt(ablation: Ablation, wishes: Wishes, seeds_max: int = SEEDS_MAX) -> Catch:
    """Seeds in order, the known one first, until an invariant breaks."""
    seeds = [ablation.seed, *(s for s in range(seeds_max) if s != ablation.seed)][:seeds_max]
    jobs = [Job(ablation.scenario, seed, Options(), ablation.name) for seed in seeds]
    first, rest = jobs[:1], jobs[1:]
    tried = 0
    for batch, processes in ((first, 1), (rest, wishes.processes)):
        for result in spread(play, batch, processes):
            tried += 1
            if not result.passed:
                return Catch(ablation, tried, result)
    return Catch(ablation, tried, None)


def ablation_table(wishes: Wishes) -> int:
    """Every safeguard in turn; status 1 when one was not missed."""
    seeds_max = wishes.seeds or SEEDS_MAX
    chosen = [find(wishes.without)] if wishes.without else list(MUTANTS.values())
    catches: list[Catch] = []
    with progress_bar() as bar:
        task = bar.add_task("safeguards", total=len(chosen), failed=0)
        for ablation in chosen:
            bar.update(task, description=f"without {ablation.name}")
            catches.append(hunt(ablation, replace(wishes, without=""), seeds_max))
            if bar.disable:
                say(_line(catches[-1]))
            missed = sum(catch.result is None for catch in catches)
            bar.update(task, advance=1, failed=missed)
    wishes.console.print(_table(catches))
    caught = sum(catch.result is not None for catch in catches)
    wishes.console.print(f"{caught} of {len(catches)} caught within {seeds_max} seeds")
    return OK if caught == len(catches) else FAILED


def _line(catch: Catch) -> str:
    how = f"caught by {_caught_by(catch)}" if catch.result else "NOT CAUGHT"
    return f"without {catch.ablation.name}: {how}, {catch.tried} runs"


def _caught_by(catch: Catch) -> str:
    """The invariant that was expected to see it, where it did."""
    seen = [v.invariant for v in catch.result.violations] if catch.result else []
    return catch.ablation.catcher if catch.ablation.catcher in seen else "".join(seen[:1])


def _table(catches: Sequence[Catch]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("switched off", "scenario", "seed", "runs", "caught by"):
        table.add_column(name, justify="right" if name in ("seed", "runs") else "left")
    for catch in catches:
        result = catch.result
        caught = _caught_by(catch)
        table.add_row(
            catch.ablation.name,
            catch.ablation.scenario,
            str(result.seed) if result else "-",
            str(catch.tried),
            Text(caught) if result else Text("NOT CAUGHT", style="bold red"),
        )
    return table
