"""Anything may befall simulated streams at any time, and still they carry what was sent."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest
from sim_streams import Pair, Recorder

from sims.loop import Deadlock
from sims.wire import WAN, WIFI, WIRED


def _misfortune(pair: Pair, rng: Random, protocols: list[Recorder]) -> None:
    a, b, net = pair.a, pair.b, pair.net
    server = pair.processes[1]
    chances: list[Any] = [
        lambda: net.cut(a, b),
        lambda: net.cut(b, a, one_way=True),
        lambda: net.heal(a, b),
        lambda: net.clog(a, b, rng.random()),
        lambda: net.unclog(a, b),
        net.heal_all,
        lambda: pair.loop.stall(rng.choice(pair.processes[:2]), rng.random()),
    ]
    if server.is_alive:
        chances += [
            lambda: pair.do(server, protocols[1].transport.pause_reading),
            lambda: pair.do(server, protocols[3].transport.resume_reading),
        ]
    if rng.random() < 0.1:
        chances += [
            lambda: net.reset(a, b),
            lambda: protocols[0].transport.close(),
            lambda: protocols[2].transport.abort(),
            lambda: pair.loop.sleep_machine(a),
        ]
    rng.choice(chances)()
    if a.is_asleep:
        pair.rest(rng.random() * 3)
        pair.loop.wake_machine(a, [pair.processes[0]])


class Talk:
    """Two connections whose four ends write at random until told to stop."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.pair = Pair(seed)
        loss = self.rng.choice([0.0, 0.02, 0.2])
        self.pair.net.profile = self.rng.choice([WIRED, WIFI, WAN]).lossy(loss)
        self.ends = [self.pair.connect() for _ in range(2)]
        self.recorders = [recorder for end in self.ends for recorder in end]
        self.sent = dict.fromkeys(self.recorders, b"")
        for recorder in self.recorders:
            self.pair.keep_alive(recorder)

    def go_on(self, rounds: int, misfortune: float) -> None:
        pair, rng = self.pair, self.rng
        for _ in range(rounds):
            for number, recorder in zip((0, 1, 0, 1), self.recorders, strict=True):
                data = rng.randbytes(rng.choice([0, 1, 300, 5000, 60_000]))
                if recorder.transport.is_closing() or not pair.processes[number].can_run:
                    continue
                pair.do(pair.processes[number], partial(recorder.transport.write, data))
                self.sent[recorder] += data
            pair.rest(rng.choice([0.0, 0.001, 0.1, 0.5]))
            if rng.random() < misfortune:
                _misfortune(pair, rng, self.recorders)

    def settle(self) -> None:
        """The network is whole, everybody reads; nothing but prefixes was handed over."""
        pair = self.pair
        pair.net.heal_all()
        pair.rest(5.0)
        for number, recorder in zip((0, 1, 0, 1), self.recorders, strict=True):
            if pair.processes[number].is_alive:
                pair.do(pair.processes[number], recorder.transport.resume_reading)
        pair.rest(1500.0)
        for client, served in self.ends:
            assert self.sent[client].startswith(served.data)
            assert self.sent[served].startswith(client.data)
        pair.check()

    def end(self) -> None:
        """No timer is left behind."""
        with pytest.raises(Deadlock):
            self.pair.loop.run_until(lambda: False, 100_000.0)


@pytest.mark.parametrize("seed", range(60))
def test_no_misfortune_mixes_up_a_stream(seed: int) -> None:
    """What arrives is what was sent, up to where the connection ended; then all is quiet."""
    talk = Talk(seed)
    talk.go_on(80, misfortune=0.4)
    talk.settle()
    for client, served in talk.ends:
        is_whole = not client.has("lost") and not served.has("lost")
        if client.transport.is_closing() and served.transport.is_closing() and is_whole:
            continue  # each waits for the other to read: so it is with real ones
        assert client.has("lost") == served.has("lost")
        if is_whole:
            assert (client.data, served.data) == (talk.sent[served], talk.sent[client])
    talk.end()


def _kill(pair: Pair) -> None:
    pair.loop.kill(pair.processes[1])
    pair.net.process_ended(pair.processes[1])


def _vanish(pair: Pair) -> None:
    pair.loop.kill(pair.processes[1])
    pair.net.machine_vanished(pair.b)


def _vanish_and_return(pair: Pair) -> None:
    _vanish(pair)
    pair.rest(2.0)
    pair.b.is_powered = True


def _move(pair: Pair) -> None:
    pair.net.move(pair.b, ("10.0.9.9",))


@pytest.mark.parametrize("end", [_kill, _vanish, _vanish_and_return, _move])
@pytest.mark.parametrize("seed", range(10))
def test_every_end_of_a_machine_is_noticed(end: Callable[[Pair], None], seed: int) -> None:
    talk = Talk(seed)
    talk.go_on(20, misfortune=0.2)
    end(talk.pair)
    talk.go_on(20, misfortune=0.2)
    talk.settle()
    for client, _ in talk.ends:
        assert client.has("lost")
    talk.end()
