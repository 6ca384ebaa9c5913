"""The dashboard and the alert rules ask for metrics that exist, by labels that they have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from swarm.gateway.metrics import FAMILIES, REROUTE_CAUSES, family_of

OPS = Path(__file__).parents[2] / "docs" / "ops"
ALERTS = yaml.safe_load((OPS / "alerts.yml").read_text())
DASHBOARD = json.loads((OPS / "grafana-dashboard.json").read_text())
PROMETHEUS_LABELS = {"instance", "job", "le"}
SUFFIXES = {"counter": {"_total"}, "gauge": {""}, "histogram": {"_bucket", "_sum", "_count"}}
VARIABLES = {"$__rate_interval": "1m", "$instance": ".*", "$model": ".*"}

RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[tuple[str, str]]:
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def plain(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def parts(node: Any) -> Iterator[Any]:
    """An expression and all in it."""
    yield node
    for name in ("expr", "lhs", "rhs", "vector_selector"):
        inner = getattr(node, name, None)
        if inner is not None:
            yield from parts(inner)
    for inner in getattr(node, "args", None) or ():
        yield from parts(inner)


def complaints(expression: str) -> list[str]:
    """What Prometheus would not find; a ValueError for what it would not read."""
    nodes = list(parts(promql_parser.parse(plain(expression))))
    selectors = [node for node in nodes if isinstance(node, promql_parser.VectorSelector)]
    found = []
    labels = set(PROMETHEUS_LABELS)
    for name in (selector.name for selector in selectors if selector.name != "up"):
        family = family_of(name)
        if family is None or name.removeprefix(family.name) not in SUFFIXES[family.kind]:
            found.append(f"no metric {name}")
        else:
            labels |= set(family.labels)
    used = {matcher.name for s in selectors for matcher in s.matchers.matchers}
    used |= {
        label
        for node in nodes
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None
        for label in node.modifier.labels
    }
    return found + [f"no label {label}" for label in sorted(used - labels)]


@pytest.mark.parametrize(("place", "expression"), list(expressions()))
def test_an_expression_can_be_answered(place: str, expression: str) -> None:
    assert complaints(expression) == [], place


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("swarm_itl_seconds", "no metric"),
        ("rate(swarm_tokens[5m])", "no metric"),
        ("swarm_kv_used_bytes / swarm_nothing", "no metric"),
        ("sum by (node) (swarm_links)", "no label"),
        ('swarm_links{session="x"}', "no label"),
    ],
)
def test_what_cannot_be_answered_is_seen(expression: str, says: str) -> None:
    assert any(says in complaint for complaint in complaints(expression))


def test_what_cannot_be_read_is_seen() -> None:
    with pytest.raises(ValueError):
        complaints("sum by (model (swarm_links)")


def test_every_metric_is_on_the_dashboard() -> None:
    shown = " ".join(target["expr"] for panel in PANELS for target in panel["targets"])
    assert [name for name in FAMILIES if name not in shown] == []


def test_alerts_say_what_they_must() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    assert {"SwarmCoverageLost", "SwarmStallsLong", "SwarmKvFull", "SwarmTokensSlow"} <= set(names)
    for rule in RULES:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        assert set(rule["annotations"]) == {"summary", "description"}
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))


def test_causes_that_alerts_leave_out_are_causes() -> None:
    for rule in RULES:
        for cause in re.findall(r'cause!?="([^"]+)"', rule["expr"]):
            assert cause in REROUTE_CAUSES


def test_the_dashboard_lies_on_grafanas_grid() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] >= 0 and at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                 for y in range(at["y"], at["y"] + at["h"])}  # fmt: skip
        assert not cells & taken, panel["title"]
        taken |= cells
    known = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD["panels"])))
    assert used - {"__rate_interval"} <= known
