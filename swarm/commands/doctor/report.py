"""All findings in the order in which a person reads them, as text and as JSON. Pure."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from swarm.commands.doctor import machine, network, peers
from swarm.commands.doctor.facts import Facts
from swarm.commands.doctor.findings import Finding, Grade
from swarm.commands.doctor.findings import exit_status as exit_status
from swarm.link.handshake import ProtocolRange

MARKS = {
    Grade.OK: ("ok", "green"),
    Grade.NOTE: ("note", "cyan"),
    Grade.WARNING: ("warning", "yellow"),
    Grade.PROBLEM: ("PROBLEM", "bold red"),
}


def diagnose(facts: Facts, ours: ProtocolRange | None = None) -> list[Finding]:
    """What the facts mean. `ours`: the protocol versions of this build."""
    found = [*machine.settings(facts), *peers.key(facts), *network.interfaces(facts)]
    found += [*network.multicast(facts), *peers.reach(facts)]
    found += [*peers.versions(facts, ours or ProtocolRange()), *peers.clocks(facts)]
    return [*found, *machine.resources(facts), *machine.compute(facts)]


def as_json(findings: list[Finding]) -> dict[str, Any]:
    counts = {grade.value: _count(findings, grade) for grade in Grade}
    rows = [finding.json() for finding in findings]
    return {"healthy": not exit_status(findings), "counts": counts, "findings": rows}


def as_text(findings: list[Finding]) -> RenderableType:
    """Each finding: what; below it, where there is more to say, so what and what to do."""
    table = Table.grid(padding=(0, 1))
    for finding in findings:
        mark, style = MARKS[finding.grade]
        lines = Text(finding.what)
        if finding.so_what:
            lines.append(f"\n{finding.so_what}", style="dim")
        if finding.to_do:
            lines.append(f"\n→ {finding.to_do}")
        table.add_row(Text(mark, style=style), lines)
    return Group(table, Text(), Text(_summary(findings), style="bold"))


def _summary(findings: list[Finding]) -> str:
    problems = _count(findings, Grade.PROBLEM)
    warnings = _count(findings, Grade.WARNING)
    if not problems and not warnings:
        return "No problems found."
    named = [(problems, "problem"), (warnings, "warning")]
    return ", ".join(f"{n} {word}{'s' * (n != 1)}" for n, word in named if n) + "."


def _count(findings: list[Finding], grade: Grade) -> int:
    return sum(finding.grade is grade for finding in findings)
