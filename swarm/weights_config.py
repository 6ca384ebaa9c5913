"""The section of the config about weights that come from peers, and those that go to them."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class WeightsConfig:
    """Weights that come from peers, and those that go to them."""

    take_part: bool = True
    """A node without a model of its own takes layers of one that the swarm has. `--gateway-only`
    on the command line: it does not."""
    cache_dir: str = ""
    """Where models from peers are kept, for all nodes of a host; empty: ~/.cache/swarm/models."""
    cache_bytes_max: int = 0
    """Of that folder; 0: half of the disk's free space and of what is there. Those used longest ago
    make room; what a running node uses never does."""
    disk_reserve_bytes: int = 1024 * MIB
    """Free space that a download leaves to others."""
    in_flight_bytes_max: int = 32 * MIB
    """Pieces that are under way to this node, over all sources: its memory for a download."""
    pieces_per_source_max: int = 12
    """Of 1 MiB, asked of one peer at a time; more fill a longer or faster pipe."""
    piece_silence_s: float = 5.0
    """A source that shows no progress on a piece for this long is rested; others are asked."""
    source_rest_s: float = 2.0
    """First rest of a source that was silent or busy; doubles each time, up to a minute."""
    holdings_interval_s: float = 2.0
    """How often peers are asked what they hold while something is missing."""
    holding_timeout_s: float = 3.0
    """A peer must say what it holds within this time."""
    retry_min_s: float = 2.0
    """Pause after a model could not be fetched; doubles up to `retry_max_s`."""
    retry_max_s: float = 60.0
    unfit_rest_min_s: float = 60.0
    """A model that could be had but not be served here is tried again after this; doubles each
    time up to `unfit_rest_max_s`. Shorter: a load that fails costs the node some seconds each."""
    unfit_rest_max_s: float = 3600.0
    hub_progress_s: float = 10.0
    """How often a node that fetches a model from the hub tells others how far it is."""
    hub_stall_s: float = 60.0
    """A node whose download from the hub stands still for this long is passed over for another."""
    hub_tries_max: int = 5
    """Times that a download from the hub is begun here; then it is left to others."""
    starved_s: float = 15.0
    """With no source for what is missing for this long, other layers are chosen."""
    uploads_per_peer_max: int = 16
    """Pieces that one peer may have asked for and not got; above `pieces_per_source_max`."""
    uploads_max: int = 64
    """The same over all peers; each waits without memory until its turn comes."""
    upload_bytes_s: int = 0
    """Of all uploads together; 0: as fast as it goes."""
    upload_busy_share: float = 0.3
    """Of a link's measured goodput, for uploads while sessions run on this node: what they get of a
    neighbour's download to feel. Lower: downloads take longer."""
    upload_busy_time: float = 0.05
    """Of a processor's time, for sealing and sending weights while sessions run on this node: a
    worker with a thread for each core misses it at once. Higher: running streams feel it."""
