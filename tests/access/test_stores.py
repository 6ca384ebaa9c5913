"""Keys and usage on disk: modes, names, damage, batches, and writers that are killed."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from swarm.access.keys import ApiKey, Gate, Rate, digest_of
from swarm.access.keys_io import RELOAD_S, KeyStore, KeyWatch
from swarm.access.receipts_io import ReceiptStore
from swarm.access.usage import Amount, Place
from swarm.access.usage_io import DAYS_KEPT, UsageLedger, UsageStore, day_text, parse_day
from swarm.errors import ConfigError, RequestError
from swarm.notes import Note

KEY = ApiKey("anna", digest_of("secret"), 5.0, ("small", "big"), Rate(10, 60.0), 1000)


def test_keys_come_back_as_they_were_and_their_text_is_nowhere(tmp_path: Path) -> None:
    store = KeyStore(tmp_path)
    assert store.keys() == () and not list(tmp_path.iterdir())
    store.add(KEY)
    store.add(ApiKey("bert", digest_of("other"), 6.0))
    assert store.keys() == (KEY, ApiKey("bert", digest_of("other"), 6.0))
    store.revoke("anna", 9.0)
    assert store.keys()[0] == replace(KEY, revoked_s=9.0)
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
        assert b"secret" not in file.read_bytes()


def test_a_name_stands_for_one_key_for_ever(tmp_path: Path) -> None:
    store = KeyStore(tmp_path)
    store.add(KEY)
    store.revoke("anna", 9.0)
    with pytest.raises(ConfigError, match="named 'anna'"):
        store.add(replace(KEY, digest=b"x" * 32))
    for name in ("anna", "nobody"):
        with pytest.raises(ConfigError, match=f"named '{name}'"):
            store.revoke(name, 10.0)


def test_a_file_that_is_none_of_ours_is_named(tmp_path: Path) -> None:
    (tmp_path / "keys.sqlite").write_bytes(b"not a database, and long enough to look at" * 40)
    with pytest.raises(ConfigError, match=r"keys\.sqlite"):
        KeyStore(tmp_path).keys()


@pytest.mark.parametrize("damage", ["other", "cut", "torn"])
def test_damaged_counts_are_set_aside_and_begin_anew(tmp_path: Path, damage: str) -> None:
    file, notes = tmp_path / "usage.sqlite", list[Note]()
    UsageStore(tmp_path).add(
        tuple((Place(20_000, "anna", f"model-{n}"), Amount(1)) for n in range(500))
    )
    whole = file.read_bytes()
    spoilt = {"other": b"not a database" * 99, "cut": whole[:5000], "torn": b"x" * 4096}
    file.write_bytes(spoilt[damage] if damage != "torn" else whole[:4096] + spoilt[damage])

    async def main() -> None:
        ledger = UsageLedger(UsageStore(tmp_path), lambda: 20_000 * 86_400.0, notes.append)
        await ledger.start()
        ledger.add("anna", "m", Amount(1, 2, 3))
        assert [line.amount for line in await ledger.lines(0, None)] == [Amount(1, 2, 3)]
        await ledger.close()

    asyncio.run(main())
    (told,) = notes
    kept = Path(str(told.get("kept")))
    assert told.event == "gateway.usage_damaged" and kept.name == "usage.sqlite.damaged-1"
    assert kept.read_bytes() == file.with_name("usage.sqlite.damaged-1").read_bytes() != b""


def test_damaged_receipts_are_set_aside_and_a_newer_file_is_not(tmp_path: Path) -> None:
    store = ReceiptStore(tmp_path)
    assert store.made_whole() is None
    (tmp_path / "receipts.sqlite").write_bytes(b"no database" * 500)
    assert store.made_whole() == tmp_path / "receipts.sqlite.damaged-1"
    store.begin(7)
    (tmp_path / "receipts.sqlite").write_bytes(b"no database" * 500)
    assert store.made_whole() == tmp_path / "receipts.sqlite.damaged-2"
    UsageStore(tmp_path).add(((Place(1, "a", "m"), Amount(1)),))
    with sqlite3.connect(tmp_path / "usage.sqlite") as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(ConfigError, match="newer version"):
        UsageStore(tmp_path).made_whole()


def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    UsageStore(tmp_path).add(((Place(1, "a", "m"), Amount(1)),))
    with sqlite3.connect(tmp_path / "usage.sqlite") as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(ConfigError, match="newer version"):
        UsageStore(tmp_path).lines()


def test_a_gateway_heeds_keys_that_are_made_and_revoked_meanwhile(tmp_path: Path) -> None:
    store, gate, clock = KeyStore(tmp_path), Gate(is_required=True), [0.0]
    notes: list[Note] = []

    async def main() -> None:
        watch = KeyWatch(store, gate, lambda: clock[0], notes.append)
        await watch.refresh()
        assert not gate.has_keys
        store.add(KEY)
        await watch.refresh()
        assert not gate.has_keys
        clock[0] += RELOAD_S
        await asyncio.gather(*(watch.refresh() for _ in range(5)))
        assert gate.admit("secret", 0.0).name == "anna"
        store.revoke("anna", 7.0)
        clock[0] += RELOAD_S
        await watch.refresh()
        with pytest.raises(RequestError, match="not known"):
            gate.admit("secret", 0.0)

    asyncio.run(main())
    assert notes == []


def test_keys_that_cannot_be_read_any_more_stay_in_force(tmp_path: Path) -> None:
    store, gate, clock = KeyStore(tmp_path), Gate(is_required=True), [0.0]
    notes: list[Note] = []
    store.add(KEY)

    async def main() -> None:
        watch = KeyWatch(store, gate, lambda: clock[0], notes.append)
        await watch.refresh()
        for file in tmp_path.iterdir():
            file.write_bytes(b"junk" * 1000)
        clock[0] += RELOAD_S
        await watch.refresh()
        assert gate.admit("secret", 0.0).name == "anna"

    asyncio.run(main())
    assert [entry.event for entry in notes] == ["gateway.keys_unread"]


def test_usage_adds_up_over_batches_and_old_days_go(tmp_path: Path) -> None:
    store = UsageStore(tmp_path)
    assert store.lines() == () and store.begin(5) == {}
    today = DAYS_KEPT + 10
    store.add(((Place(5, "anna", "m"), Amount(1, 2, 3, 4)),))
    store.add(((Place(today, "anna", "m"), Amount(1, 2, 3, 4)), (Place(today, "", "m"), Amount(1))))
    store.add(((Place(today, "anna", "m"), Amount(1, 10, 20, 1)),))
    assert store.begin(today) == {"anna": 35, "": 0}
    lines = store.lines()
    assert [(line.key, line.amount) for line in lines] == [
        ("", Amount(1)),
        ("anna", Amount(2, 12, 23, 5)),
    ]
    assert {line.day for line in lines} == {day_text(today)}
    assert store.lines(since_day=today + 1) == ()
    assert [line.key for line in store.lines(key="anna")] == ["anna"]


@pytest.mark.parametrize("text", ["", "today", "2026-02-30", "2026-1"])
def test_days_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="2026-01-31"):
        parse_day(text)
    assert parse_day("1970-01-02") == 1


def test_a_ledger_writes_what_waits_and_knows_the_day_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        for expected in (0, 7):
            ledger = UsageLedger(UsageStore(tmp_path), lambda: 86_400.0 * 3 + 5, lambda entry: None)
            await ledger.start()
            assert ledger.used_today("anna") == expected
            ledger.add("anna", "m", Amount(1, 3, 4))
            assert ledger.used_today("anna") == expected + 7
            lines = await ledger.lines(0, None)
            assert lines[0].amount.tokens == expected + 7
            ledger.add("anna", "m", Amount())
            await ledger.close()

    asyncio.run(main())
    assert UsageStore(tmp_path).lines()[0].amount == Amount(2, 6, 8)


def test_a_disk_that_fails_is_told_once_and_loses_nothing(tmp_path: Path) -> None:
    notes: list[Note] = []
    home = tmp_path / "home"

    async def main() -> None:
        ledger = UsageLedger(UsageStore(home), lambda: 5.0, notes.append)
        await ledger.start()
        for _ in range(3):
            ledger.add("anna", "m", Amount(1, 1, 1))
            assert await ledger.lines(0, None) == ()
        home.mkdir()
        await ledger.close()

    asyncio.run(main())
    assert [entry.event for entry in notes] == ["gateway.usage_unwritten"]
    assert UsageStore(home).lines()[0].amount == Amount(3, 3, 3)


WRITER = """
import os, signal, sys
from pathlib import Path
from swarm.access.usage import Amount, Place
from swarm.access.usage_io import UsageStore
store = UsageStore(Path(sys.argv[1]))
for number in range(1, 1000):
    store.add(tuple((Place(1, name, "m"), Amount(1, 10, 0)) for name in ("anna", "bert")))
    if number == 20:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_leaves_every_batch_that_it_wrote_and_no_half_one(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", WRITER, str(tmp_path)], check=False)
    assert ran.returncode != 0
    amounts = [line.amount for line in UsageStore(tmp_path).lines()]
    assert amounts == [Amount(20, 200, 0), Amount(20, 200, 0)]
