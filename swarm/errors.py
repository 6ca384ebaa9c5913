"""The error tree, sorted by who must act.

SwarmError
├─ ConfigError              the operator, at start
├─ ProtocolError
│  ├─ LocalProtocolError    us: a bug of ours, never caught
│  └─ RemoteProtocolError   the peer broke the rules: hang up
├─ LinkError                weather: retry or reroute
│  ├─ LinkClosed
│  └─ HandshakeFailed
├─ CapacityError            full: try elsewhere, else 503
│  ├─ KvExhausted
│  └─ SessionLimitReached
├─ RouteError               503
│  ├─ NoRoute               names the missing layers
│  └─ RerouteLimitReached
├─ ShardError               this node cannot serve
└─ RequestError             the client's fault, 4xx
"""

from __future__ import annotations

from swarm.terms import LayerRange, ModelId


class SwarmError(Exception):
    """Root of every error that the project raises on purpose. The text is for people."""


class ConfigError(SwarmError):
    """The operator gave something that cannot work."""


class ProtocolError(SwarmError):
    """The rules of a protocol were broken."""


class LocalProtocolError(ProtocolError):
    """We would break the rules: a bug of ours."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the rules; the only answer is to close the link."""


class LinkError(SwarmError):
    """A link failed: ordinary weather."""


class LinkClosed(LinkError):
    """The link is gone; `str()` says how it ended."""


class HandshakeFailed(LinkError):
    """The other side could not prove that it belongs to this swarm, or speaks another version."""


class CapacityError(SwarmError):
    """No room here; there may be room elsewhere."""


class KvExhausted(CapacityError):
    """Not enough KV memory for the session."""


class SessionLimitReached(CapacityError):
    """Too many sessions."""


class RouteError(SwarmError):
    """No way through the swarm for this request."""


class NoRoute(RouteError):
    """Some layers of the model are served by nobody reachable."""

    def __init__(self, model_id: ModelId, missing: tuple[LayerRange, ...], detail: str) -> None:
        super().__init__(detail)
        self.model_id = model_id
        self.missing = missing


class RerouteLimitReached(RouteError):
    """The session lost more hops than the limit allows."""


class ShardError(SwarmError):
    """This node cannot serve what it was asked to serve."""


class RequestError(SwarmError):
    """The client's fault. `status` is the HTTP status, `param` the field that is wrong."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        """`retry_after_s`: when it is worth another try, where that is known."""
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s
