"""Keys of the API: who may ask a gateway, for which models, how often and how much. Pure.

Not to be taken for the swarm's key, which makes nodes one swarm. A key is 32 random bytes, so a
plain hash of it is as good as secret: there is nothing to guess, and no need for a slow one.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from swarm.errors import ConfigError, RequestError

KEY_PREFIX = "sk-swarm-"
SECRET_BYTES = 32
ID_LETTERS = 8
"""Of a key's hash: what lists and logs call it by."""
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
DAY_S = 86_400
_DOMAIN = b"swarm api key 1\n"
_RATE = re.compile(r"(\d{1,9})/(s|m|min|h)")
_UNIT_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `count` requests in any `per_s` seconds on average, and so many at once."""

    count: int
    per_s: float

    def __str__(self) -> str:
        unit = next((name for name, s in _UNIT_S.items() if s == self.per_s), f"{self.per_s:g}s")
        return f"{self.count}/{unit}"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """All that is kept of a key. Its text is not: `digest` is a hash of it."""

    name: str
    digest: bytes
    created_s: float
    models: tuple[str, ...] = ()
    """Names of the models it may use; none: all."""
    rate: Rate | None = None
    tokens_per_day: int | None = None
    """Prompt and completion together, by the UTC day."""
    revoked_s: float | None = None

    @property
    def short(self) -> str:
        return self.digest.hex()[:ID_LETTERS]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request. `key` None: nobody that is known, where no key is asked for."""

    key: ApiKey | None = None

    @property
    def name(self) -> str:
        """As usage is counted; empty for those without a key."""
        return "" if self.key is None else self.key.name

    def may_use(self, *names: str) -> bool:
        """Whether a model that goes by these names is open to it."""
        models = self.key.models if self.key is not None else ()
        return not models or any(name in models for name in names)


NOBODY = Caller()


def new_key(entropy: Callable[[int], bytes]) -> str:
    """The text of a fresh key. It is a secret, to be shown once."""
    return KEY_PREFIX + entropy(SECRET_BYTES).hex()


def digest_of(text: str) -> bytes:
    """What is kept of a key, 32 bytes. A header may hold bytes that are no text."""
    return hashlib.sha256(_DOMAIN + text.encode(errors="surrogateescape")).digest()


def parse_rate(text: str) -> Rate:
    """`10/s`, `600/m` or `1000/h`. Raises ConfigError."""
    match = _RATE.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        raise ConfigError(f"a rate is given as 10/s, 600/m or 1000/h, not {text!r}")
    return Rate(int(match[1]), _UNIT_S[match[2]])


def check_name(name: str) -> str:
    """Raises ConfigError for what could not be typed, or steer a terminal that lists it."""
    if not NAME_PATTERN.fullmatch(name):
        raise ConfigError(
            f"a key's name is up to 64 letters, digits, dots, dashes, @ or _, not {name!r}"
        )
    return name


def presented(authorization: str | None, x_api_key: str | None) -> str | None:
    """The key that a request brings: `Authorization: Bearer KEY`, or `x-api-key: KEY`."""
    if authorization is not None:
        scheme, _, text = authorization.strip().partition(" ")
        if scheme.lower() == "bearer" and text.strip():
            return text.strip()
    return x_api_key.strip() if x_api_key and x_api_key.strip() else None


class KeyRing:
    """The keys that are known, looked up by hash.

    A lookup's time tells nothing of use: the place in the table comes from a hash that an asker
    cannot steer, and the hashes are then compared in constant time.
    """

    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        self.keys = tuple(keys)
        self._by_digest = {key.digest: key for key in self.keys if key.revoked_s is None}

    @property
    def has_any(self) -> bool:
        """Whether any key is in force."""
        return bool(self._by_digest)

    def find(self, text: str) -> ApiKey | None:
        """The key in force with this text."""
        digest = digest_of(text)
        known = self._by_digest.get(digest)
        return known if known is not None and hmac.compare_digest(known.digest, digest) else None


@dataclass(slots=True)
class _Bucket:
    """Requests that may still come now; it refills at the key's rate."""

    rate: Rate
    left: float
    at: float

    def take(self, now: float) -> float:
        """Take one; 0, or the seconds until there is one."""
        per_second = self.rate.count / self.rate.per_s
        passed_s = max(0.0, now - self.at)
        self.left = min(float(self.rate.count), self.left + passed_s * per_second)
        self.at = now
        if self.left >= 1.0:
            self.left -= 1.0
            return 0.0
        return (1.0 - self.left) / per_second


class Gate:
    """Lets requests in by the keys that are known. Takes `now`, seconds, any monotonic clock."""

    def __init__(self, *, is_required: bool) -> None:
        self.is_required = is_required
        """Without: who brings no key, or one that nobody knows, passes as nobody."""
        self._ring = KeyRing()
        self._buckets: dict[bytes, _Bucket] = {}

    @property
    def has_keys(self) -> bool:
        """Whether any key is in force."""
        return self._ring.has_any

    def load(self, ring: KeyRing) -> None:
        """Other keys from now on. What a key has used of its rate stays, unless that changed."""
        self._ring = ring
        rates = {key.digest: key.rate for key in ring.keys}
        self._buckets = {
            digest: bucket
            for digest, bucket in self._buckets.items()
            if rates.get(digest) == bucket.rate
        }

    def admit(self, text: str | None, now: float) -> Caller:
        """Who brings this key. Raises RequestError 401 or 429."""
        key = self._ring.find(text) if text is not None else None
        if key is None:
            if self.is_required:
                raise _refusal(text)
            return NOBODY
        if key.rate is not None:
            bucket = self._buckets.get(key.digest)
            if bucket is None:
                bucket = self._buckets[key.digest] = _Bucket(key.rate, float(key.rate.count), now)
            wait_s = bucket.take(now)
            if wait_s > 0.0:
                raise RequestError(
                    f"the key {key.name!r} may send {key.rate} requests",
                    status=429,
                    code="rate_limit_exceeded",
                    retry_after_s=math.ceil(wait_s),
                )
        return Caller(key)


def check_model(caller: Caller, *names: str) -> None:
    """Raise RequestError 403 unless the caller may use the model that goes by these names."""
    if not caller.may_use(*names):
        raise RequestError(
            f"the key {caller.name!r} may not use the model {names[0]!r}",
            status=403,
            param="model",
            code="model_not_allowed",
        )


def check_quota(caller: Caller, used_today: int, wall_s: float) -> None:
    """Raise RequestError 429 once the day's tokens are spent. What runs already is finished."""
    limit = caller.key.tokens_per_day if caller.key is not None else None
    if limit is not None and used_today >= limit:
        raise RequestError(
            f"the key {caller.name!r} has used its {limit} tokens of this day (UTC)",
            status=429,
            code="insufficient_quota",
            retry_after_s=max(1, math.ceil(DAY_S - wall_s % DAY_S)),
        )


def _refusal(text: str | None) -> RequestError:
    what = (
        "this gateway asks for a key: send it as Authorization: Bearer KEY, or as x-api-key"
        if text is None
        else "this key is not known here, or it was revoked"
    )
    return RequestError(what, status=401, code="invalid_api_key")
