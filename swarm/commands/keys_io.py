"""`swarm keys` and `swarm usage`: who may use this node's gateway, and who used it for what."""

from __future__ import annotations

import datetime
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from swarm.access.keys import ApiKey, check_name, digest_of, new_key, parse_rate
from swarm.access.keys_io import KeyStore
from swarm.access.usage import totals
from swarm.access.usage_io import UsageStore, parse_day
from swarm.commands.terminal_io import DEFAULT_HOME, AsJson, Home, print_json, wide_console
from swarm.errors import ConfigError, LinkError, RequestError
from swarm.terms import short

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HELP = "Keys of the API: who may use this node's gateway. (The swarm's own key: `swarm key`.)"

app = typer.Typer()
usage_app = typer.Typer()


@app.command("add")
def add_key(
    name: Annotated[str, typer.Argument(help="Whose it is; usage is counted by it.")],
    models: Annotated[
        list[str] | None, typer.Option(help="The models it may use; repeatable. None: all.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="10/s", help="Requests per s, m or h at most.")
    ] = None,
    tokens_per_day: Annotated[
        int | None, typer.Option(min=1, help="Prompt and completion together, by the UTC day.")
    ] = None,
    as_json: AsJson = False,
    home: Home = DEFAULT_HOME,
) -> None:
    """Make a key and show it, once: only a hash of it is kept."""
    text = new_key(secrets.token_bytes)
    key = ApiKey(
        name=check_name(name),
        digest=digest_of(text),
        created_s=time.time(),
        models=tuple(part.strip() for given in models or () for part in given.split(",")),
        rate=None if rate is None else parse_rate(rate),
        tokens_per_day=tokens_per_day,
    )
    _store(home, make=True).add(key)
    if as_json:
        print_json({"name": name, "key": text})
    else:
        print(text)
        typer.echo("This is shown once. Send it as Authorization: Bearer KEY.", err=True)


@app.command("list")
def list_keys(as_json: AsJson = False, home: Home = DEFAULT_HOME) -> None:
    """Show all keys that were made here, without what would let anybody use them."""
    keys = _store(home).keys()
    if as_json:
        print_json([_key_json(key) for key in keys])
    elif not keys:
        print("no keys: `swarm keys add NAME` makes one")
    else:
        wide_console().print(_keys_table(keys))


@app.command("revoke")
def revoke_key(
    name: Annotated[str, typer.Argument(help="As `swarm keys list` shows it.")],
    as_json: AsJson = False,
    home: Home = DEFAULT_HOME,
) -> None:
    """Take a key out of force. A running gateway heeds that within a second."""
    _store(home).revoke(name, time.time())
    if as_json:
        print_json({"revoked": name})
    else:
        print(f"revoked {name}")


@usage_app.command()
def usage(
    since: Annotated[
        str | None, typer.Option(metavar="2026-01-31", help="From this day (UTC) on.")
    ] = None,
    nodes: Annotated[
        bool, typer.Option("--nodes", help="Layer-tokens between nodes instead, as signed.")
    ] = False,
    everybody: Annotated[
        bool,
        typer.Option("--swarm", help="The same of all nodes, as far as they have passed it on."),
    ] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
    as_json: AsJson = False,
    home: Home = DEFAULT_HOME,
) -> None:
    """Show the tokens that this node's gateway gave out, by key and model."""
    from swarm.gateway.accounts import line_json, usage_csv

    if as_csv and as_json:
        raise ConfigError("--csv and --json exclude each other: give one of them")
    day = 0 if since is None else parse_day(since)
    folder = home.expanduser()
    if nodes or everybody:
        show = _show_swarm if everybody else _show_nodes
        show(folder, day, as_csv=as_csv, as_json=as_json)
        return
    lines = UsageStore(folder).lines(day) if folder.is_dir() else ()
    if as_csv:
        print(usage_csv(lines), end="")
    elif as_json:
        print_json([line_json(line) for line in lines])
    elif not lines:
        print("nothing was used yet" if since is None else f"nothing was used since {since}")
    else:
        wide_console().print(_usage_table(lines, since))


def _show_nodes(folder: Path, since_day: int, *, as_csv: bool, as_json: bool) -> None:
    """What other nodes ran for this one, and what it ran for them by their signed word."""
    from swarm.access.receipts_io import ReceiptStore
    from swarm.gateway.accounts import NODES_COLUMNS, nodes_rows, rows_csv

    consumed, served = ReceiptStore(folder).sums(since_day) if folder.is_dir() else ({}, {})
    rows = nodes_rows(consumed, served)
    if as_csv:
        print(rows_csv(rows, NODES_COLUMNS), end="")
    elif as_json:
        print_json(rows)
    elif not rows:
        print("no layers run between this node and others are known yet (written every 15 s)")
    else:
        called = _names(folder)
        table = Table("day", "node", "model", box=None)
        table.add_column("ran for this node", justify="right")
        table.add_column("this node ran, as signed", justify="right")
        for row in rows:
            counts = (f"{row['consumed']:,}", f"{row['served']:,}")
            names = (called(row[key]) for key in ("node", "model_id"))
            table.add_row(row["day"], *names, *counts)
        wide_console().print(table)


def _show_swarm(folder: Path, since_day: int, *, as_csv: bool, as_json: bool) -> None:
    """What every node ran for every other, by the signed word of the latter."""
    from swarm.access.receipts_io import ReceiptStore
    from swarm.gateway.accounts import LEDGER_COLUMNS, ledger_rows, rows_csv

    rows = ledger_rows(ReceiptStore(folder).ledger(since_day)) if folder.is_dir() else []
    if as_csv:
        print(rows_csv(rows, LEDGER_COLUMNS), end="")
    elif as_json:
        print_json(rows)
    elif not rows:
        print("no receipts of any node are known here yet; they are passed on every two minutes")
    else:
        called = _names(folder)
        table = Table("day", "node", "ran for", "model", box=None)
        table.add_column("layer-tokens, as signed", justify="right")
        for row in rows:
            names = (called(row[key]) for key in ("server", "origin", "model_id"))
            table.add_row(row["day"], *names, f"{row['layer_tokens']:,}")
        wide_console().print(table)


def _names(folder: Path) -> Callable[[str], str]:
    """What people call a node or model, by its id: as the running node knows it, if one runs."""
    from swarm.gateway.client_io import running_node

    names: dict[str, str] = {}
    with suppress(ConfigError, LinkError, RequestError):
        state = running_node(folder).client().state()
        names = {
            entry["id"]: entry["name"] for part in ("nodes", "models") for entry in state[part]
        }
    return lambda key: f"{names[key]} {short(key)}" if names.get(key) else short(key)


def _store(home: Path, *, make: bool = False) -> KeyStore:
    from swarm.home_io import Home as NodeHome

    folder = home.expanduser()
    return KeyStore(NodeHome(folder).path if make else folder)


def _key_json(key: ApiKey) -> dict[str, Any]:
    return {
        "name": key.name,
        "id": key.short,
        "created": _moment(key.created_s),
        "models": list(key.models),
        "rate": None if key.rate is None else str(key.rate),
        "tokens_per_day": key.tokens_per_day,
        "revoked": None if key.revoked_s is None else _moment(key.revoked_s),
    }


def _keys_table(keys: Sequence[ApiKey]) -> Table:
    table = Table("name", "id", "made", "models", "rate", "tokens a day", "state", box=None)
    for key in keys:
        table.add_row(
            key.name,
            key.short,
            _moment(key.created_s),
            ", ".join(key.models) or "all",
            "any" if key.rate is None else str(key.rate),
            "any" if key.tokens_per_day is None else f"{key.tokens_per_day:,}",
            "in force" if key.revoked_s is None else f"revoked {_moment(key.revoked_s)}",
        )
    return table


def _usage_table(lines: Sequence[Any], since: str | None) -> Table:
    table = Table("key", "model", box=None, title=f"since {since}" if since else None)
    for column in ("requests", "prompt", "completion", "cached"):
        table.add_column(column, justify="right")
    for line in totals(lines):
        amount = line.amount
        counts = (amount.requests, amount.prompt_tokens, amount.completion_tokens,
                  amount.cached_tokens)  # fmt: skip
        table.add_row(line.key or "(no key)", line.model, *(f"{count:,}" for count in counts))
    return table


def _moment(wall_s: float) -> str:
    return datetime.datetime.fromtimestamp(wall_s, datetime.UTC).strftime("%Y-%m-%d %H:%MZ")
