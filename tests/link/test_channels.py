"""Data channels: frames and credit, signalling, and how their links come, hold and give way."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import aioice.ice
import pytest
from link_pair import LOOPS, Bench, LinkNode, run

from swarm.config import LinkConfig
from swarm.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from swarm.link import channel_frames, pipe_io, webrtc_io
from swarm.link.channel_frames import (
    OUTSTANDING_BYTES,
    OUTSTANDING_LIMIT_BYTES,
    PIECE_BYTES,
    WINDOW_BYTES,
    Frame,
    Incoming,
    Kind,
    Outgoing,
    Pulse,
    Turns,
    parse,
)
from swarm.link.channel_io import NOT_HERE
from swarm.link.channel_signals import (
    ATTEMPTS_MAX,
    CANDIDATES_MAX,
    CROSSED,
    Abandon,
    Answer,
    Connect,
    Say,
    Signals,
    check_end,
)
from swarm.link.lanes import BETTER_NOW
from swarm.link.webrtc_io import find_maker
from swarm.messages import (
    ChannelAnswer,
    ChannelCandidate,
    ChannelEnd,
    ChannelOffer,
    ChannelRefused,
    FileChunk,
    Heartbeat,
    ModelId,
)
from swarm.terms import Incarnation, LinkKind, NodeId

MODEL = ModelId("0" * 32)
A, B, C = (NodeId(letter * 32) for letter in "abc")
END = ChannelEnd("user", "p" * 22, ":".join(["AB"] * 32), (ChannelCandidate("192.0.2.1", 4000, 7),))
Scenario = Callable[[Callable[[Bench], Awaitable[None]]], None]


@pytest.fixture(params=LOOPS)
def link(request: pytest.FixtureRequest) -> Scenario:
    return lambda scenario: run(request.param, "webrtc", scenario)


def ticket(number: int) -> bytes:
    return number.to_bytes(16, "big")


def chunk(number: int, size: int = 100) -> FileChunk:
    return FileChunk(MODEL, "f", number, size, bytes([number % 256]) * size)


# ---------------------------------------------------------------- frames


@pytest.mark.parametrize(
    ("data", "frame"),
    [
        (b"\0abc", Frame(Kind.BYTES, b"abc")),
        (b"\0", Frame(Kind.BYTES, b"")),
        (b"\1" + bytes(7) + b"\5", Frame(Kind.GRANT, total=5)),
        (b"\2", Frame(Kind.END)),
        (b"\3", Frame(Kind.RESET)),
        (b"\4", Frame(Kind.ALIVE)),
    ],
)
def test_frames_are_read(data: bytes, frame: Frame) -> None:
    assert parse(data) == frame


@pytest.mark.parametrize(
    "data", [b"", b"\5", b"\1", b"\1" + bytes(9), b"\2x", b"\xff", bytes(PIECE_BYTES + 2)]
)
def test_nonsense_is_no_frame(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        parse(data)


@pytest.mark.parametrize("seed", range(5))
def test_bytes_come_whole_and_in_order_and_never_more_than_granted(seed: int) -> None:
    """Readers that pause at any time, writers of any size, on both lanes at once."""
    rng = Random(seed)
    here, there = Turns(2), Turns(2)
    written, read = [bytearray(), bytearray()], [bytearray(), bytearray()]
    for _ in range(3000):
        lane = rng.randrange(2)
        if rng.random() < 0.3:
            data = rng.randbytes(rng.choice((1, 100, PIECE_BYTES, 3 * PIECE_BYTES)))
            here.out[lane].write(data)
            written[lane] += data
        elif rng.random() < 0.6 and (found := here.next_frame(0)) is not None:
            there.into[found[0]].arrived(parse(found[1]).data)
            assert there.into[found[0]].waiting_bytes <= WINDOW_BYTES
        elif rng.random() < 0.5:
            read[lane] += there.into[lane].read(rng.choice((1, 1000, WINDOW_BYTES)))
        elif (found := there.next_frame(0)) is not None:
            here.out[found[0]].granted(parse(found[1]).total)
    here.out[0].end()
    here.out[1].end()
    while not (here.out[0].is_over and here.out[1].is_over):
        while (found := here.next_frame(0)) is not None:
            if parse(found[1]).kind is Kind.BYTES:
                there.into[found[0]].arrived(parse(found[1]).data)
        for lane in range(2):
            while data := there.into[lane].read(1 << 20):
                read[lane] += data
        while (found := there.next_frame(0)) is not None:
            here.out[found[0]].granted(parse(found[1]).total)
    assert read == written
    assert all(len(part) > WINDOW_BYTES for part in written), "the windows were of use"


def test_a_reader_that_stops_stops_its_own_lane_only() -> None:
    turns = Turns(2)
    turns.out[1].write(bytes(3 * WINDOW_BYTES))
    sent = 0
    while (found := turns.next_frame(0)) is not None:
        assert found[0] == 1
        sent += len(found[1]) - 1
    assert sent == WINDOW_BYTES
    turns.out[0].write(b"control")
    assert turns.next_frame(0) == (0, b"\0control")


def test_control_goes_first_and_rows_wait_for_the_channel_sooner() -> None:
    turns = Turns(2)
    turns.out[1].write(b"rows")
    turns.out[0].write(b"control")
    assert turns.next_frame(OUTSTANDING_LIMIT_BYTES) is None
    assert turns.next_frame(OUTSTANDING_BYTES) == (0, b"\0control")
    assert turns.next_frame(OUTSTANDING_BYTES) is None
    assert turns.next_frame(OUTSTANDING_BYTES - 1) == (1, b"\0rows")


def test_who_breaks_the_window_is_told_off() -> None:
    with pytest.raises(RemoteProtocolError):
        Incoming().arrived(bytes(WINDOW_BYTES + 1))
    with pytest.raises(RemoteProtocolError):
        Incoming(is_ended=True).arrived(b"more")
    with pytest.raises(RemoteProtocolError):
        Outgoing().granted(2 * WINDOW_BYTES)


def test_the_last_word_of_a_lane() -> None:
    ending, broken = Outgoing(), Outgoing()
    for lane in (ending, broken):
        lane.write(b"last")
    ending.end()
    broken.reset()
    ending.write(b"too late")
    assert [ending.next_frame() for _ in range(3)] == [b"\0last", b"\2", None]
    assert [broken.next_frame() for _ in range(2)] == [b"\3", None]
    assert ending.is_over
    ending.reset()
    assert ending.next_frame() is None


def test_silence_is_counted_in_ticks() -> None:
    pulse = Pulse(silent_ticks_max=2)
    assert pulse.tick() is True, "nothing was said"
    pulse.sent()
    assert pulse.tick() is False
    pulse.heard()
    assert [pulse.tick() for _ in range(3)] == [True, True, None]


# ---------------------------------------------------------------- signalling


def offered(signals: Signals, peer: NodeId, number: int, **more: object) -> list[object]:
    facts = {"is_relayed": True, "refusal": None, **more}
    return list(signals.offered(peer, ChannelOffer(ticket(number), END), **facts))  # type: ignore


def test_an_offer_and_its_answer() -> None:
    left, right = Signals(A), Signals(B)
    assert left.objection(B) is None
    assert left.offers(B, ticket(1), END) == [Say(B, ChannelOffer(ticket(1), END))]
    assert "already" in str(left.objection(B))
    assert offered(right, A, 1) == [Answer(A, ticket(1), END)]
    answer = ChannelAnswer(ticket(1), END)
    assert right.gathered(ticket(1), END) == [Say(A, answer)]
    assert left.answered(C, answer) == []
    assert left.answered(B, answer) == [Connect(ticket(1), END)]
    assert left.answered(B, answer) == [], "once"
    assert left.refused(B, ChannelRefused(ticket(1), "late")) == []
    with pytest.raises(LocalProtocolError):
        right.gathered(ticket(1), END)
    # What is connecting needs the relayed link no more.
    assert left.link_gone(B) == right.link_gone(A) == []
    for signals in (left, right):
        signals.over(ticket(1))
        signals.over(ticket(1))
        assert len(signals) == 0
    assert right.gathered(ticket(1), END) == []


def test_of_two_offers_that_cross_the_smaller_ids_stands() -> None:
    small, large = Signals(A), Signals(B)
    small.offers(B, ticket(1), END)
    large.offers(A, ticket(2), END)
    assert offered(small, B, 2) == [Say(B, ChannelRefused(ticket(2), CROSSED))]
    assert offered(large, A, 1) == [Abandon(ticket(2), CROSSED), Answer(A, ticket(1), END)]
    assert large.refused(A, ChannelRefused(ticket(2), CROSSED)) == []
    assert len(small) == len(large) == 1


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        ({"is_relayed": False}, "relayed link only"),
        ({"is_relayed": False, "refusal": NOT_HERE}, "relayed link only"),
        ({"refusal": NOT_HERE}, NOT_HERE),
    ],
)
def test_offers_that_are_refused(facts: dict[str, object], cause: str) -> None:
    signals = Signals(A)
    (said,) = offered(signals, B, 1, **facts)
    assert isinstance(said, Say)
    assert isinstance(said.message, ChannelRefused)
    assert cause in said.message.cause
    assert len(signals) == 0


def test_attempts_are_bounded() -> None:
    signals = Signals(A)
    assert isinstance(offered(signals, B, 1)[0], Answer)
    for number, what in ((1, "same ticket"), (2, "second of one peer")):
        (said,) = offered(signals, B, number)
        assert isinstance(said, Say), what
    for number in range(2, 1 + ATTEMPTS_MAX):
        assert isinstance(offered(signals, NodeId(f"{number:032}"), number)[0], Answer)
    assert isinstance(offered(signals, C, 99)[0], Say)
    assert "too many" in str(signals.objection(C))


def test_a_relayed_link_takes_unfinished_attempts_along() -> None:
    signals = Signals(A)
    signals.offers(B, ticket(1), END)
    offered(signals, C, 2)
    (gone,) = signals.link_gone(B)
    assert isinstance(gone, Abandon)
    assert signals.refused(C, ChannelRefused(ticket(2), "not asked")) == []
    assert len(signals.link_gone(C)) == 1
    refused = Signals(A)
    refused.offers(B, ticket(3), END)
    assert refused.refused(B, ChannelRefused(ticket(3), "no")) == [Abandon(ticket(3), "no")]


def end(**changes: object) -> ChannelEnd:
    return dataclasses.replace(END, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["2001:db8::1", "10.0.0.9"])
def test_sound_ends_pass(host: str) -> None:
    check_end(end(candidates=(ChannelCandidate(host, 65535, 0),) * CANDIDATES_MAX))


@pytest.mark.parametrize(
    "bad",
    [
        end(username="abc"),
        end(username="user\r\na=x"),
        end(password="short"),
        end(password="p" * 65),
        end(fingerprint="AB:CD"),
        end(fingerprint=END.fingerprint.lower()),
        end(candidates=()),
        end(candidates=END.candidates * (CANDIDATES_MAX + 1)),
        *(
            end(candidates=(ChannelCandidate(host, port, priority),))
            for host, port, priority in (
                ("example.org", 1, 1),
                ("a.local", 1, 1),
                ("", 1, 1),
                ("224.0.0.251", 1, 1),
                ("::", 1, 1),
                ("fe80::1%eth0", 1, 1),
                ("192.0.2.1", 0, 1),
                ("192.0.2.1", 65536, 1),
                ("192.0.2.1", 1, -1),
                ("192.0.2.1", 1, 1 << 32),
            )
        ),
    ],
)
def test_ends_that_nobody_has_are_refused(bad: ChannelEnd) -> None:
    with pytest.raises(RemoteProtocolError):
        check_end(bad)
    with pytest.raises(RemoteProtocolError):
        Signals(A).offered(B, ChannelOffer(ticket(1), bad), is_relayed=True, refusal=None)


def test_a_ticket_of_wrong_length_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        Signals(A).offered(B, ChannelOffer(b"short", END), is_relayed=True, refusal=None)


# ---------------------------------------------------------------- links


def kind_of(node: LinkNode, other: LinkNode) -> LinkKind:
    found: LinkKind = node.events.up[other.id].kind
    return found


def pipe_of(node: LinkNode) -> pipe_io.Pipe:
    (pipe,) = node.links._channels._pipes
    assert isinstance(pipe, pipe_io.Pipe)
    return pipe


def test_a_channel_takes_the_place_of_a_relayed_link_and_needs_the_middle_no_more(
    link: Scenario,
) -> None:
    async def scenario(bench: Bench) -> None:
        pair = await bench.pair()
        left, right, hub = pair.left, pair.right, bench.hub
        assert hub is not None
        for one, other in ((left, right), (right, left)):
            assert kind_of(one, other) is LinkKind.WEBRTC
            assert one.events.up[other.id].via == hub.id
            downs = [note.get("cause") for note in one.events.noted("link.down")]
            assert downs == [BETTER_NOW[LinkKind.WEBRTC]]
        hub.kill()
        await left.events.until(lambda: len(left.events.noted("link.down")) == 2)
        left.links.send(right.id, chunk(1))
        await right.events.until(lambda: right.events.messages)
        assert not left.events.all("down")

    link(scenario)


@pytest.mark.parametrize("how", ["closed", "silent", "nonsense"])
def test_when_the_channel_ends_the_link_is_gone_at_both_ends(
    link: Scenario, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(pipe_io, "TICK_S", 0.02)

    async def scenario(bench: Bench) -> None:
        pair = await bench.pair()
        left, right = pair.left, pair.right
        wire = pipe_of(left).wire
        if how == "closed":
            await wire.close()
        elif how == "silent":
            wire.send = lambda lane, frame: None  # type: ignore[method-assign]
        else:
            wire.send(0, b"\xffno frame")
        for one, other in ((left, right), (right, left)):
            await one.events.until(lambda o=one, p=other: p.id not in o.events.up)
            assert not one.events.all("down")[0][3]
        # The relayed link is made anew, and a channel after it.
        right.links.dial([left.address], left.id)
        await left.linked_to(right)
        await right.linked_to(left)
        left.links.send(right.id, chunk(1))
        await right.events.until(lambda: right.events.messages)

    link(scenario)


def test_a_direct_link_takes_the_place_of_a_channel(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        pair = await bench.pair()
        left, right = pair.left, pair.right
        left.links._own.dial([right.address], right.id)
        for one, other in ((left, right), (right, left)):
            await one.events.until(lambda o=one: o.events.all("down"))
            assert one.events.all("down")[0][1:] == (other.id, BETTER_NOW[LinkKind.DIRECT], True)
            await one.linked_to(other)
            assert kind_of(one, other) is LinkKind.DIRECT
        left.links.send(right.id, chunk(1))
        await right.events.until(lambda: right.events.messages)
        # There is nothing to improve upon now.
        left.links.open_channel(right.id)
        left.links.send(right.id, Heartbeat(bytes(8), Incarnation(1)))
        await right.events.until(lambda: len(right.events.messages) == 2)
        assert not left.events.noted("link.no_channel")

    link(scenario)


def test_control_is_not_held_up_by_rows_that_nobody_reads(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        pair = await bench.pair()
        left, right = pair.left, pair.right
        lane = right.links._links[left.id].data._transport
        lane.pause_reading()
        sent = 0
        while not left.links.data_lane_busy(right.id):
            assert left.links.send(right.id, chunk(sent, 1 << 20))
            sent += 1
        for number in range(3):
            left.links.send(right.id, Heartbeat(bytes(8), Incarnation(number + 1)))
        await right.events.until(lambda: len(right.events.messages) == 3)
        assert pipe_of(left).wire.outstanding_bytes <= OUTSTANDING_LIMIT_BYTES + PIECE_BYTES
        assert pipe_of(right)._turns.into[1].waiting_bytes <= channel_frames.WINDOW_BYTES
        lane.resume_reading()
        await right.events.until(lambda: len(right.events.messages) == 3 + sent)

    link(scenario)


def test_what_is_lost_on_the_way_comes_all_the_same(
    link: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, usual, lost = Random(3), aioice.ice.StunProtocol.send_data, 0

    async def lossy(protocol: Any, data: bytes, address: tuple[str, int]) -> None:
        nonlocal lost
        if rng.random() < 0.02:
            lost += 1
        else:
            await usual(protocol, data, address)

    async def scenario(bench: Bench) -> None:
        pair = await bench.pair()
        monkeypatch.setattr(aioice.ice.StunProtocol, "send_data", lossy)
        sent = [chunk(number, 100_000) for number in range(8)]
        for message in sent:
            assert pair.left.links.send(pair.right.id, message)
        await pair.right.events.until(lambda: len(pair.right.events.messages) == len(sent))
        assert [message for _, message in pair.right.events.messages] == sent
        assert lost

    link(scenario)


@pytest.mark.parametrize("which", ["offers", "answers"])
def test_without_the_library_at_one_end_the_relayed_link_stays(link: Scenario, which: str) -> None:
    async def scenario(bench: Bench) -> None:
        left, right = await bench.node(), await bench.node()
        lacks = left if which == "offers" else right
        channels = lacks.links._channels
        channels._ports = dataclasses.replace(channels._ports, make_wire=None)
        left.links.dial([right.address], right.id)
        await left.events.until(lambda: left.events.noted("link.no_channel"))
        (told,) = left.events.noted("link.no_channel")
        assert NOT_HERE in str(told.get("reason"))
        assert left.events.passes_over(right.id), "the relayed link is up"
        assert left.links.send(right.id, chunk(1))

    link(scenario)


def test_where_no_datagram_passes_the_relayed_link_stays(
    link: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = webrtc_io._candidate
    monkeypatch.setattr(
        webrtc_io,
        "_candidate",
        lambda library, index, c: usual(library, index, dataclasses.replace(c, port=9)),
    )
    monkeypatch.setattr("swarm.link.dial_io.TIMEOUT_FACTOR", 0.1)
    monkeypatch.setattr("swarm.link.channel_io.TIMEOUT_FACTOR", 0.1)

    async def scenario(bench: Bench) -> None:
        left, right = await bench.node(), await bench.node()
        left.links.dial([right.address], right.id)
        await left.events.until(lambda: left.events.noted("link.no_channel"))
        assert left.events.passes_over(right.id)
        assert left.links.send(right.id, chunk(1))

    link(scenario)


def test_what_is_being_made_ends_with_the_node(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        left, right = await bench.node(), await bench.node()
        left.links.dial([right.address], right.id)
        await right.events.until(lambda: right.events.passes_over(left.id))
        await left.links.close_all("enough")
        assert not left.links._channels._tasks
        assert not left.links._channels._pipes

    link(scenario)


# ---------------------------------------------------------------- the extra


def test_without_aiortc_only_an_owner_who_insists_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_maker(LinkConfig(webrtc="auto")) is not None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert find_maker(LinkConfig(webrtc="auto")) is None
    assert find_maker(LinkConfig(webrtc="off")) is None
    with pytest.raises(ConfigError, match=r"pip install 'swarm\[webrtc\]'"):
        find_maker(LinkConfig(webrtc="on"))


@pytest.mark.parametrize(
    ("config", "about"),
    [
        (LinkConfig(webrtc="yes"), "auto, on or off"),
        (LinkConfig(stun_server="stun.example.org"), "HOST:PORT"),
        (LinkConfig(stun_server=":3478"), "HOST:PORT"),
    ],
)
def test_settings_that_make_no_sense_stop_the_start(config: LinkConfig, about: str) -> None:
    with pytest.raises(ConfigError, match=about):
        find_maker(config)


def test_no_server_is_asked_unless_one_is_named() -> None:
    assert webrtc_io._servers("") == ()
    assert webrtc_io._servers("192.0.2.1:3478") == ("stun:192.0.2.1:3478",)
