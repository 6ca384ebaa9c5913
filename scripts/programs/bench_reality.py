"""Does the simulator notice losses when real nodes do? Losses of `scripts/bench_detection`: with
real processes in network namespaces (needs root), and in simulated time with the same hosts, layers
and measured speeds. Exit status 1: the medians of some case differ by more than 15 %.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from rig import console, end_orderly, print_machine, print_table
from bench_detection import bench
import swarm_netns
from sims.reality import TOLERANCE, Comparison, Samples, Setting, compare, quartiles, simulate

SEEDS = 5
"""Simulated swarms, each with as many losses as the real one: their medians hardly scatter."""


def simulated(setting: Setting, runs: int) -> Samples:
    found = [simulate(setting, runs, seed) for seed in range(1, SEEDS + 1)]
    return {case: [ms for samples in found for ms in samples[case]] for case in found[0]}


def main() -> int:
    end_orderly()
    parser = argparse.ArgumentParser("scripts/bench_reality", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="losses of each kind")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    if reason := swarm_netns.why_not():
        console.print(reason)
        return 2
    print_machine()
    with bench() as (measured, _):
        measured.measure(options.runs)
        setting = measured.setting()
    with console.status("the same in simulated time"):
        comparisons = compare(measured.samples, simulated(setting, options.runs))
    if options.json:
        figures = {"setting": asdict(setting), "cases": [_json(entry) for entry in comparisons]}
        options.json.write_text(json.dumps(figures, indent=1))
    columns = ["loss", "real", "simulated", "ratio", "quarters"]
    title = "ms from the loss to the decision: median (quarters)"
    print_table(title, columns, map(_row, comparisons))
    told = [
        _spread(tuple(1000 * s for s in given))
        for given in (setting.teardowns_s, setting.reactions_s)
    ]
    console.print(f"given to the simulator, ms: teardown {told[0]}, reaction {told[1]}")
    apart = [entry.case for entry in comparisons if not entry.agrees]
    verdict = f"apart: {'; '.join(apart)}" if apart else "all agree"
    console.print(f"medians within {TOLERANCE:.0%}: {verdict}")
    return 1 if apart else 0


def _row(entry: Comparison) -> list[object]:
    first, _, third = entry.quartile_ratios
    real, simulated_ = _spread(entry.real), _spread(entry.simulated)
    return [entry.case, real, simulated_, f"{entry.ratio:.2f}", f"{first:.2f} {third:.2f}"]


def _spread(values: tuple[float, ...]) -> str:
    first, middle, third = quartiles(values)
    return f"{middle:.4g} ({first:.4g}–{third:.4g})"


def _json(entry: Comparison) -> dict[str, object]:
    return {
        "case": entry.case,
        "real_ms": entry.real,
        "simulated_ms": entry.simulated,
        "ratio": entry.ratio,
        "agrees": entry.agrees,
    }


if __name__ == "__main__":
    raise SystemExit(main())
