"""What a head is told of a sequence: by whom, when, how much, and what is refused."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace

import pytest
from relay_bench import LAST, MIDDLE, MODEL, ORIGIN, PROMPT, SESSION, WORKER_ID, Bench, shard_of

from swarm.effects import Send, ToWorker
from swarm.errors import RemoteProtocolError
from swarm.messages import (
    BANNED_IDS_MAX,
    BIAS_MAX,
    GUIDE_BYTES_MAX,
    HISTORY_PIECE_BYTES,
    STOP_IDS_MAX,
    History,
    Opened,
    Recall,
    RefusalCode,
    Refused,
    encode,
)
from swarm.routing.history import histories
from swarm.routing.prefix import CHAIN_BLOCKS_MAX
from swarm.terms import Epoch, Guide, GuideKind, Order, Sampling, TokenBias
from swarm.worker_messages import PREFIX_HASH_BYTES

PENALTIES = Sampling(presence_penalty=1.0)
REPETITION = Sampling(repetition_penalty=1.2)
GUIDED = Sampling(guide=GuideKind.REGEX)


def packed(ids: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(ids)}i", *ids)


def order(sampling: Sampling, prompt: int = 4, source: str = "[a-z]+") -> Order:
    guide = Guide(sampling.guide, source) if sampling.guide else None
    return Order(MODEL, tuple(range(prompt)), 50, sampling, frozenset(), guide)


def told(sampling: Sampling, ids: Sequence[int], **about: object) -> list[History]:
    return histories(SESSION, Epoch(3), order(sampling, **about), ids)  # type: ignore[arg-type]


def test_nothing_is_told_where_nothing_is_needed() -> None:
    assert told(Sampling(temperature=0.5, min_p=0.2, bias=(TokenBias(1, 2.0),)), range(9)) == []
    assert told(PENALTIES, range(4)) == []


def test_only_generated_ids_are_told_unless_the_prompt_counts() -> None:
    ids = [0, 1, 2, 3, 70, 80]
    assert told(PENALTIES, ids) == [History(SESSION, Epoch(3), b"", 4, packed([70, 80]))]
    assert told(REPETITION, ids) == [History(SESSION, Epoch(3), b"", 0, packed(ids))]
    guide = History(SESSION, Epoch(3), b"[a-z]+", 4, b"")
    assert told(GUIDED, ids) == [guide, History(SESSION, Epoch(3), b"", 4, packed([70, 80]))]
    assert told(GUIDED, ids[:4]) == [guide]


def test_long_histories_come_in_pieces_that_fit() -> None:
    ids = list(range(20_000))
    pieces = told(REPETITION, ids, prompt=15_000)
    assert b"".join(piece.ids for piece in pieces) == packed(ids)
    assert all(len(piece.ids) <= HISTORY_PIECE_BYTES for piece in pieces)
    source = "ä" * (GUIDE_BYTES_MAX // 2)
    guide = told(GUIDED, ids[:4], source=source)
    assert b"".join(piece.guide for piece in guide).decode() == source
    for piece in (*pieces, *guide):
        encode(piece)


def head(sampling: Sampling) -> Bench:
    bench = Bench(replace(shard_of(8, 12), guides=True))
    bench.open(replace(LAST, sampling=sampling))
    return bench


def tell(bench: Bench, guide: bytes, position: int, ids: Sequence[int], epoch: int = 1) -> None:
    bench.relay.told(ORIGIN, History(SESSION, Epoch(epoch), guide, position, packed(ids)))


def recalls(bench: Bench, epoch: int = 1, kv_length: int = 0) -> list[Recall]:
    effects = bench.resume(kv_length, max(PROMPT - 1, kv_length), epoch)
    return [
        effect.message
        for effect in effects
        if isinstance(effect, ToWorker) and isinstance(effect.message, Recall)
    ]


def test_the_worker_hears_it_once_it_may_start() -> None:
    bench = head(GUIDED)
    tell(bench, b"[a-", PROMPT, [])
    tell(bench, b"z]+", PROMPT, [])
    tell(bench, b"", PROMPT, [7, 8])
    tell(bench, b"", PROMPT + 2, [9])
    assert bench.effects() == []
    assert recalls(bench) == [Recall(WORKER_ID, 1, 6, PROMPT, b"[a-z]+" + packed([7, 8, 9]))]


def test_what_was_told_for_an_older_route_is_forgotten() -> None:
    bench = head(PENALTIES)
    tell(bench, b"", PROMPT, [7])
    bench.open(replace(LAST, sampling=PENALTIES, epoch=Epoch(2)))
    tell(bench, b"", PROMPT, [1], epoch=1)
    tell(bench, b"", PROMPT, [8, 9], epoch=2)
    assert recalls(bench, 2) == [Recall(WORKER_ID, 1, 0, PROMPT, packed([8, 9]))]
    tell(bench, b"", PROMPT, [1], epoch=2)
    assert bench.effects() == []


@pytest.mark.parametrize(
    ("sampling", "guide", "position", "ids"),
    [
        (Sampling(), b"", PROMPT, b"1234"),
        (PENALTIES, b"", 0, b"1234"),
        (PENALTIES, b"", PROMPT + 1, b"1234"),
        (PENALTIES, b"", PROMPT, b"123"),
        (PENALTIES, b"", PROMPT, bytes(4 * 100)),
        (REPETITION, b"", PROMPT, b"1234"),
        (PENALTIES, b"a", PROMPT, b""),
        (GUIDED, bytes(GUIDE_BYTES_MAX + 1), PROMPT, b""),
    ],
)
def test_what_no_origin_tells_closes_the_link(
    sampling: Sampling, guide: bytes, position: int, ids: bytes
) -> None:
    bench = head(sampling)
    with pytest.raises(RemoteProtocolError, match="history"):
        bench.relay.told(ORIGIN, History(SESSION, Epoch(1), guide, position, ids))


def test_a_hop_without_head_is_told_nothing() -> None:
    bench = Bench()
    bench.open(replace(MIDDLE, sampling=PENALTIES))
    with pytest.raises(RemoteProtocolError, match="does not need it"):
        tell(bench, b"", PROMPT, [1])


def test_a_head_without_tokenizer_says_so() -> None:
    bench = Bench(shard_of(8, 12))
    (refusal,) = bench.open(replace(LAST, sampling=GUIDED))
    assert isinstance(refusal, Send) and isinstance(refusal.message, Refused)
    assert refusal.message.code is RefusalCode.UNFIT
    (answer,) = (e for e in bench.open(replace(LAST, sampling=PENALTIES)) if isinstance(e, Send))
    assert isinstance(answer.message, Opened) and answer.message.sampling_level == 1


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(min_p=1.5),
        Sampling(min_tokens=-1),
        Sampling(repetition_penalty=0.0),
        Sampling(repetition_penalty=1e9),
        Sampling(presence_penalty=-1e9),
        Sampling(bias=(TokenBias(1, 1e300),)),
        Sampling(bias=(TokenBias(1, 1.0),) * (BIAS_MAX + 1)),
        Sampling(stop_ids=(1,) * (STOP_IDS_MAX + 1)),
        Sampling(banned=((),)),
        Sampling(banned=((1,) * BANNED_IDS_MAX, (1,))),
    ],
)
def test_sampling_that_nobody_may_ask_for_closes_the_link(sampling: Sampling) -> None:
    with pytest.raises(RemoteProtocolError, match="open of a session"):
        Bench(shard_of(8, 12)).open(replace(LAST, sampling=sampling))


def test_the_largest_order_fits_a_frame() -> None:
    sampling = Sampling(
        0.123456789, 0.123456789, 1 << 30, 1 << 62, 20, 0.12345, 1.2345, 1.2345, 1.2345, 1 << 30,
        (1 << 31,) * STOP_IDS_MAX, (TokenBias(1 << 31, 0.123456789),) * BIAS_MAX,
        ((1 << 31,),) * BANNED_IDS_MAX, GuideKind.JSON_SCHEMA,
    )  # fmt: skip
    chain = bytes(CHAIN_BLOCKS_MAX * PREFIX_HASH_BYTES)
    encode(replace(LAST, sampling=sampling, prefix=chain, length=1 << 30, position_limit=1 << 30))
