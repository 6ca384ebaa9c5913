"""Usage as JSON and as comma-separated values. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from swarm.access.ledger import Entry
from swarm.access.receipts import Sums
from swarm.access.usage import UsageLine
from swarm.access.usage_io import day_text
from swarm.messages import Receipt

CSV_COLUMNS = (
    "day", "key", "model", "requests", "prompt_tokens", "completion_tokens", "cached_tokens",
)  # fmt: skip


def line_json(line: UsageLine) -> dict[str, str | int]:
    amount = line.amount
    day: dict[str, str | int] = {"day": line.day} if line.day else {}
    return day | {
        "key": line.key,
        "model": line.model,
        "requests": amount.requests,
        "prompt_tokens": amount.prompt_tokens,
        "completion_tokens": amount.completion_tokens,
        "cached_tokens": amount.cached_tokens,
    }


def usage_csv(lines: Iterable[UsageLine]) -> str:
    """With a head line. A name that a spreadsheet would take for a formula gets a quote."""
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for line in lines:
        row = line_json(line)
        row["model"] = _inert(str(row["model"]))
        writer.writerow(row)
    return out.getvalue()


def _inert(text: str) -> str:
    return "'" + text if text[:1] in {"=", "+", "-", "@", "\t", "\r"} else text


NODES_COLUMNS = ("day", "node", "model_id", "consumed", "served")
LEDGER_COLUMNS = ("day", "server", "origin", "model_id", "layer_tokens")


def nodes_rows(consumed: Sums, served: Sums) -> list[dict[str, Any]]:
    """Layer-tokens by day, other node and model, both ways."""
    accounts = sorted({*consumed, *served}, key=lambda a: (a.day, a.node, a.model_id))
    return [
        {
            "day": day_text(account.day),
            "node": account.node,
            "model_id": account.model_id,
            "consumed": consumed.get(account, 0),
            "served": served.get(account, 0),
        }
        for account in accounts
    ]


def ledger_rows(receipts: Mapping[Entry, Receipt]) -> list[dict[str, Any]]:
    """What each node ran for each other, by day and model."""
    entries = sorted(receipts, key=lambda e: (e.day, e.server, e.origin, e.model_id))
    return [
        {
            "day": day_text(entry.day),
            "server": entry.server,
            "origin": entry.origin,
            "model_id": entry.model_id,
            "layer_tokens": receipts[entry].layer_tokens,
        }
        for entry in entries
    ]


def rows_csv(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
