"""Orders a core may give. A shell carries them out; a test compares lists of them."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.errors import SwarmError
from swarm.messages import Message
from swarm.notes import Note
from swarm.terms import Address, LayerRange, ModelId, NodeId, Route, SampledToken, SessionId


@dataclass(frozen=True, slots=True)
class Send:
    """Put a message on the link to `peer`, on the lane of its kind; dropped when there is none."""

    peer: NodeId
    message: Message


@dataclass(frozen=True, slots=True)
class Dial:
    """Try all addresses at once; the first that authenticates wins.

    `expected` is the node thought to live there; any member of the swarm is welcome all the same.
    """

    addresses: tuple[Address, ...]
    expected: NodeId | None = None


@dataclass(frozen=True, slots=True)
class DialVia:
    """Make a link to `peer` by way of `via`, a peer that is linked directly."""

    peer: NodeId
    via: NodeId


@dataclass(frozen=True, slots=True)
class OpenChannel:
    """Try to have a WebRTC data channel take the place of the relayed link to `peer`."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class CloseLink:
    peer: NodeId
    reason: str


@dataclass(frozen=True, slots=True)
class ToWorker:
    """`device`: whose worker; None: of a node with several, all that it concerns."""

    message: Message
    device: int | None = None


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start the worker process (again) unless it runs; it will be told what to load."""

    device: int = 0


@dataclass(frozen=True, slots=True)
class StopWorker:
    """End the worker process, by force if need be; its loss is not told again."""

    device: int = 0


@dataclass(frozen=True, slots=True)
class SaveIncarnation:
    incarnation: int


@dataclass(frozen=True, slots=True)
class SavePeers:
    """Remember these endpoints for the next start."""

    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class SaveStays:
    """Keep what is known of how long peers stay."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Started:
    """A session has its (new) route. `epoch` 1 is the first."""

    route: Route
    epoch: int
    cached_tokens: int = 0
    """Of the prompt, those that the hops of the first route had already."""


@dataclass(frozen=True, slots=True)
class Stalled:
    """The answer is paused while a new route is sought; `cause` is for people."""

    cause: str


@dataclass(frozen=True, slots=True)
class Generated:
    token: SampledToken


@dataclass(frozen=True, slots=True)
class SessionStats:
    """Of one finished session. `stall_s`: the pause of each reroute, verdict to next token."""

    route: Route | None
    reroutes: int
    stall_s: tuple[float, ...]
    exact: bool
    cached_tokens: int = 0
    """Positions of the prompt that no hop had to run."""


@dataclass(frozen=True, slots=True)
class Finished:
    """All tokens were given. `reason`: "stop" at an end-of-sequence id, "length" at the limit."""

    reason: str
    stats: SessionStats


@dataclass(frozen=True, slots=True)
class Failed:
    """The session ends without all its tokens; `error` says why."""

    error: SwarmError
    stats: SessionStats


SessionEvent = Started | Stalled | Generated | Finished | Failed


@dataclass(frozen=True, slots=True)
class Reply:
    """News for whoever asked for the session."""

    session: SessionId
    event: SessionEvent


@dataclass(frozen=True, slots=True)
class Tell:
    note: Note


@dataclass(frozen=True, slots=True)
class FetchModel:
    """Get all of a model but its weights from peers, or from the disk. A fetch fact answers."""

    model_id: ModelId
    name: str


@dataclass(frozen=True, slots=True)
class FetchLayers:
    """Get a shard's weights; what another such order for this model wanted is no longer wanted."""

    model_id: ModelId
    layers: LayerRange
    embed: bool
    head: bool
    hub: str = ""
    """What the hub calls the model, where its owner wants it from there: what no peer has is."""


@dataclass(frozen=True, slots=True)
class DropModel:
    """Nothing is fetched of a model any more, and its files may make room for others."""

    model_id: ModelId


@dataclass(frozen=True, slots=True)
class FetchHub:
    """Get a model of the hub: from the library's cache on this machine or, where it may, from
    there. Hub facts answer."""

    hub: str
    may_download: bool


@dataclass(frozen=True, slots=True)
class StopHub:
    """It is not to be got from there any more; no fact answers."""

    hub: str


Effect = (
    Send
    | Dial
    | DialVia
    | OpenChannel
    | CloseLink
    | ToWorker
    | StartWorker
    | StopWorker
    | SaveIncarnation
    | SavePeers
    | SaveStays
    | Reply
    | Tell
    | FetchModel
    | FetchLayers
    | DropModel
    | FetchHub
    | StopHub
)
