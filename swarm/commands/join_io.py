"""`swarm join` and `swarm leave`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from swarm import flags
from swarm.commands.given_models_io import told_apart
from swarm.commands.invite_io import check_invite
from swarm.commands.terminal_io import DEFAULT_HOME, AsJson, Home, print_json
from swarm.discovery.invite import parse_invite
from swarm.errors import ConfigError
from swarm.options import (
    EngineOptions,
    JoinOptions,
    parse_address,
    parse_bytes,
    parse_layers,
    parse_span_s,
)
from swarm.terms import Address

LEAVE_MARGIN_S = 15.0
"""Waited for beyond the grace that the node gives its sessions."""

app = typer.Typer()


@app.command()
def join(
    invite: flags.Invite = None,
    model: flags.Models = None,
    layers: flags.Layers = None,
    memory: flags.Memory = None,
    device: flags.Device = None,
    dtype: flags.Dtype = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Compute threads.")] = None,
    quantization: flags.Quantization = None,
    kv_cache_dtype: flags.KvCacheDtype = None,
    max_model_len: flags.MaxModelLen = None,
    max_num_seqs: flags.MaxNumSeqs = None,
    max_num_batched_tokens: flags.MaxNumBatchedTokens = None,
    served_model_name: flags.ServedModelName = None,
    enable_prefix_caching: flags.PrefixCaching = None,
    enforce_eager: flags.EnforceEager = None,
    exact: flags.Exact = None,
    copies: flags.Copies = None,
    gateway: flags.Gateway = None,
    no_auth: flags.NoAuth = False,
    allow_origin: flags.AllowOrigin = None,
    gateway_only: flags.GatewayOnly = False,
    yield_to_owner: flags.YieldToOwner = False,
    listen: flags.Listen = None,
    peer: flags.Peer = None,
    key: Annotated[str | None, typer.Option(help="The key of the swarm to join; kept.")] = None,
    open_swarm: flags.OpenSwarm = False,
    home: Home = DEFAULT_HOME,
    name: Annotated[str | None, typer.Option(help="Shown to people; default: host name.")] = None,
    no_mdns: Annotated[bool, typer.Option("--no-mdns", help="Do not use multicast.")] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="One JSON object a line.")] = False,
) -> None:
    """Run this machine's node until Ctrl-C or `swarm leave`."""
    key, peers = _swarm(invite, key, peer or (), open_swarm=open_swarm)
    paths, names, hub = told_apart(model or [], served_model_name or [])
    options = JoinOptions(
        model=paths, hub=hub,
        layers=None if layers is None else parse_layers(layers),
        memory_bytes=None if memory is None or "," in memory else parse_bytes(memory),
        device=device, dtype=dtype, threads=threads,
        gateway=_address(gateway), listen=_address(listen),
        peers=peers, key=key,
        open_swarm=open_swarm,
        home=home.expanduser(),
        name=name,
        mdns=not no_mdns,
        log_json=log_json,
        engine=EngineOptions(
            quantization, kv_cache_dtype, max_model_len, max_num_seqs, max_num_batched_tokens,
            enable_prefix_caching, enforce_eager, exact, copies,
        ),
        served_model_name=names,
        no_auth=no_auth, gateway_only=gateway_only, yield_to_owner=yield_to_owner,
        allow_origin=tuple(allow_origin or ()),
        device_memory=memory if memory is not None and "," in memory else None,
    )  # fmt: skip
    from swarm.daemon import run

    raise typer.Exit(run(options))


def _address(text: str | None) -> Address | None:
    return None if text is None else parse_address(text)


def _swarm(
    invite: str | None, key: str | None, peers: Sequence[str], *, open_swarm: bool
) -> tuple[str | None, tuple[Address, ...]]:
    """The key and the members to dial. Raises ConfigError."""
    if (key is not None) + open_swarm + (invite is not None) > 1:
        raise ConfigError("an invite, --key and --open exclude each other: give one of them")
    addresses = tuple(parse_address(text) for text in peers)
    if invite is None:
        return key, addresses
    from swarm.link.identity import SwarmKey

    found = parse_invite(invite)
    check_invite(found)
    return SwarmKey(found.secret, found.tag).text, (*addresses, *found.addresses)


@app.command()
def leave(
    in_: Annotated[
        str | None, typer.Option("--in", metavar="TIME", help="Later: 90s, 5m, 1h30m.")
    ] = None,
    stay: Annotated[bool, typer.Option("--stay", help="Take a leave --in back.")] = False,
    as_json: AsJson = False,
    home: Home = DEFAULT_HOME,
) -> None:
    """Take this machine's node out; its running answers move to other nodes first."""
    from swarm.gateway.client_io import running_node, wait_for_end
    from swarm.gateway.status_text import span_text

    if stay and in_ is not None:
        raise ConfigError("--in and --stay exclude each other: give one of them")
    in_s = None if in_ is None else parse_span_s(in_)
    node = running_node(home.expanduser())
    if stay:
        node.client().stay(node.control_token)
        _say({"left": False, "in_s": None}, "the node stays", as_json=as_json)
        return
    if in_s:
        node.client().leave_in(node.control_token, in_s)
        text = (
            f"the node leaves in {span_text(in_s)}; until then it serves on, and others prepare "
            "(`swarm leave --stay` takes it back)"
        )
        _say({"left": False, "in_s": in_s}, text, as_json=as_json)
        return
    grace_s = node.client().leave(node.control_token)
    if not as_json:
        print("leaving: running answers move to other nodes or end", flush=True)
    if not wait_for_end(node.pid, grace_s + LEAVE_MARGIN_S):
        raise ConfigError(
            f"the node (process {node.pid}) is still there; stop it with Ctrl-C or end the process"
        )
    _say({"left": True, "in_s": None}, "left", as_json=as_json)


def _say(result: dict[str, bool | float | None], text: str, *, as_json: bool) -> None:
    if as_json:
        print_json(result)
    else:
        print(text)
