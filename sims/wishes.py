"""What somebody asked of the simulator, and where to print the answer."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console

from sims import catalogue
from sims.pool import Job, core_count
from sims.runner import Options
from sims.scenarios import Scenario

ALL_SCENARIOS = "all"


@dataclass(frozen=True, slots=True)
class Wishes:
    console: Console
    options: Options = Options()
    scenario: str = "mixed"
    without: str = ""
    jobs: int | None = None
    seeds: int | None = None
    first_seed: int = 1

    @property
    def processes(self) -> int:
        return self.jobs or core_count()

    def chosen(self) -> list[Scenario]:
        """Raises ConfigError for an unknown name, and for numbers that its story passes over."""
        if catalogue.spoken(self.scenario) == ALL_SCENARIOS:
            return [catalogue.find(name) for name in catalogue.names()]
        found = catalogue.find(self.scenario)
        catalogue.check_wishes(found, self.options)
        return [found]

    def job(self, scenario: Scenario, seed: int) -> Job:
        return Job(scenario.name, seed, self.options, self.without)
