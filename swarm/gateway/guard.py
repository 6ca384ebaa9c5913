"""Who may talk to a gateway: programs, not web pages of other sites.

A page can make a browser send requests to 127.0.0.1 or into its network, directly or through a
name that it lets point there (DNS rebinding). The first shows in the Origin header. The second
shows in the Host header, which only a gateway on loopback can judge: one that is opened to a
network does not know by which names it is reached.
"""

from __future__ import annotations

import ipaddress
import re

from swarm.errors import ConfigError

_AUTHORITY = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<name>[^:/@\[\]]+))(?::\d{1,5})?")

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/@*?#\s,]+")


def is_loopback(host: str) -> bool:
    """True for `localhost`, names below it, and loopback addresses."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback or (mapped is not None and bool(mapped.is_loopback))


def needs_keys(auth: str, host: str) -> bool:
    """Whether requests must bring a key: as `GatewayConfig.auth` has it, for this place.

    Raises ConfigError for a word that `auth` does not know.
    """
    if auth not in {"auto", "on", "off"}:
        raise ConfigError(f"config: gateway.auth is auto, on or off, not {auth!r}")
    return auth == "on" or (auth == "auto" and not is_loopback(host))


def allowed_origins(text: str) -> frozenset[str]:
    """The origins, parted by commas, whose pages may ask. Raises ConfigError."""
    found = [origin.strip().lower() for origin in text.split(",") if origin.strip()]
    for origin in found:
        if not _ORIGIN.fullmatch(origin):
            raise ConfigError(
                f"an origin is given as https://HOST or http://HOST:PORT, not {origin!r}; pages"
                " of every site at once cannot be let in"
            )
    return frozenset(found)


def refusal(host: str | None, origin: str | None) -> str | None:
    """Why a request to a loopback gateway is refused; None when it may pass."""
    if host is None or not _authority_is_local(host):
        return f"the Host header {host!r} does not name this machine's loopback"
    if origin is None:
        return None
    scheme, _, authority = origin.partition("://")
    if scheme not in {"http", "https"} or not _authority_is_local(authority):
        return f"requests from web pages of {origin!r} are refused"
    return None


def refusal_from_afar(host: str | None, origin: str | None) -> str | None:
    """The same for a gateway that is opened to a network: only pages of its own may ask it."""
    if origin is None:
        return None
    scheme, _, authority = origin.partition("://")
    port = {"http": ":80", "https": ":443"}.get(scheme)
    if port is None or host is None or _named(authority, port) != _named(host, port):
        return f"requests from web pages of {origin!r} are refused"
    return None


def _named(authority: str, default_port: str) -> str:
    return authority.lower().removesuffix(default_port)


def _authority_is_local(authority: str) -> bool:
    match = _AUTHORITY.fullmatch(authority)
    return match is not None and is_loopback(match["v6"] or match["name"])
