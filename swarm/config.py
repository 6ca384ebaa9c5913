"""Every limit and setting, with its unit, its reason and what raising it costs.

One frozen `Config`, built once at start from a TOML file, `SWARM_<SECTION>_<FIELD>` variables and
command line flags, in rising order of strength. Unknown keys and bad values stop the start.
Nothing else reads the environment; nothing edits a config later.
"""

from __future__ import annotations

import dataclasses
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from swarm.errors import ConfigError
from swarm.moves_config import MovesConfig
from swarm.owner_config import OwnerConfig
from swarm.weights_config import WeightsConfig as WeightsConfig

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LinkConfig:
    handshake_timeout_s: float = 3.0
    """A dial or an accepted connection must authenticate within this time."""
    dial_timeout_s: float = 3.0
    handshakes_half_open_max: int = 32
    """Accepted connections that have not authenticated; more are closed at once."""
    handshakes_per_second: int = 50
    """Over all addresses; a stranger's flood costs one hash each up to here."""
    links_max: int = 256
    send_buffer_bytes: int = 4 * MIB
    """Data-lane bytes waiting in a transport before sends are held back."""
    send_buffer_limit_bytes: int = 64 * MIB
    """A lane with this much unsent is broken off: the peer does not read."""
    bulk_buffer_bytes: int = 256 * 1024
    """Weights waiting in a socket, and in its transport: what rows that follow may wait for on the
    same wire. Larger: faster downloads where a round trip takes long."""
    bulk_idle_s: float = 30.0
    """A bulk lane on which nothing came or went for this long is closed."""
    rekey_frames: int = 1 << 32
    """AEAD frames under one key before the Noise rekey rule is applied."""
    goodput_probe_bytes: int = 256 * 1024
    """Bulk sent once when a link comes up and then every `goodput_probe_interval_s`."""
    goodput_probe_interval_s: float = 60.0
    ping_interval_s: float = 2.0
    """Of the first pings on a link, until its round trip is known well."""
    ping_settled_interval_s: float = 10.0
    """Afterwards. A longer one is later to see that a path has become slower or faster; a shorter
    one costs each node two messages a link and interval."""
    relay_streams_max: int = 192
    """Streams of others that this node passes on: two or three a relayed link. Each costs two
    sockets and up to about four times `relay_buffer_bytes`."""
    relay_streams_per_peer_max: int = 48
    """Of those, streams that begin or end at one peer."""
    relay_buffer_bytes: int = 256 * 1024
    """Of one stream and direction, waiting for a slower far side. Larger: more goodput over long
    round trips, and more memory."""
    relay_bytes_s: int = 64 * MIB
    """Rows and weights of others, over all streams, about half of a gigabit network: the machine's
    own lanes must not wait for them. Control is not slowed."""
    webrtc: str = "auto"
    """Whether a relayed link becomes a WebRTC data channel where datagrams pass. `auto`: where it
    is likely to be faster and aiortc is installed; `on`: wherever it can; `off`."""
    webrtc_rtt_min_s: float = 0.004
    """With `auto`, the round trip by way of the third node from which on a channel is tried: half
    of it, as on a radio, must be worth more than the milliseconds that a channel's packets cost."""
    webrtc_retry_s: float = 60.0
    """Pause after a channel that came to nothing or did not last; pauses double four times."""
    stun_server: str = ""
    """HOST:PORT of a server that tells ends behind an address translator how they look from
    outside. None is asked unless this names one: a LAN needs none."""
    contest_s: float = 1.0
    """When a linked node shows up as another start of it, the link that stands must answer within
    this time, or it gives way. Longer delays only restarts whose old link ended without a sound;
    shorter takes a stalled node for gone, so that copies of one identity take turns for longer."""
    user_timeout_ms: int = 2000
    """TCP_USER_TIMEOUT where it exists: only a reaper, detection does not rest on it."""


@dataclass(frozen=True, slots=True)
class DiscoveryConfig:
    mdns: bool = True
    redial_min_s: float = 0.5
    """First pause after a failed dial; doubles up to `redial_max_s`, with jitter."""
    redial_max_s: float = 30.0
    """Known but absent peers are tried for ever, this slowly."""
    redial_recent_s: float = 600.0
    """A peer lost within this time is tried every `redial_recent_max_s`: most partitions and naps
    end within it, and views are alike only after the first dial that gets through."""
    redial_recent_max_s: float = 1.0
    absent_dials_per_s: float = 1.0
    """Of one node, over all peers that it lost: many stretch the pauses of each. Raising it finds a
    healed partition sooner and sends more into the void."""
    absent_dialers: int = 32
    """An absent member that was never linked here is tried every `redial_max_s` by about so many
    nodes of a large swarm, and by the others as much more seldom."""
    relayed_redial_s: float = 30.0
    """A peer linked by way of another is dialled directly this often; pauses double three times."""
    departed_redial_s: float = 300.0
    """Who left in good order is looked for this seldom; it will dial when it is back."""
    remembered_peers_max: int = 64
    addresses_per_peer_max: int = 8
    interface_rescan_s: float = 5.0


@dataclass(frozen=True, slots=True)
class GossipConfig:
    heartbeat_interval_s: float = 0.5
    heartbeat_missed_max: int = 3
    """Silent heartbeats before a link is probed."""
    link_silence_max_s: float = 4.0
    """A link on which nothing came for this long in spite of probes is closed and made anew."""
    probe_timeout_s: float = 0.3
    indirect_probe_count: int = 3
    unlinked_probe_s: float = 10.0
    """A member without a link of ours is probed when it showed no life for this long. In a partial
    mesh three times the pace of its records counts instead."""
    hearsay_probe_count: int = 4
    """Of all nodes without a link to an accused one, about this many dial it to see."""
    suspicion_min_s: float = 1.5
    """Times max(1, log10 N); reached with two confirmations."""
    suspicion_max_factor: float = 4.0
    """Suspicion without confirmation lasts this many times the minimum."""
    hash_mismatch_s: float = 1.0
    """How long state hashes must differ before they are compared closer, times 2 log10 N where the
    mesh is partial. Lower mends sooner and compares more often what is still on its way."""
    full_exchange_interval_s: float = 30.0
    tombstone_s: float = 600.0
    dynamic_interval_s: float = 2.0
    """Fastest rate of a node's dynamic record; also N/10 s in larger swarms."""
    dynamic_refresh_s: float = 30.0
    dynamic_change: float = 0.15
    """Relative change of a figure that is worth a new record."""
    dynamic_links_max: int = 4
    """Links told in a dynamic record where the mesh is partial: each is 53 bytes on every node."""
    full_mesh_max: int = 32
    """Up to this many living members every pair is linked; links and pushes grow with the square.
    The same on every node."""
    links_near: int = 8
    """Links to the nearest peers that a node wants in a partial mesh."""
    links_random: int = 8
    """Links across the whole swarm that it wants besides; these keep the graph in one piece."""
    links_high: int = 48
    """With more links than this a node also closes surplus ones that the other side dialled."""
    link_rest_s: float = 30.0
    """A link that nobody wants any more stays this long, up to twice that by chance."""
    released_pause_s: float = 300.0
    """Who closed a link as surplus is not chosen again for about this long."""
    explore_interval_s: float = 300.0
    """One more peer is linked for a while, to find nearer ones, about this often."""
    seed_links_members_max: int = 128
    """Links to seeds are kept up to this many members: one seed could not carry everybody's."""
    rumour_interval_s: float = 0.1
    rumour_fanout: int = 3
    """Peers that rumours go to each interval; more is faster and costs as many more bytes."""
    rumour_news_factor: float = 6.0
    """What changes routes (static records, suspicions, departures) is passed on by each node to
    this many peers, times log10 N."""
    rumour_figures_factor: float = 1.5
    """The same for dynamic records; whom they miss gets them by comparing hashes."""
    members_max: int = 1024
    records_per_message: int = 32
    record_body_bytes_max: int = 16 * 1024
    local_health_max: int = 7


@dataclass(frozen=True, slots=True)
class RoutingConfig:
    progress_interval_s: float = 0.025
    """On links in use each side is heard at least this often."""
    silence_soft_s: float = 0.100
    """Probe the peer and reserve a replacement."""
    silence_hard_s: float = 0.250
    """Cut over."""
    silence_soft_gappy_s: float = 0.200
    silence_hard_gappy_s: float = 0.450
    """The same on links that showed a gap above `silence_soft_s` in the last `gappy_memory_s`."""
    gappy_memory_s: float = 600.0
    slow_factor: float = 3.0
    """A step that takes this many times its prediction makes its hop suspect (soft)."""
    slow_min_s: float = 0.4
    stuck_factor: float = 30.0
    """A step that takes this many times its prediction is cut over."""
    stuck_min_s: float = 2.5
    open_timeout_s: float = 2.0
    """A hop must answer `Open` within this time."""
    dial_wait_s: float = 1.5
    """How long an answer waits for a link that must be dialled first; a dial on a LAN takes some
    ten milliseconds, or a second more when its first packet is lost."""
    detour_after_s: float = 1.05
    """A dial that has had no answer by then may get none: a way by a third node is sought beside
    it. TCP repeats a lost first packet after a second (RFC 6298)."""
    hop_link_wait_s: float = 1.2
    """The same on a hop, for the links to its neighbours; below `open_timeout_s`."""
    dial_back_s: float = 0.3
    """A hop whose feeder has not dialled it by then dials the feeder: one direction may work."""
    dial_cost_s: float = 0.03
    """What a dial adds to a route's cost, once. Linked nodes win where all else is near equal."""
    unreachable_min_s: float = 10.0
    unreachable_max_s: float = 300.0
    """A member, or a pair of members, that could not be joined is left out for this long, doubling
    with each further miss in one life of the member."""
    origin_silence_max_s: float = 15.0
    """A hop frees a session whose origin it has not heard for this long, whatever gossip thinks. An
    origin that lives is heard every `progress_interval_s`; one that returns later rebuilds."""
    cover_wait_s: float = 20.0
    """How long a running answer waits for lost layers to return."""
    reroutes_max: int = 16
    """Per session; each costs at most one rebuild."""
    preemptions_max: int = 32
    """Times that a session makes room for older ones before it gives up; each costs a rebuild."""
    penalty_min_s: float = 2.0
    penalty_max_s: float = 60.0
    """A peer that went silent or got stuck in mid-answer is avoided this long, doubling."""
    outbox_bytes_max: int = 512 * MIB
    """Rows kept per node for resending, over all sessions; the oldest session loses its rows."""
    credit_steps: int = 4
    """Prefill chunks in flight between two hops of one session. The same on every node: a hop
    takes a feeder that has far more in flight for one that broke the rules."""
    link_inflight_bytes_max: int = 32 * MIB
    """Rows in flight on one link, over all sessions."""
    prefill_chunk_tokens: int = 256
    """Rows of one prefill step; exact rebuilding needs the same value on every node."""
    sessions_max: int = 256
    hop_sessions_max: int = 512
    hop_sessions_per_origin_max: int = 256
    """Of `hop_sessions_max`, so that no origin can take all; not below another's `sessions_max`."""
    kv_growth_tokens: int = 256
    """A session is admitted with room for its prompt and so many tokens, and grows from there; the
    youngest goes elsewhere when there is no room left to grow. More: fewer sessions, rarer moves.
    """
    positions_max: int = 1 << 24
    """Positions of one session that a hop reserves KV for; no model known has a longer context."""
    opened_max_s: float = 30.0
    """A hop frees a session that was opened and not resumed for this long. Above `cover_wait_s`:
    an origin that waits for lost layers keeps what it opened."""
    stall_price_s: float = 60.0
    """What a hop that leaves in mid-answer counts for in a route's cost, as time lost. More:
    answers keep to machines that used to stay, though others are faster; 0: that counts for
    nothing."""
    standby: bool = True
    """Idle nodes follow running answers, so that a loss costs no replay: where copies of layers
    exist, rows are computed twice, the second time behind all other work."""
    standby_after_s: float = 1.0
    """A route that has run for so long gets standbys; short answers need none."""
    standby_retry_s: float = 5.0
    """A hop without one is looked at again after this time."""
    hand_over_max_s: float = 10.0
    """A node that leaves is used so long at most while its standby is warmed."""
    unknown_rtt_s: float = 0.005
    unknown_goodput_bytes_s: float = 12.5e6
    """Estimates for a pair of nodes that nobody has measured."""
    hop_overhead_s: float = 0.0005
    """Fixed cost of one more hop; also what makes fewer hops win a tie."""
    expected_tokens_max: int = 256
    """A route is chosen for at most this many tokens to come."""


@dataclass(frozen=True, slots=True)
class ShardConfig:
    device: str = "cpu"
    """cpu, cuda:N or mps; several with commas between, a worker for each, in the order in which
    rows pass them."""
    dtype: str = "auto"
    """float32, bfloat16, float16; auto: the checkpoint's own, float32 where that is slow on CPU."""
    quantization: str = "none"
    """Of the weights: int8 or int4, in groups of 32, or none."""
    kv_cache_dtype: str = "auto"
    """auto: as the rows, float16 for float32 rows of integer weights; int8, fp8 (where the device
    has it): less memory, other bits."""
    max_model_len: int = 0
    """Longest sequence served, positions; 0: the model's own limit."""
    max_num_seqs: int = 64
    """Sessions whose decode rows run in one batch; more memory for activations, longer steps."""
    max_num_batched_tokens: int = 512
    """Rows of one step, prefill pieces and decode rows together: what others' tokens wait for."""
    enforce_eager: bool = False
    """No captured decode steps: slower, starts sooner."""
    exact: bool = True
    """A row's bits never depend on the rest of its batch; what exact failover under load needs."""
    enable_prefix_caching: bool = True
    """Blocks of ended sessions serve others whose prompts begin alike, while there is room."""
    threads: int = 0
    """Compute threads of each worker; 0: the physical cores, shared by workers on the CPU."""
    memory_bytes: int = 0
    """For weights, KV and activations, on each device; 0: 70 % of what is free at start."""
    device_memory: str = ""
    """The same for each device of several: sizes with commas between."""
    kv_fraction: float = 0.3
    """Part of the memory kept for KV when the layers are chosen."""
    later_fraction: float = 0.25
    """Part of what a pool of KV could take that is left for models loaded later (`swarm load`)."""
    settle_s: float = 2.0
    """How long a node listens to gossip before it chooses its layers."""
    intention_s: float = 0.5
    """How long a published intention waits for rival ones; gossip takes less than half of it."""
    intention_turns_max: int = 60
    """Times that a node lets joining ones of smaller NodeId choose before it; then it loads."""
    copies: int = 0
    """How often every layer is wanted in the swarm; the largest wish of those that serve a model
    counts. More: fewer answers wait for lost layers, and more memory is taken for it. 0: no wish.
    """
    rebalance: bool = True
    """A node that chose its layers by itself may choose others: where some are lost, or where the
    whole gains. Never one whose layers its owner has given."""
    activation_bytes: int = 256 * MIB
    """Held back from the memory budget."""
    restart_min_s: float = 1.0
    """Pause before a crashed worker is restarted; doubles up to `restart_max_s`."""
    restart_max_s: float = 60.0
    worker_stuck_min_s: float = 4.0
    """A worker with work that finishes no step for this long, or for `stuck_factor` times the
    longest prediction, is ended and started anew. Above `stuck_min_s`: answers go elsewhere first,
    and a restart costs a reload."""
    first_word_s: float = 15.0
    """A worker that was told to inspect or load something says at once that it begins, unless it
    is only starting. A machine with ten programs for each processor takes seconds for that."""
    load_quiet_s: float = 120.0
    """A worker that inspects or loads must say something within this time ..."""
    load_floor_bytes_s: float = 20e6
    """... and the time that the weights take at this rate, from a slow disk; each report of
    progress starts that anew."""
    queue_max: int = 64
    """Steps of one session waiting in a worker; credits allow an honest one a few. In all there
    are at most `hop_sessions_max` times as many."""


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    host: str = "127.0.0.1"
    port: int = 8000
    auth: str = "auto"
    """Whether requests must bring a key (`swarm keys`). auto: where the gateway listens beyond
    loopback; on; off."""
    allow_origins: str = ""
    """Origins, parted by commas, whose web pages may ask; none: pages of loopback alone."""
    port_tries: int = 32
    """Next ports tried when the default one is busy; a port that was asked for is not moved."""
    body_bytes_max: int = 8 * MIB
    max_tokens_default: int = 1024
    stop_strings_max: int = 4
    stop_chars_max: int = 256
    """Of one stop string; up to this much text may be held back while it could still match."""
    top_logprobs_max: int = 20
    keepalive_s: float = 2.0
    """An SSE comment is sent when nothing else was for this long."""
    retry_after_s: int = 5
    requests_max: int = 256
    """Requests answered at once; each holds at least one session."""
    queue_max: int = 256
    """Requests that may wait for a turn. Beyond that: 429."""
    queue_timeout_s: float = 30.0
    """No request waits longer for its turn: clients give up soon after."""
    header_bytes_max: int = 16 * 1024
    """Of one header line; long tokens of proxies fit, and memory stays small."""
    headers_max: int = 100
    idle_timeout_s: float = 60.0
    """A connection whose next request's headers are not all there by then is closed."""
    choices_max: int = 32
    """Answers of one request, over all its prompts; each is a session with KV of its own."""
    body_timeout_s: float = 30.0
    """A request's body must be there within this time."""
    prepare_timeout_s: float = 30.0
    """A prompt must have become ids within this time."""
    guide_timeout_s: float = 10.0
    """A guide must be compiled within this time, which is some ten times what the largest take on
    a quiet machine; below `prepare_timeout_s`, whose end is the end of all that is prepared."""
    probe_fresh_s: float = 60.0
    """`/readyz` takes a probe token of this age as proof."""
    probe_timeout_s: float = 10.0
    """A probe token that `/readyz` asks for itself must come within this time."""
    write_timeout_s: float = 60.0
    """A client that reads nothing for this long is cut off; its session holds KV meanwhile."""
    event_streams_max: int = 256
    """Readers of `/swarm/events`; each may lag by `event_backlog_bytes_max`."""
    event_backlog_bytes_max: int = 256 * 1024
    """What waits for a reader of events; one that lags more is given the whole state anew. Readers
    share these bytes, but for those that lag each on its own."""
    event_interval_s: float = 0.25
    """How often readers of events hear what changed; more often costs the loop's time."""
    event_notes_max: int = 1024
    """Notes of one moment that all readers of events may hear; more lose the oldest."""
    leave_grace_s: float = 10.0
    """How long `swarm leave` lets running sessions move away or end."""


@dataclass(frozen=True, slots=True)
class Config:
    link: LinkConfig = field(default_factory=LinkConfig)
    discovery: DiscoveryConfig = field(default_factory=DiscoveryConfig)
    gossip: GossipConfig = field(default_factory=GossipConfig)
    routing: RoutingConfig = field(default_factory=RoutingConfig)
    shard: ShardConfig = field(default_factory=ShardConfig)
    moves: MovesConfig = field(default_factory=MovesConfig)
    owner: OwnerConfig = field(default_factory=OwnerConfig)
    weights: WeightsConfig = field(default_factory=WeightsConfig)
    gateway: GatewayConfig = field(default_factory=GatewayConfig)


def lan() -> Config:
    """The default preset."""
    return Config()


def sim() -> Config:
    """For simulated time: as on a LAN, without multicast and data channels."""
    quiet = DiscoveryConfig(mdns=False)
    return dataclasses.replace(Config(), discovery=quiet, link=LinkConfig(webrtc="off"))


def load_config(
    toml_text: str, environment: Mapping[str, str], flags: Mapping[str, Mapping[str, Any]]
) -> Config:
    """Join the three sources. Raises ConfigError naming the key at fault."""
    try:
        values: dict[str, Any] = tomllib.loads(toml_text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the config file is not valid TOML: {error}") from error
    sections = {f.name: f for f in dataclasses.fields(Config)}
    _refuse_unknown(values, sections, "section")
    merged = {name: dict(_table(values, name)) for name in sections}
    for name, text in environment.items():
        _merge_variable(merged, name, text)
    for section, table in flags.items():
        merged[section].update(table)
    hints = typing.get_type_hints(Config)
    return Config(**{name: _section(hints[name], name, merged[name]) for name in sections})


def as_toml(config: Config) -> str:
    """The whole config as a TOML file that would build it again."""
    lines: list[str] = []
    for section in dataclasses.fields(config):
        lines.append(f"[{section.name}]")
        table = getattr(config, section.name)
        lines += [f"{f.name} = {_toml(getattr(table, f.name))}" for f in dataclasses.fields(table)]
        lines.append("")
    return "\n".join(lines)


def _toml(value: str | int | float | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = values.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"config: [{name}] must be a table")
    return table


def _refuse_unknown(values: Mapping[str, Any], known: Mapping[str, Any], what: str) -> None:
    for name in values:
        if name not in known:
            raise ConfigError(f"config: unknown {what} {name!r}; known: {', '.join(known)}")


def _merge_variable(merged: dict[str, dict[str, Any]], name: str, text: str) -> None:
    if not name.startswith("SWARM_"):
        return
    section, _, key = name.removeprefix("SWARM_").lower().partition("_")
    if section not in merged:
        raise ConfigError(f"environment: {name} names no config section ({', '.join(merged)})")
    merged[section][key] = text


def _section(kind: Any, section: str, table: Mapping[str, Any]) -> Any:
    hints = typing.get_type_hints(kind)
    _refuse_unknown(table, hints, f"key in [{section}]")
    return kind(**{key: _value(hints[key], f"{section}.{key}", v) for key, v in table.items()})


def _value(kind: type, name: str, value: Any) -> Any:
    """`value` as `kind`; strings are parsed, since variables and flags come as text."""
    problem = ConfigError(f"config: {name} must be of type {kind.__name__}, not {value!r}")
    if kind is bool:
        known = {"true": True, "1": True, "false": False, "0": False}
        if isinstance(value, str) and value.lower() in known:
            return known[value.lower()]
        if not isinstance(value, bool):
            raise problem
        return value
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise problem
    if kind is int and isinstance(value, float):
        raise problem
    try:
        number = kind(value)
    except ValueError as error:
        raise problem from error
    if kind in (int, float) and not 0 <= number < float("inf"):
        raise ConfigError(f"config: {name} must be finite and not negative, not {value!r}")
    return number
