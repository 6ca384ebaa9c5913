"""Keys of the API by table: what is kept of them, who gets in, how often, and for how much."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from swarm.access import keys
from swarm.access.keys import ApiKey, Caller, Gate, KeyRing, Rate
from swarm.errors import ConfigError, RequestError

TEXT = keys.new_key(lambda count: bytes(range(count)))
KEY = ApiKey("anna", keys.digest_of(TEXT), created_s=1.0)


def gate(*known: ApiKey, is_required: bool = True) -> Gate:
    made = Gate(is_required=is_required)
    made.load(KeyRing(known))
    return made


@contextmanager
def refused(status: int, code: str) -> Iterator[pytest.ExceptionInfo[RequestError]]:
    with pytest.raises(RequestError) as found:
        yield found
    assert (found.value.status, found.value.code) == (status, code)


def test_nothing_kept_of_a_key_gives_it_away() -> None:
    assert TEXT.startswith(keys.KEY_PREFIX) and len(TEXT) == len(keys.KEY_PREFIX) + 64
    assert TEXT.removeprefix(keys.KEY_PREFIX) not in repr(KEY)
    assert len(KEY.digest) == 32 and keys.digest_of(TEXT + "0") != KEY.digest
    assert KEY.short == KEY.digest.hex()[:8]


@pytest.mark.parametrize(
    ("authorization", "x_api_key", "found"),
    [
        (None, None, None),
        ("Bearer abc", None, "abc"),
        ("bearer   abc ", None, "abc"),
        ("Basic abc", None, None),
        ("Basic abc", "def", "def"),
        ("Bearer", "def", "def"),
        ("Bearer abc", "def", "abc"),
        (None, "  ", None),
    ],
)
def test_where_a_request_carries_its_key(
    authorization: str | None, x_api_key: str | None, found: str | None
) -> None:
    assert keys.presented(authorization, x_api_key) == found


def test_who_gets_in() -> None:
    asked = gate(KEY)
    assert asked.admit(TEXT, 0.0) == Caller(KEY)
    for text in (None, "", "sk-swarm-nonsense", TEXT[:-1], TEXT.upper(), TEXT + "\x00"):
        with refused(401, "invalid_api_key"):
            asked.admit(text, 0.0)
    with refused(401, "invalid_api_key"):
        gate(replace(KEY, revoked_s=2.0)).admit(TEXT, 0.0)


def test_where_no_key_is_asked_for_a_known_one_still_counts() -> None:
    asked = gate(KEY, is_required=False)
    assert asked.admit(None, 0.0).name == asked.admit("anything", 0.0).name == ""
    assert asked.admit(TEXT, 0.0).name == "anna"


def test_a_rate_lets_a_burst_through_and_then_so_many_a_second() -> None:
    asked = gate(replace(KEY, rate=Rate(2, 1.0)))
    assert [asked.admit(TEXT, 5.0).name for _ in range(2)] == ["anna", "anna"]
    with refused(429, "rate_limit_exceeded") as error:
        asked.admit(TEXT, 5.0)
    assert error.value.retry_after_s == 1
    assert asked.admit(TEXT, 5.5)
    with refused(429, "rate_limit_exceeded"):
        asked.admit(TEXT, 5.6)
    admitted = 0
    for tick in range(1000):
        try:
            asked.admit(TEXT, 10.0 + tick / 100)
            admitted += 1
        except RequestError:
            pass
    assert 20 <= admitted <= 22


def test_other_keys_do_not_give_a_spent_rate_back() -> None:
    limited = replace(KEY, rate=Rate(1, 3600.0))
    asked = gate(limited)
    asked.admit(TEXT, 0.0)
    asked.load(KeyRing([limited, replace(KEY, name="bert", digest=b"b" * 32)]))
    with refused(429, "rate_limit_exceeded") as error:
        asked.admit(TEXT, 1.0)
    assert error.value.retry_after_s == 3599
    asked.load(KeyRing([replace(KEY, rate=Rate(2, 3600.0))]))
    assert asked.admit(TEXT, 1.0)


@pytest.mark.parametrize(
    ("text", "rate"), [("10/s", (10, 1)), ("6/m", (6, 60)), ("9/h", (9, 3600))]
)
def test_rates_as_they_are_typed(text: str, rate: tuple[int, float]) -> None:
    parsed = keys.parse_rate(text)
    assert (parsed.count, parsed.per_s) == rate and str(parsed) == text


@pytest.mark.parametrize(
    "text", ["", "10", "0/s", "-1/s", "10/d", "1.5/s", "10/s;", "9" * 12 + "/s"]
)
def test_rates_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="10/s"):
        keys.parse_rate(text)


@pytest.mark.parametrize("name", ["", "a b", "-x", "a\x1b[2J", "x" * 65, "ä", "a\n"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ConfigError):
        keys.check_name(name)


def test_models_that_a_key_may_use() -> None:
    caller = Caller(replace(KEY, models=("small", "big@0123")))
    keys.check_model(caller, "small", "small@9999")
    keys.check_model(caller, "big", "big@0123")
    with refused(403, "model_not_allowed") as error:
        keys.check_model(caller, "big", "big@4567")
    assert error.value.param == "model" and "'big'" in str(error.value)
    keys.check_model(Caller(KEY), "anything")
    keys.check_model(Caller(), "anything")


def test_a_days_tokens() -> None:
    caller = Caller(replace(KEY, tokens_per_day=100))
    keys.check_quota(caller, 99, 0.0)
    keys.check_quota(Caller(KEY), 10**12, 0.0)
    with refused(429, "insufficient_quota") as error:
        keys.check_quota(caller, 100, 3 * keys.DAY_S + 86_000.0)
    assert error.value.retry_after_s == 400
