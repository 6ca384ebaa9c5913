"""Anything may befall simulated streams at any time, and still they carry what was sent."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import pytest
from sim_streams import Pair, Recorder

from sims.loop import Deadlock
from sims.wire import WAN, WIFI, WIRED


def _misfortune(pair: Pair, rng: Random, protocols: list[Recorder]) -> None:
    a, b, net = pair.a, pair.b, pair.net
    chances: list[Any] = [
        lambda: net.cut(a, b),
        lambda: net.cut(b, a, one_way=True),
        lambda: net.heal(a, b),
        lambda: net.clog(a, b, rng.random()),
        lambda: net.unclog(a, b),
        net.heal_all,
        lambda: pair.loop.stall(rng.choice(pair.processes[:2]), rng.random()),
        lambda: pair.do(pair.processes[1], rng.choice(protocols).transport.pause_reading),
        lambda: pair.do(pair.processes[1], rng.choice(protocols).transport.resume_reading),
    ]
    if rng.random() < 0.1:
        chances += [
            lambda: net.reset(a, b),
            lambda: rng.choice(protocols).transport.close(),
            lambda: rng.choice(protocols).transport.abort(),
            lambda: pair.loop.sleep_machine(a),
        ]
    rng.choice(chances)()
    if a.is_asleep:
        pair.rest(rng.random() * 3)
        pair.loop.wake_machine(a, [pair.processes[0]])


@pytest.mark.parametrize("seed", range(60))
def test_no_misfortune_mixes_up_a_stream(seed: int) -> None:
    """What arrives is what was sent, up to where the connection ended; then all is quiet."""
    rng = Random(seed)
    pair = Pair(seed)
    pair.net.profile = rng.choice([WIRED, WIFI, WAN]).lossy(rng.choice([0.0, 0.02, 0.2]))
    ends = [pair.connect() for _ in range(2)]
    for protocol in (recorder for end in ends for recorder in end):
        pair.keep_alive(protocol)
    sent = {recorder: b"" for end in ends for recorder in end}
    for _ in range(80):
        for client, served in ends:
            for number, recorder in ((0, client), (1, served)):
                data = rng.randbytes(rng.choice([0, 1, 300, 5000, 60_000]))
                if recorder.transport.is_closing() or pair.processes[number].is_stalled:
                    continue
                pair.do(pair.processes[number], partial(recorder.transport.write, data))
                sent[recorder] += data
        pair.rest(rng.choice([0.0, 0.001, 0.1, 0.5]))
        if rng.random() < 0.4:
            _misfortune(pair, rng, [recorder for end in ends for recorder in end])
    pair.net.heal_all()
    pair.rest(5.0)
    for client, served in ends:
        for recorder in (client, served):
            pair.do(pair.processes[0], recorder.transport.resume_reading)
    pair.rest(300.0)
    for client, served in ends:
        is_whole = not client.has("lost") and not served.has("lost")
        if client.transport.is_closing() and served.transport.is_closing() and is_whole:
            continue  # each waits for the other to read: so it is with real ones
        for here, there in ((client, served), (served, client)):
            assert sent[here].startswith(there.data)
            assert not is_whole or there.data == sent[here]
            assert client.has("lost") == served.has("lost")
    pair.check()
    with pytest.raises(Deadlock):
        pair.loop.run_until(lambda: False, 100_000.0)
